"""The inside of ``image check``: one machine of an image, from power-on until it powers off.

``python -m slurm_elastic.image.trial DIR`` is the first process of its own namespaces (network,
mounts, processes, host name), so that all its processes end with it. DIR/order.json is a
``TrialOrder``. Each finished step is printed. Exit 0: all steps passed. Exit ``FAILED``: a step
failed, and the last line says why. Any other exit code: the trial itself broke.
"""

from __future__ import annotations

import base64
import gzip
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config import Config
from slurm_elastic.features.network.host_keys import HostKey, printed_keys
from slurm_elastic.features.network.ssh_file import (
    FileTarget,
    PushError,
    WrongHostKeyError,
    ordered,
    push,
    read_private_key,
)
from slurm_elastic.image import machine, network
from slurm_elastic.image.cloud_metadata import KINDS, NODE, Card, MachineIdentity, configuration
from slurm_elastic.image.commands import run, started
from slurm_elastic.image.head import TrialHead
from slurm_elastic.image.imds import ADDRESS as METADATA
from slurm_elastic.image.recipe import LOGIN
from slurm_elastic.providers.base.joining import KEY_MARK

T = TypeVar("T")

FAILED = 3
_POLL_EVERY_S = 1.0
_ALIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"})
_SSH_TIMEOUT_S = 60.0
"""Time-out of one attempt to connect by SSH. A machine without KVM is slow."""
RAN = 42
"""Exit code of a job that ran. A job that slurmd could not start is COMPLETED with 0 (22.05)."""
# Exit 2: it runs on another host. Exit 3: a user reaches the metadata service.
_JOB = f"""#!/bin/sh
test "$(hostname)" = {NODE} || exit 2
setpriv --reuid=65534 --clear-groups timeout 60 python3 -c 'import urllib.request as u
u.urlopen("http://{METADATA}/latest/meta-data/", timeout=9)' 2>/dev/null && exit 3
exit {RAN}
"""
_CHECK_SLURMD = """set -e
test "$(systemctl is-enabled slurmd.service || true)" = disabled
test "$(systemctl show -p NRestarts --value slurmd.service)" = 0
if journalctl -b -u slurmd.service | grep -q 'Failed to start'; then exit 1; fi
"""
_CHECK_CRIU = "criu check >&2\n"


class TrialOrder(Struct, frozen=True, kw_only=True):
    """The task of a trial.

    ``tree``: root directory of the head (empty: this host's own). ``cloud``: one of
    ``cloud_metadata.KINDS``. ``accel``: qemu's accelerator. ``heartbeat`` and ``timeout``: seconds.
    ``saves``: the image has CRIU.
    """

    image: str
    cloud: str
    accel: str
    tree: str
    heartbeat: float
    timeout: float
    saves: bool


