"""The local agent's machines, one file each, written before their slurmd is started.

Only one agent at a time may use the directory. Anyone with the permission may read the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, ClassVar

import msgspec

from slurm_elastic.base import writing
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.machine.local.wire import MachineRecord
from slurm_elastic.model.cluster import STANDING, InstanceState

log = logging.getLogger(__name__)


class LocalRegister:
    """The machines by id. Hold ``changing`` from reading a record until its change is saved."""

    guarded_by: ClassVar[GuardedBy] = {
        # Readers may hold the lock or not: the mapping is never changed, only replaced.
        "changing": Guarded(
            "_records",
            "_guard",
            unguarded_readers=["all", "get"],
            callers_hold_lock=["save", "forget"],
        ),
    }

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.changing = threading.Lock()
        self._directory = directory
        self._guard = _exclusive(directory / "lock")
        self._records = {record.id: record for record in read_records(directory)}

    def close(self) -> None:
        """Release the directory to another agent. Later writes raise OSError."""
        with self.changing:
            self._guard.close()

    def get(self, name: str) -> MachineRecord | None:
        return self._records.get(name)

    def all(self) -> Sequence[MachineRecord]:
        """Return all machines, including recently ended ones."""
        return tuple(self._records.values())

    def live(self) -> Sequence[MachineRecord]:
        """Return all machines except ended ones."""
        return tuple(r for r in self.all() if r.state != InstanceState.TERMINATED)

    def standing(self) -> Sequence[MachineRecord]:
        """Return all machines except stopping and ended ones."""
        return tuple(r for r in self.all() if r.state in STANDING)

    def save(self, record: MachineRecord, **changes: object) -> MachineRecord:
        """Write the record with these changes and return the changed record.

        OSError after ``close``, because the directory may belong to another agent.
        """
        if self._guard.closed:
            raise OSError("this agent has closed its directory")
        changed = msgspec.structs.replace(record, **changes)
        writing.replace(self._file(record), msgspec.json.encode(changed))
        # Replace the mapping, never change it: readers use it without the lock.
        self._records = {**self._records, record.id: changed}
        return changed

    def forget(self, record: MachineRecord) -> None:
        """Remove an ended machine's file, and its working directory if no file is left in it."""
        self._records = {name: kept for name, kept in self._records.items() if name != record.id}
        self._file(record).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.workdir(record))

    def workdir(self, record: MachineRecord) -> str:
        """Return the working directory of the machine's slurmd."""
        return workdir(self._directory, record)

    def _file(self, record: MachineRecord) -> Path:
        return self._directory / f"{record.id}.json"


def workdir(directory: Path, record: MachineRecord) -> str:
    """Return the working directory of a machine's slurmd. We find its processes by it."""
    return str((directory / record.id).resolve())


def read_records(directory: Path) -> Sequence[MachineRecord]:
    """Return the machines of all files in the directory. Log unreadable files and leave them in
    place.
    """
    records = []
    for path in sorted(directory.glob("*.json")):
        try:
            records.append(msgspec.json.decode(path.read_bytes(), type=MachineRecord))
        except (OSError, msgspec.DecodeError) as error:
            log.error("machine file unreadable file=%s reason=%s", path, error)  # noqa: TRY400
    return records


def _exclusive(path: Path) -> IO[bytes]:
    file = open(path, "ab")  # noqa: SIM115 - held open as long as the agent lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise BlockingIOError(f"another agent already works in {path.parent}") from None
    return file
