"""A sandbox on the head of a ``netns.Lab``: its EC2's machines are hosts of the lab, on which the
shipped text of joining runs as it is, with a real munged, slurmd and sshd each; the sandbox's EC2
shows their consoles. The hub is the real one.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import gzip
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3
from msgspec import Struct
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import configfile
from slurm_elastic.config.sections.joining import Network
from slurm_elastic.machine.hub.link import by_address
from slurm_elastic.machine.hub.wire import HubError, PeerSeen, Show, ask
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase
from slurm_elastic.providers.base.joining import TUNNEL_KEY, program_of
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.loopback_only import EMULATOR_KEY, EMULATOR_SECRET
from slurm_elastic.state.ledger import Decision
from slurm_elastic.watch.doctor.network import _passes, examine
from tests import netns
from tests.e2e.world import ledger, live_machines
from tests.netns import HEAD, INSIDE, Lab
from tests.real_sshd import make_key, root_is_locked
from tests.real_sshd import why_not as no_server

__all__ = ["Machines", "Site", "launch_file", "no_sshd", "passes", "public_key", "site_on"]
PATIENCE = 240.0
SLURMCTLD = 6817
EC2, CONTEXT = "i-", "SLURM_ELASTIC_"
"""The prefixes of EC2's machine ids, and of our own variables in OpenNebula's CONTEXT."""
ACTIVE = 3
HEARTBEAT = 2 * 3600.0
"""Seconds: machines are left to themselves in no test."""
NODES = "pub[1-99],near[1-99]"
"""Whose machines are hosts of the lab."""
OWN_KEY = "ssh-keygen -q -t ed25519 -N '' -f /run/host"
INTERFACE = f"wg{os.getpid()}"
MACHINE = """set -e
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
for place in /etc/slurm /var/log/munge {root}/run; do
  mkdir -p $place
  mount -t tmpfs tmpfs $place
