"""Boots a virtual machine for each machine of the emulated EC2, and powers it off with it.

It has the interface of ``runner.Runner``. The machines' network is a namespace with EC2's metadata
service. A veth pair connects it to this host, on which slurmctld runs. If a virtual machine powers
itself off, it is also powered off in the emulated cloud. Its console is copied to EC2's console
output, and an interruption to its metadata.
"""

from __future__ import annotations

import logging
import sys
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SandboxError
from slurm_elastic.image import imds, label, machine
from slurm_elastic.image.build import head_release
from slurm_elastic.image.cloud_metadata import identity_document
from slurm_elastic.image.commands import run
from slurm_elastic.image.imds import ADDRESS as METADATA
from slurm_elastic.image.network import BRIDGE
from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.local_processes import Process
from slurm_elastic.sandbox.ec2.cloud import MachineView
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.loopback_only import EMULATOR_KEY, EMULATOR_SECRET
from slurm_elastic.sandbox.seen import CloudMachine
from slurm_elastic.sandbox.spec import VIRTUAL_HEAD as HEAD

log = logging.getLogger(__name__)

GATEWAY = "10.77.0.1"
_PREFIX_BITS = 8
"""Prefix length: the emulated EC2 assigns addresses from 10.0.0.0/8. Each gets a route of its own
on this host.
"""
_CONSOLE_BYTES = 65536
"""Bytes at the end of a console that EC2 keeps."""
_ALIVE = frozenset({"pending", "running"})


def settings(image: Path) -> dict[str, Any]:
    """Return the arguments of a SandboxSpec whose EC2 machines boot from an image. The machines are
    small. Without KVM their boot takes minutes. Raises SandboxError if the image's Slurm is not
    this host's.
    """
    if label.read(image).slurm != head_release():
        raise SandboxError(
            f"{image} has Slurm {label.read(image).slurm}, this host {head_release() or 'none'}"
        )
    return {
        "image": str(image.resolve()),
        "cpus": 1,
        "memory": 400,
        "resume_timeout": 1800.0,
        "suspend_timeout": 60.0,
    }


class RunningMachine(Struct, frozen=True, kw_only=True):
    """A machine's process. ``number``: part of the names of its tap and network card."""

    process: Process
    number: int
    address: str


class MachineNetwork:
    """The machines' network namespace, named by a checksum of the sandbox's directory."""

    def __init__(self, directory: Path) -> None:
        self.name = f"se{zlib.crc32(str(directory).encode()):08x}"

    def up(self) -> None:
        """Make the namespace, its bridge and the veth pair to this host."""
        self.down()
        run(["ip", "netns", "add", self.name])
        run(["ip", "link", "add", self.name, "type", "veth", "peer", "name", "head", "netns",
             self.name])  # fmt: skip
        run(["ip", "address", "add", f"{HEAD}/32", "dev", self.name])
        run(["ip", "link", "set", self.name, "up"])
        for arguments in (
            ("link", "set", "lo", "up"),
            ("link", "add", BRIDGE, "type", "bridge"),
            ("address", "add", f"{GATEWAY}/{_PREFIX_BITS}", "dev", BRIDGE),
            ("address", "add", f"{METADATA}/32", "dev", BRIDGE),
            ("link", "set", "head", "master", BRIDGE, "up"),
            ("link", "set", BRIDGE, "up"),
        ):
            run([*self.inside(), "ip", *arguments])

    def down(self) -> None:
        """Remove the namespace and the pair, if they exist."""
        if Path("/sys/class/net", self.name).exists():
            run(["ip", "link", "delete", self.name])
        if Path("/run/netns", self.name).exists():
            run(["ip", "netns", "delete", self.name])

    def inside(self) -> tuple[str, ...]:
        """Return the words before a command that runs in the namespace."""
        return ("ip", "netns", "exec", self.name)

    def add(self, number: int, address: str) -> str:
        """Make a tap for a machine, and the route to it. Returns the tap's name."""
        tap = f"tap{number}"
        run([*self.inside(), "ip", "tuntap", "add", tap, "mode", "tap"])
        run([*self.inside(), "ip", "link", "set", tap, "master", BRIDGE, "up"])
        run(["ip", "route", "replace", f"{address}/32", "dev", self.name, "src", HEAD])
        return tap

    def remove(self, number: int, address: str) -> None:
        """Remove a machine's tap and route."""
        run([*self.inside(), "ip", "link", "delete", f"tap{number}"])
        run(["ip", "route", "delete", f"{address}/32", "dev", self.name])


