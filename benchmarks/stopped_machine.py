"""The inside of ``scripts/bench stopped``: one virtual machine, booted, stopped and started.

``python -m benchmarks.stopped_machine DIR`` is the first process of namespaces of its own, as
``slurm_elastic.image.trial`` is, whose head, network and machine it takes. DIR/order.json is that
of a trial, DIR/starts has how many starts there are to be; a line of JSON tells of each boot.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.features.network.host_keys import HostKey, printed_keys
from slurm_elastic.features.network.ssh_file import (
    PushError,
    WrongHostKeyError,
    ordered,
    read_private_key,
)
from slurm_elastic.image import machine, network
from slurm_elastic.image.cloud_metadata import NODE
from slurm_elastic.image.trial import BootTrial, TrialOrder

PATIENCE = 120.0
"""Seconds for sshd's greeting; on a machine without KVM that shares its host it takes many."""
_WITHOUT = "test -e /run/slurm-elastic/again\n"
_OFF = "systemctl --no-block poweroff\n"
# The console gets what took the boot so long, before the end.
_TOLD_OFF = """systemd-run --quiet --collect sh -c '{ systemctl is-system-running --wait
systemd-analyze time; systemd-analyze blame --no-pager | head -n 40
systemd-analyze critical-chain --no-pager; } >/dev/ttyS0 2>&1; systemctl poweroff'
"""


class Life(BootTrial):
    """A trial's machine, only booted: ``fresh`` from the image, ``again`` from its own disk.

    Each boot's console is left as ``console.N``; ``tells``: with what took it so long.
    """

    tells = False
    boots = 0

    def fresh(self) -> dict[str, float]:
        """Until its node is idle: it gets its host keys and the munge key."""
        self._start()
        began = time.monotonic()
        self._until(_answers, "SSH")
        self.keys: tuple[HostKey, ...] = self._until(
            lambda: printed_keys(machine.printed(self._console)), "its host keys on the console"
        )
        self._bring_key(self.keys)
        return self._joined(began, "")

    def again(self) -> dict[str, float]:
        """From the disk that its first boot has left, with the keys that it has."""
        before = self._since()
        self._machine = machine.start(self._spec, self._work / "qemu.out")
        began = time.monotonic()
        found = self._joined(began, before)
        return {**found, "without": float(self._is_without_cloud_init())}

    def _is_without_cloud_init(self) -> bool:
        ours = read_private_key(str(self._work / "login"))

        def asked() -> str:
            try:
                ordered(self._target(), ours, self.keys, _WITHOUT, b"")
            except WrongHostKeyError:
                raise
            except PushError as error:  # it is busy yet, or says no
                self._last = str(error)
                return "no" if "exit 1:" in self._last else ""
            return "yes"

        return self._until(asked, "its word about this boot") == "yes"

    def off(self) -> None:
        """Shut down as for a stop: by its own system."""
        ours = read_private_key(str(self._work / "login"))
        with contextlib.suppress(PushError):  # the connection may end before the answer
            ordered(self._target(), ours, self.keys, _TOLD_OFF if self.tells else _OFF, b"")
        assert self._machine is not None
        try:
            self._machine.wait(self._order.timeout)
        except subprocess.TimeoutExpired:
            raise SlurmElasticError("it does not shut down") from None
        self.boots += 1
        self._console.replace(self._work / f"console.{self.boots}")

    def _joined(self, began: float, before: str) -> dict[str, float]:
        self._until(lambda: self._since() != before and self._is_idle(), "its node idle in Slurm")
        return {"joined": time.monotonic() - began, "processor": self._processor()}

    def _is_idle(self) -> bool:
        return self._head.shown("node", NODE).get("State") == "IDLE"

    def _since(self) -> str:
        """When its slurmd started, by slurmctld; empty where none has registered."""
        said = self._head.shown("node", NODE).get("SlurmdStartTime", "")
        return "" if said in ("None", "Unknown") else said

    def _processor(self) -> float:
        """Seconds of processor time that qemu has taken."""
        assert self._machine is not None
        fields = Path(f"/proc/{self._machine.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _answers() -> bool:
    """Whether sshd greets. It starts a process for each who asks: nobody asks twice meanwhile."""
    try:
        with socket.create_connection((network.address(0), 22), timeout=PATIENCE) as one:
            return one.recv(4) == b"SSH-"
    except OSError:
        return False


def main() -> int:
    work = Path(sys.argv[1])
    order = msgspec.json.decode((work / "order.json").read_bytes(), type=TrialOrder)
    life = Life(work, order)
    life.tells = (work / "tells").exists()
    print(json.dumps({"boot": "fresh", **life.fresh()}), flush=True)
    for _ in range(int((work / "starts").read_text())):
        life.off()
        print(json.dumps({"boot": "again", **life.again()}), flush=True)
    if life.tells:
        life.off()
    return 0


if __name__ == "__main__":
    sys.exit(main())