done
# Programs such as MPI find the network cards there: those of the head otherwise.
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
mkdir -p /var/lib/slurm-elastic-node {disk}/node {disk}/munge
mount --bind {disk}/node /var/lib/slurm-elastic-node
mount --bind {disk}/munge /etc/munge
mkdir -p /var/lib/munge /run/sshd /run/munge
{image}
chown -R munge:munge /etc/munge /var/log/munge /var/lib/munge
ln -s /run/munge/munge.socket.2 {root}/run/munge.socket
cp /etc/hosts /run/hosts
mount --bind /run/hosts /etc/hosts
# Who asks for a name is told at once that nobody knows it.
echo nameserver 127.0.0.1 >/run/resolv.conf
mount --bind /run/resolv.conf /etc/resolv.conf
touch {place}/console
mount --bind {place}/console /dev/console
mkdir /run/slurm-elastic
cp {place}/node {place}/launch /run/slurm-elastic
{host_key}
/usr/sbin/sshd -f /dev/null -h /run/host -o AuthorizedKeysFile={place}/authorized -o UsePAM=no \
  -o StrictModes=no -o PidFile=none -E {place}/sshd.log
{{
  echo "-----BEGIN SSH HOST KEY KEYS-----"
  cat /run/host.pub
  echo "-----END SSH HOST KEY KEYS-----"
}} >>{place}/console
set +e
sh {place}/join
sleep 1000000 &
wait
"""
_FACTS = re.compile(r"^FACTS = (\{.*\})$", re.M)


def no_sshd() -> str | None:
    """Why a host of the lab cannot be logged in to; its sshd does without PAM."""
    locked = "root's account is locked, sshd would refuse it"
    return no_server() or (locked if root_is_locked() else None)


class Powered(Struct, frozen=True):
    """A machine that its cloud has switched on, at that address as the cloud says."""

    id: str
    node: str
    address: str


class Image(Struct, frozen=True, kw_only=True):
    """The image of all machines: who may log in, how they come by their host key, and further lines
    of the shell that prepare one.
    """

    authorized: str
    host_key: str
    lines: str


class Machines:
    """The clouds' hypervisor: boots a host of the lab for each machine, with what its disk keeps,
    and has EC2 show what its own print. The host of a machine that was ended or stopped runs on, as
    one that somebody took over would, until the test cuts its power.

    Machines of the clouds ``routed`` are settled at the address that their cloud says; all others
    are behind the router. If the head opens the tunnels, EC2's public addresses lead to them.
    """

    def __init__(
        self, site: Sandbox, lab: Lab, place: Path, disks: Path, image: Image,
        routed: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.site, self.lab, self.place, self.disks = site, lab, place, disks
        self.free = list(lab.machines)
        self.hosts: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        self.begun: dict[str, float] = {}
        self.held: Collection[str] = ()
        """Nodes whose machines have yet to be switched on."""
        self._image = image
        self._config = configfile.load(site.layout.config)
        pools = self._config.pools
        self._cloud_of = {node: p.cloud for p in pools for node in expand(p.nodes)}
        self._providers = {c.provider for c in self._config.clouds}
        network = self._config.join.network
        self._routed, self._calls = routed, network is not None and network.head_opens
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._shown: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._api = boto3.client(
            "ec2", region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{site.layout.read().ports.ec2}",
            aws_access_key_id=EMULATOR_KEY, aws_secret_access_key=EMULATOR_SECRET,
        )  # fmt: skip

    def __enter__(self) -> Machines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._running):
            self.cut(name)

    def cut(self, name: str) -> None:
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(patience(60))
        leave = [*self.lab.prefix(self.hosts[name]), "ip", "link", "del", INTERFACE]
        subprocess.run(leave, check=False, capture_output=True)

    def tunnel_key(self, name: str) -> str:
        """The private one on its disk."""
        return (self.disks / name / "node" / Path(TUNNEL_KEY).name).read_text()

    def pids(self) -> list[int]:
        """The first process of each machine, as the head numbers them."""
        shown = [netns.sh("ps", "--ppid", str(p.pid), "-o", "pid=") for p in self._running.values()]
        return [int(text.split()[0]) for text in shown]

    def hosts_files(self) -> list[str]:
        """The text of each machine's /etc/hosts."""
        return [
            netns.sh("nsenter", "-t", str(pid), "-m", "cat", "/etc/hosts") for pid in self.pids()
        ]

    def by_node(self) -> dict[str, str]:
        """The hosts of all machines that were switched on."""
        return {self.nodes[name]: host for name, host in self.hosts.items()}

    def facts(self, name: str) -> dict[str, str]:
        """The settings in the machine's user data, as its cloud has them."""
        if not name.startswith(EC2):
            (vm,) = (m for m in self.site.opennebula.state().machines if str(m.id) == name)
            told = ((k.partition(CONTEXT), v) for k, v in vm.context.items())
            return {key.lower(): v for (_, ours, key), v in told if ours}
        asked = self._api.describe_instance_attribute(InstanceId=name, Attribute="userData")
        data = base64.b64decode(str(asked["UserData"]["Value"]))
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
        found = _FACTS.search(text)
        assert found is not None, text
        return dict(ast.literal_eval(found[1]))

    def public_address(self, name: str) -> str:
        """The one that EC2 has given to the machine."""
        (found,) = self._api.describe_instances(InstanceIds=[name])["Reservations"]
        return str(found["Instances"][0]["PublicIpAddress"])

    def powered(self) -> list[Powered]:
        """The machines that are on."""
        found: list[Powered] = []
        if "aws" in self._providers:
            some = [m for m in live_machines(self.site) if "stop" not in m.state]
            found += [Powered(m.id, m.node, m.address or "") for m in some]
        if "opennebula" in self._providers:
            vms = self.site.opennebula.state().machines
            found += [Powered(str(m.id), m.node, m.addresses[0]) for m in vms if m.state == ACTIVE]
        return [one for one in found if one.node]

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            for one in self.powered():
                room = self.free or one.id in self.hosts
                if one.id not in self._running and one.node not in self.held and room:
                    self._boot(one)
            for name in list(self._running):
                self._show(name)

    def _show(self, name: str) -> None:
        text = (self.place / name / "console").read_text(errors="replace")
        if text and text != self._shown.get(name):
            self._shown[name] = text
            if name.startswith(EC2):
                self.site.ec2.console(name, text)

    def _boot(self, one: Powered) -> None:
        name, node = one.id, one.node
        host = self.hosts[name] if name in self.hosts else self.free.pop(0)
        place, cloud = self.place / name, self._cloud_of[node]
        place.mkdir(exist_ok=True)
        (place / "console").touch()
        (place / "authorized").write_text(self._image.authorized + "\n")
        (place / "join").write_text(program_of(self._config, self._config.cloud(cloud)))
        (place / "node").write_text(node + "\n")
        (place / "launch").write_text(launch_file(self.facts(name), node))
        if cloud in self._routed:
            self.lab.settle(host, one.address)
        if self._calls:
            self.lab.publish(host, self.public_address(name))
        script = MACHINE.format(
            root=self.site.layout.dir, place=place, disk=self.disks / name,
            image=self._image.lines, host_key=self._image.host_key,
        )  # fmt: skip
        command = [
            *self.lab.prefix(host), "unshare", "--mount", "--uts", "--pid", "--fork",
            "--mount-proc", "--kill-child", "sh", "-c", script,
        ]  # fmt: skip
        self.begun[node] = time.time()
        with (place / "log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": netns.PATH},
            )  # fmt: skip
        self.hosts[name], self.nodes[name] = host, node


