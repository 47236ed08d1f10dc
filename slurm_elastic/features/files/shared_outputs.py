"""Output files that several jobs on one machine write, as an array with ``--open-mode=append``.

The machine has such a file as long as one of these jobs uses it. The text of each of them is in it,
so it begins at one place of the head's file for all of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.controller.context import Site
from slurm_elastic.model.copying import CopyState, JobCopy

_ON_MACHINE = frozenset({CopyState.THERE, CopyState.OWED})


class SharedOutputs:
    """Keeps the bases of such outputs equal in the ledger's rows."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_busy")}

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Condition()
        self._busy: set[tuple[str, int]] = set()

    def others(self, row: JobCopy) -> Sequence[JobCopy]:
        """The open rows of other runs that write an output of this row on its machine."""
        return [each for each in self._site.ledger.copies.open() if _shares(each, row)]

    @contextlib.contextmanager
    def turn(self, row: JobCopy, timeout: float) -> Iterator[bool]:
        """Keep copies of such outputs apart, because one of them may change the base in the order
        of the other. Yield False after ``timeout`` seconds.
        """
        if not self.others(row):
            yield True
            return
        key, until = (row.machine, row.uid), time.monotonic() + timeout
        with self._lock:
            while key in self._busy and (remaining_s := until - time.monotonic()) > 0:
                self._lock.wait(remaining_s)
            is_free = key not in self._busy
            if is_free:
                self._busy.add(key)
        try:
            yield is_free
        finally:
            if is_free:
                with self._lock:
                    self._busy.discard(key)
                    self._lock.notify_all()

    def put(
        self, row: JobCopy, joined: Collection[str], earlier: Iterable[JobCopy]
    ) -> Collection[str]:
        """Write the row of a run whose files are there. Return the outputs whose base comes from
        another row.

        ``joined``: the outputs that the machine had already, because other runs write them.
        ``earlier``: the open rows before the copy. Such a run may have ended during the copy.
        """
        with self._lock:
            bases: dict[str, int] = {}
            for other in (*earlier, *self._site.ledger.copies.open()):
                if _shares(other, row):
                    bases |= {p: base for p, base in other.outputs.items() if p in joined}
            self._site.ledger.copies.put(replace(row, outputs={**row.outputs, **bases}))
        return bases.keys()

    def move(self, row: JobCopy, bases: Mapping[str, int]) -> None:
        """Write the bases that a copy has found into the row, and into the rows of the other
        runs: with their old bases they would append the whole output once more.
        """
        with self._lock:
            for each in (row, *self.others(row)):
                outputs = {path: bases.get(path, base) for path, base in each.outputs.items()}
                self._site.ledger.copies.set_outputs(each, outputs)


def _shares(other: JobCopy, row: JobCopy) -> bool:
    is_other_run = (other.job, other.restarts) != (row.job, row.restarts)
    is_there = other.state in _ON_MACHINE and other.machine == row.machine
    # The machine has a record for each user, and another user's file is another file.
    return (
        is_other_run
        and is_there
        and other.uid == row.uid
        and bool(other.outputs.keys() & row.outputs.keys())
    )
