"""The processes that a sandbox has started. Each process and machine has a file, so that another
process, or the same one after a crash, can end exactly these.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.local_processes import Process, SlurmdSettings

log = logging.getLogger(__name__)


class Processes:
    """The daemons by name. Their files are ``run/NAME.json``, their output ``log/NAME.out``."""

    def __init__(self, directory: Path) -> None:
        self._run = directory / "run"
        self._log = directory / "log"

    def start(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        user: str | None = None,
    ) -> Process:
        """Start a daemon and record it. The caller knows that it does not run yet."""
        process = local_processes.spawn(argv, environment, log=str(self.log(name)), user=user)
        writing.replace(self._run / f"{name}.json", msgspec.json.encode(process), 0o644)
        return process

    def log(self, name: str) -> Path:
        """Return the file of the daemon's output."""
        return self._log / f"{name}.out"

    def names(self) -> list[str]:
        """Return all daemons that were ever started."""
        return sorted(path.stem for path in self._run.glob("*.json"))

    def get(self, name: str) -> Process | None:
        """Return the daemon's latest process; None if it was never started."""
        try:
            return msgspec.json.decode((self._run / f"{name}.json").read_bytes(), type=Process)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def alive(self, name: str) -> bool:
        """Return True if the daemon runs."""
        process = self.get(name)
        return process is not None and local_processes.alive(process)

    def stop(self, name: str, deadline: float = 20.0) -> None:
        """End a daemon by SIGTERM, and by SIGKILL after ``deadline`` seconds."""
        if process := self.get(name):
            local_processes.stop(process, deadline)

    def kill(self, name: str) -> None:
        """End a daemon by SIGKILL, like a crash. Returns when the process has ended."""
        if process := self.get(name):
            local_processes.send(process, signal.SIGKILL)
            local_processes.wait_gone([process], 10.0)


class Started(Struct, frozen=True, kw_only=True):
    """A machine, and its slurmd (None: not started yet)."""

    machine: SlurmdSettings
    process: Process | None = None


class SlurmdMachines:
    """The slurmd processes that act as machines, by id. Each has a file in ``directory`` until its
    power-off is complete.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, machine: SlurmdSettings) -> Process:
        """Start a machine. Its file is written first."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # Write the file first: if this process dies after the start, the file still shows which
        # machine must be ended.
        self._save(Started(machine=machine))
        process = local_processes.start(machine)
        self._save(Started(machine=machine, process=process))
        log.info("started machine=%s node=%s pid=%d", machine.id, machine.node, process.pid)
        return process

    def power_off(self, name: str) -> None:
        """End all processes of the machine and remove its file. Does nothing without a file."""
        path = self._directory / f"{name}.json"
        started = _read(path)
        if started is None:
            return
        local_processes.power_off(started.machine.directory, slurmd=started.process)
        # Remove the file last: if this process is killed before, the machine is found again.
        path.unlink(missing_ok=True)
        log.info("powered off machine=%s node=%s", name, started.machine.node)

    def alive(self, name: str) -> bool:
        """Return True if the machine's slurmd runs."""
        started = self.get(name)
        return bool(started and started.process and local_processes.alive(started.process))

    def get(self, name: str) -> Started | None:
        """Return the machine with that id, or None."""
        return _read(self._directory / f"{name}.json")

    def directory(self, name: str) -> str:
        """Return the working directory of the machine with that id."""
        return str((self._directory / name).resolve())

    def ids(self) -> Iterator[str]:
        """Return all machines that were started and not powered off."""
        return (path.stem for path in sorted(self._directory.glob("*.json")))

    def _save(self, started: Started) -> None:
        writing.replace(
            self._directory / f"{started.machine.id}.json", msgspec.json.encode(started), 0o644
        )


def _read(path: Path) -> Started | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Started)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