class Hypervisor:
    """Runs the virtual machines, with the interface of ``Runner``."""

    def __init__(self, layout: Layout, image: Path, ec2: Ec2Control, endpoint: str) -> None:
        import boto3  # here, so that commands can show their help without a cloud's SDK

        self._layout, self._image, self._ec2 = layout, image, ec2
        self._place = layout.dir / "machines"
        self._network = MachineNetwork(layout.dir)
        self._running: dict[str, RunningMachine] = {}
        self._shut_down: set[str] = set()
        self._consoles: dict[str, int] = {}
        self._answers: dict[str, bytes] = {}
        self._accel = ""

        self._api = boto3.client(
            "ec2", region_name="us-east-1", endpoint_url=endpoint,
            aws_access_key_id=EMULATOR_KEY, aws_secret_access_key=EMULATOR_SECRET,
        )  # fmt: skip
        self._serve()

    def step(self, machines: Iterable[CloudMachine], _now: float) -> None:
        """Power off ended machines, boot new ones, copy consoles to EC2 and metadata to
        machines.
        """
        alive = {m.id for m in machines if m.state in _ALIVE and m.node}
        views = {m.id: m for m in self._ec2.state().machines}
        for name in [name for name in self._running if name not in alive]:
            self._power_off(name)
        for name, running in list(self._running.items()):
            self._write_metadata(views[name])
            self._copy_console(name)
            if not local_processes.alive(running.process):
                log.info("powered itself off machine=%s", name)
                self._shut_down.add(name)
                self._ec2.shut_down([name])
        # ``_shut_down`` is needed because ``seen`` is older than the shut-downs above: its machines
        # would be booted again.
        for name in sorted(alive - self._running.keys() - self._shut_down):
            self._boot(views[name])

    def _serve(self) -> None:
        """Start DHCP and EC2's metadata service in the machines' network."""
        (self._place / "hosts").mkdir(parents=True, exist_ok=True)
        (self._place / "answers").mkdir(exist_ok=True)
        dhcp = [
            "dnsmasq", "--keep-in-foreground", "--user=root", "--conf-file=/dev/null",
            "--no-hosts", "--no-resolv", "--bind-interfaces", f"--interface={BRIDGE}",
            "--except-interface=lo", "--dhcp-range=10.0.0.0,static,255.0.0.0,1h",
            f"--dhcp-option=3,{GATEWAY}", f"--dhcp-hostsdir={self._place}/hosts",
            f"--dhcp-leasefile={self._place}/leases", "--pid-file=", "--log-facility=-",
        ]  # fmt: skip
        self._start(dhcp, "dnsmasq")
        self._start([sys.executable, "-I", str(imds.__file__), f"{self._place}/answers"], "imds")

    def _start(self, command: list[str], name: str) -> Process:
        environment = self._layout.daemon_env()
        log_file = str(self._layout.log / f"{name}.out")
        return local_processes.spawn([*self._network.inside(), *command], environment, log=log_file)

    def _boot(self, view: MachineView) -> None:
        if not self._accel:
            self._accel = machine.accelerator(self._image, self._place)
        # The number is a byte of the MAC address, so it must stay below 256.
        number = next(n for n in range(200) if n not in {r.number for r in self._running.values()})
        address, mac = view.address or "", f"52:54:00:77:00:{number:02x}"
        (self._place / "hosts" / view.id).write_text(f"{mac},{address}\n")
        self._write_metadata(view)
        tap = self._network.add(number, address)
        disk = self._place / f"{view.id}.qcow2"
        machine.overlay(self._image, disk)
        # cloud-init recognises EC2 by a UUID that begins with "ec2" and equals the serial number.
        hardware = f"ec2{view.id.removeprefix('i-').ljust(29, '0')[:29]}"
        text = "-".join(hardware[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        spec = machine.Spec(
            disk=str(disk), console=str(self._console(view.id)), tap=tap, mac=mac,
            smbios=f"type=1,manufacturer=Amazon EC2,uuid={text},serial={text}", accel=self._accel,
        )  # fmt: skip
        process = self._start(machine.command(spec), f"qemu-{view.node}")
        self._running[view.id] = RunningMachine(process=process, number=number, address=address)
        log.info("booted machine=%s node=%s address=%s by %s", view.id, view.node, address,
                 self._accel)  # fmt: skip

    def _power_off(self, name: str) -> None:
        running = self._running.pop(name)
        local_processes.stop(running.process, 0.0)
        self._network.remove(running.number, running.address)
        (self._place / f"{name}.qcow2").unlink(missing_ok=True)
        (self._place / "hosts" / name).unlink(missing_ok=True)
        (self._place / "answers" / running.address).unlink(missing_ok=True)
        self._answers.pop(running.address, None)
        log.info("powered off machine=%s", name)

    def _console(self, name: str) -> Path:
        return self._layout.log / f"console-{name}"

    def _copy_console(self, name: str) -> None:
        """Copy the machine's console to EC2's console output if it has grown."""
        text = machine.printed(self._console(name))
        if len(text) != self._consoles.get(name):
            self._consoles[name] = len(text)
            self._ec2.console(name, text[-_CONSOLE_BYTES:])

    def _write_metadata(self, view: MachineView) -> None:
        """Write the machine's present metadata. The part that never changes is read from EC2
        once.
        """
        address = view.address or ""
        if address not in self._answers:
            self._answers[address] = msgspec.json.encode(self._launch_metadata(view))
        metadata: dict[str, str] = msgspec.json.decode(self._answers[address])
        if view.interruption is not None:
            taken_at = datetime.fromtimestamp(view.interruption.deadline, UTC)
            notice = {"action": "terminate", "time": taken_at.strftime("%Y-%m-%dT%H:%M:%SZ")}
            metadata["spot/instance-action"] = msgspec.json.encode(notice).decode()
        metadata |= {f"tags/instance/{key}": value for key, value in view.tags.items()}
        file = self._place / "answers" / address
        data = msgspec.json.encode(metadata)
        if not file.exists() or file.read_bytes() != data:
            writing.replace(file, data, 0o644)

    def _launch_metadata(self, view: MachineView) -> dict[str, str]:
        answer = self._api.describe_instances(InstanceIds=[view.id])
        instance: Any = answer["Reservations"][0]["Instances"][0]
        user_data = self._api.describe_instance_attribute(InstanceId=view.id, Attribute="userData")
        name = f"ip-{(view.address or '').replace('.', '-')}"
        public = (self._layout.dir / "etc" / "login.pub").read_text().strip()
        return {
            "instance-id": view.id,
            "ami-id": str(instance["ImageId"]),
            "ami-launch-index": str(instance["AmiLaunchIndex"]),
            "instance-type": view.type,
            "hostname": name,
            "local-hostname": name,
            "local-ipv4": view.address or "",
            "placement/availability-zone": view.zone,
            "public-keys/": "0=sandbox",
            "public-keys/0/openssh-key": public,
            **identity_document(view.id, view.zone[:-1]),
            "user-data": str(user_data["UserData"]["Value"]),
        }