def launch_file(facts: Mapping[str, str], node: str) -> str:
    """As the first part of user data writes it on the machine."""
    return "".join(f"{k}={shlex.quote(v)}\n" for k, v in {**facts, "node": node}.items())


class Site:
    """The sandbox on the head of the lab, its hub and its machines."""

    def __init__(self, sandbox: Sandbox, lab: Lab, machines: Machines, place: Path) -> None:
        self.sandbox, self.lab, self.machines, self.place = sandbox, lab, machines, place
        self._hub: subprocess.Popen[bytes] | None = None

    @property
    def network(self) -> Network:
        network = configfile.load(self.sandbox.layout.config).join.network
        assert network is not None
        return network

    def hub_start(self, host: str = "head") -> None:
        config = str(self.sandbox.layout.config)
        with (self.place / "hub.log").open("ab") as log:
            self._hub = subprocess.Popen(
                [*self.lab.prefix(host), sys.executable, "-P", "-m", "slurm_elastic.cli.services.hub",
                 "--config", config],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def hub_stop(self) -> None:
        if self._hub is not None:
            self._hub.terminate()
            self._hub.wait(patience(60))
            self._hub = None

    def peers(self) -> dict[str, PeerSeen]:
        """By address, as the interface has them."""
        return dict(by_address(ask(self.network.socket, Show()).peers))

    def plain(self) -> set[str]:
        """The addresses that are let in without a tunnel."""
        return set(ask(self.network.socket, Show()).plain)

    def answers(self) -> bool:
        """Whether the hub does."""
        try:
            self.peers()
        except HubError:
            return False
        return True

    def addresses(self) -> dict[str, str]:
        """By node, Slurm's NodeAddr of those that are up in the tunnel."""
        nodes = self.sandbox.nodes().values()
        return {n.name: n.address for n in nodes if n.address.startswith("10.99.")}

    def decisions(self, node: str) -> tuple[Decision, ...]:
        """The decisions on that node, oldest first."""
        book = ledger(self.sandbox)
        try:
            return book.decisions.about(node)
        finally:
            book.close()

    def work(self, name: str) -> Path:
        return self.sandbox.layout.dir / "work" / name

    def daemon_again(self, **environment: str) -> None:
        """slurm-elasticd, after a crash."""
        self.sandbox.daemon_kill()
        self.sandbox.daemon_start(environment)

    def switched_on(self, node: str) -> str:
        """Have Slurm power the node up; the name of its machine, once it is on."""
        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=power_up"])
        found = self.sandbox.wait_for(
            lambda: [one.id for one in self.machines.powered() if one.node == node],
            PATIENCE, f"{node} has a machine",
        )  # fmt: skip
        return found[0]

    def is_idle(self, node: str) -> bool:
        """Whether the node is up in Slurm, without a job."""
        (found,) = self.sandbox.slurm.nodes([node]).values()
        return phase(found) is Phase.UP and "IDLE" in found.states and not is_down(found)

    def shakes(self, node: str) -> bool:
        """Whether the head has heard of the node's machine in the tunnel, since the hub began."""
        peer = self.peers().get(self.addresses()[node]) if self.answers() else None
        return peer is not None and peer.handshake > 0

    def doctor(self, later: float = 0.0) -> dict[str, list[Finding]]:
        """Doctor's findings on the network, by their names, as if so many seconds had passed."""
        config = configfile.load(self.sandbox.layout.config)
        found: dict[str, list[Finding]] = {}
        for one in examine(config, self.sandbox.slurm, time.time() + later, passes):
            found.setdefault(one.subject, []).append(one)
        return found

    def reaches(self, host: str, port: int = SLURMCTLD, at: str = INSIDE) -> bool:
        """Whether a port of the head answers a host of the lab."""
        say = f"import socket; socket.create_connection(('{at}', {port}), timeout=5)"
        done = subprocess.run(
            [*self.lab.prefix(host), sys.executable, "-c", say], capture_output=True, check=False
        )
        return done.returncode == 0


def passes(address: str, size: int) -> bool:
    """As doctor asks, twice: ping waits a second, for which any host may stand still."""
    return _passes(address, size) or _passes(address, size)


def public_key(private: str) -> str:
    """By wg(8)."""
    done = subprocess.run(
        ["wg", "pubkey"], input=private, text=True, capture_output=True, check=True
    )
    return done.stdout.strip()


@contextlib.contextmanager
def site_on(
    lab: Lab,
    sandbox: Callable[..., Sandbox],
    network: Mapping[str, Any] | None,
    *,
    routed: Collection[str] = (),
    consoles: bool = True,
    prepared: str = "",
    conf: Sequence[str] = (),
    elastic: Mapping[str, Any] | None = None,
    **more: Any,
) -> Iterator[Site]:
    """The site, with ``network`` as join.network and what the lab decides of it. Without
    ``consoles`` all machines have their image's host key. ``prepared``: further lines of the shell
    that prepare a machine. ``conf``: further lines of slurm.conf. With None for a network the munge key is
    in the image, too, and the head where the router finds it.
    """
    with tempfile.TemporaryDirectory(prefix="se-lab-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)  # SlurmUser may enter
        secrets = place / "secrets"
        image = _secrets(secrets, consoles=consoles, with_munge=network is None)
        image = replace(image, lines=f"{image.lines}\n{prepared}")
        head = INSIDE if network is not None else HEAD
        more_join = (elastic or {}).get("join", {})
        join = {**_join(secrets, head, network, consoles=consoles), **more_join}
        made = sandbox(**{
            "static_nodes": 0, "drop": ("onprem",), "never_boot": NODES,
            "suspend_time": 3600.0, "resume_timeout": 300.0,
            "slurm_conf": (f"SlurmctldHost={os.uname().nodename}({head})",
                           f"SlurmctldPort={SLURMCTLD}", *conf),
            "elastic": {**(elastic or {}), "join": join}, **more,
        })  # fmt: skip
        # Read anew for each machine: the sandbox has made the cluster's only now.
        key = (made.layout.dir / "etc" / "munge.key").read_bytes()
        (secrets / "munge.key").write_bytes(key)
        with (
            tempfile.TemporaryDirectory(prefix="se-disks-", dir="/tmp") as disks,
            Machines(made, lab, place, Path(disks), image, routed) as machines,
        ):
            there = Site(made, lab, machines, place)
            if network is not None:
                there.hub_start()
            try:
                yield there
            finally:
                there.hub_stop()
                subprocess.run(["ip", "link", "del", INTERFACE], check=False, capture_output=True)


def _join(
    secrets: Path, head: str, network: Mapping[str, Any] | None, *, consoles: bool
) -> dict[str, Any]:
    join: dict[str, Any] = {"head": head, "heartbeat_timeout": HEARTBEAT}
    if network is None:
        return join
    tunnel = {
        "endpoint": f"{HEAD}:51820", "routes": ["10.1.2.0/24"], "interface": INTERFACE,
        "public_key": f"{secrets}/wireguard.pub",
    } if network.get("kind") != "none" else {}  # fmt: skip
    if network.get("opened_by") == "head":
        del tunnel["endpoint"]
    key = "console" if consoles else (secrets / "host.pub").read_text().strip()
    ssh = {"key": f"{secrets}/ssh_key", "munge_key": f"{secrets}/munge.key", "host_key": key}
    return {**join, "ssh": ssh, "network": {"socket": f"{secrets}/hub.sock", **tunnel, **network}}


def _secrets(secrets: Path, *, consoles: bool, with_munge: bool) -> Image:
    """The head's keys, and what of them is in the image."""
    secrets.mkdir()
    public = make_key(secrets / "ssh_key")
    make_key(secrets / "host")
    key = secrets / "wireguard.key"
    key.write_text(netns.sh("wg", "genkey"))
    key.chmod(0o600)
    shown = subprocess.run(
        ["wg", "pubkey"], input=key.read_bytes(), capture_output=True, check=True
    )
    (secrets / "wireguard.pub").write_bytes(shown.stdout)
    (secrets / "munge.key").write_bytes(os.urandom(128))
    for name in ("ssh_key", "munge.key"):
        (secrets / name).chmod(0o400)
        netns.sh("chown", "slurm:", str(secrets / name))
    return Image(
        authorized=public,
        host_key=OWN_KEY if consoles else f"cp {secrets}/host {secrets}/host.pub /run",
        lines=f"cp {secrets}/munge.key /etc/munge/munge.key" if with_munge else "",
    )