class BootTrial:
    """A trial of one machine and its head, whose files are in ``work``."""

    def __init__(self, work: Path, order: TrialOrder) -> None:
        self._work, self._order = work, order
        self._began = time.monotonic()
        self._console = work / "console"
        tree = Path(order.tree) if order.tree else None
        self._head = TrialHead(work, tree, NODE, network.address(0))
        self._machine: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run all steps. SlurmElasticError at the first that fails."""
        identity = self._start()
        self._say(f"started by {self._order.accel}, with metadata as in {self._order.cloud}")
        keys = self._until(lambda: printed_keys(machine.printed(self._console)),
                           "its host keys on the console")  # fmt: skip
        self._say(f"host keys read from its console: {len(keys)}")
        self._bring_key(keys)
        self._say("munge key brought by SSH to the machine that shows such a key")
        self._until(lambda: self._head.node_state() == "idle", "its node idle in Slurm")
        self._say("slurmd registered with slurmctld")
        self._say(f"a job ran on it: {self._job()}")
        self._look_inside(keys)
        self._say("slurmd is not enabled, started once"
                  + (", criu check passes" if self._order.saves else ""))  # fmt: skip
        self._head.stop()
        self._until_off()
        self._say("without a head it powered itself off")
        self._find_secrets(identity)
        self._say("no secret in user data, metadata and console")

    def _start(self) -> MachineIdentity:
        work, order = self._work, self._order
        key = work / "login"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "check", "-f", key])
        config = self._configuration(key)
        public = key.with_suffix(".pub").read_text(encoding="utf-8").strip()
        card = Card(
            address=network.address(0), gateway=network.HEAD, bits=network.BITS, mac=network.mac(0)
        )
        identity = KINDS[order.cloud](config, card, public)
        network.up(1)
        started(network.dhcp(1, {"head": network.HEAD}, work), work / "dnsmasq.out")
        self._head.start()
        answers = work / "answers.json"
        answers.write_bytes(msgspec.json.encode(identity.answers))
        imds = Path(__file__).with_name("imds.py")
        started([sys.executable, "-I", str(imds), str(answers)], work / "imds.out")
        self._until(self._head.node_state, "slurmctld")
        disk = work / "disk.qcow2"
        machine.overlay(Path(order.image), disk)
        self._spec = machine.Spec(
            disk=str(disk), console=str(self._console), tap=network.tap(0), mac=network.mac(0),
            smbios=identity.smbios, accel=order.accel, drives=self._drives(identity),
        )  # fmt: skip
        self._machine = machine.start(self._spec, work / "qemu.out")
        return identity

    def _configuration(self, key: Path) -> Config:
        """The configuration by which the machine joins. ``key``: the private key for SSH."""
        order, head = self._order, f"{network.HEAD}:6817"
        return configuration(order.cloud, head, order.heartbeat, key, self._head.key)

    def _drives(self, identity: MachineIdentity) -> tuple[str, ...]:
        """Make the drive by which some clouds tell a machine its identity; none for EC2."""
        if not identity.files:
            return ()
        directory, drive = self._work / "drive", self._work / "drive.iso"
        for name, content in identity.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        volume = ["-volid", identity.volume, "-joliet", "-rock", "-output", str(drive)]
        run(["xorriso", "-as", "mkisofs", "-quiet", *volume, directory])
        return (str(drive),)

    def _target(self, timeout: float = _SSH_TIMEOUT_S) -> FileTarget:
        return FileTarget(
            address=network.address(0), port=22, user=LOGIN, path="/etc/munge/munge.key",
            owner="munge:munge", mark=KEY_MARK, timeout=timeout,
        )  # fmt: skip

    def _bring_key(self, keys: tuple[HostKey, ...]) -> None:
        login_key = read_private_key(str(self._work / "login"))

        def try_push() -> bool:
            try:
                push(self._target(), login_key, keys, self._head.key.read_bytes())
            # It is a PushError, too, but a retry would not change the host key.
            except WrongHostKeyError:
                raise
            except PushError as error:
                self._last = str(error)
                return False
            return True

        self._until(try_push, "SSH")

    def _job(self) -> str:
        """Run a batch job and return a description of the node."""
        number = self._head.submit(_JOB)
        ended: dict[str, str] = self._until(lambda: self._ended(number), f"the end of job {number}")
        if ended["ExitCode"] != f"{RAN}:0":
            raise SlurmElasticError(
                f"job {number} is {ended['JobState']}, exit {ended['ExitCode']} (0: it never "
                "began, see slurmctld.log of --keep; 2: it ran on another host; 3: users reach the "
                "metadata service)"
            )
        node = self._head.shown("node", NODE)
        return f"{NODE}, Slurm {node.get('Version')}, {node.get('OS')}"

    def _ended(self, number: str) -> dict[str, str]:
        """Return the job's fields after it has ended, and {} before."""
        job = self._head.shown("job", number)
        return {} if job.get("JobState") in _ALIVE else job

    def _look_inside(self, keys: tuple[HostKey, ...]) -> None:
        script = _CHECK_SLURMD + (_CHECK_CRIU if self._order.saves else "")
        login_key = read_private_key(str(self._work / "login"))
        ordered(self._target(self._order.timeout), login_key, keys, script, b"")

    def _find_secrets(self, identity: MachineIdentity) -> None:
        key = self._head.key.read_bytes()
        login = (self._work / "login").read_bytes()
        for name, text in (
            ("user data", unpacked(identity.user_data)),
            ("metadata", msgspec.json.encode(identity.answers) + b"".join(identity.files.values())),
            ("console", self._console.read_bytes()),
        ):
            if secret := secrets_in(text, key, login):
                raise SlurmElasticError(f"the machine's {name} has {secret}")

    def _until_off(self) -> None:
        assert self._machine is not None  # noqa: S101 - it was started
        try:
            self._machine.wait(self._order.heartbeat + self._order.timeout)
        except subprocess.TimeoutExpired:
            raise SlurmElasticError(
                f"it did not power itself off, {self._order.heartbeat:.0f} s after the head's end"
            ) from None

    def _until(self, look: Callable[[], T], expected: str) -> T:
        """Poll ``look`` until its answer is true, and return the answer.

        SlurmElasticError after the order's time-out, or if the machine powers off first.
        """
        self._last = ""
        until = time.monotonic() + self._order.timeout
        while not (answer := look()):
            if self._machine is not None and self._machine.poll() is not None:
                raise SlurmElasticError(f"it went off before this was seen: {expected}")
            if time.monotonic() > until:
                shown = [x.strip() for x in machine.printed(self._console).splitlines()[-5:]]
                raise SlurmElasticError(
                    f"not seen in {self._order.timeout:.0f} s: {expected}; "
                    f"{self._last or 'no error'}; the console ends with: {' / '.join(shown)}"
                )
            time.sleep(_POLL_EVERY_S)
        return answer

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:7.1f}s  {text}\n")
        sys.stdout.flush()


PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+(?:[A-Za-z-]+: .*\s+)*"
    rb"(?:[A-Za-z0-9+/=]+\s+)+-----END"
)


def secrets_in(text: bytes, *secrets: bytes) -> str:
    """Return the kind of secret in a text: a private key, or an element of ``secrets``; "" for
    none. Pure.
    """
    if PRIVATE_KEY.search(text):
        return "a private key"
    for secret in secrets:
        forms = (secret, secret.hex().encode(), base64.b64encode(secret)[:40])
        if any(form in text for form in forms):
            return "the munge key or the login's key"
    return ""


def unpacked(data: bytes) -> bytes:
    """Return user data as cloud-init reads it."""
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def main() -> int:
    """Run one trial."""
    work = Path(sys.argv[1])
    order = msgspec.json.decode((work / "order.json").read_bytes(), type=TrialOrder)
    try:
        BootTrial(work, order).run()
    except SlurmElasticError as error:
        sys.stdout.write(f"FAILED: {error}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
