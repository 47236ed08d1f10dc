"""The state of slurm-elastic-ckptman that goes on in memory while its file cannot be used: jobs are
saved and requeued as ever, and only what is under way would be forgotten with the process.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from slurm_elastic.model.cluster import Image
from slurm_elastic.state.ckptstate import SCHEMA, CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice, Suspension, Verdict
from slurm_elastic.state.store.moving import Table
from slurm_elastic.state.store.refuge import Refuge
from slurm_elastic.state.store.store import Store, Ticket

IN_MEMORY = "in memory only"
MEANS = (
    "jobs are saved and requeued as ever; what is under way is forgotten if slurm-elastic-ckptman "
    "ends before it is over"
)


def _body(kind: type[object]) -> Callable[[sqlite3.Row], object]:
    return lambda row: msgspec.json.decode(row["body"], type=kind)


TABLES = (
    Table(name="notices", keys=("key",), reader=_body(RecordedNotice)),
    Table(name="rescues", keys=("job", "attempt"), reader=_body(Migration)),
    Table(name="images", keys=("job", "attempt", "number"), reader=_body(Image)),
    Table(name="interruptions", keys=("instance",)),
    Table(name="unsavable", keys=("job",), reader=_body(Verdict)),
    Table(name="suspensions", keys=("job",), reader=_body(Suspension)),
    Table(name="releases", keys=("node",)),
    Table(name="counters", keys=("name",)),
)


class EnduringState(CheckpointState):
    """A write or read that fails is done once more in memory; ``check`` changes back."""

    def __init__(
        self,
        path: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refuge = Refuge(path, SCHEMA, TABLES, now, monotonic, IN_MEMORY, MEANS)
        Store.__init__(self, self._refuge.db)

    @property
    def trouble(self) -> tuple[str, str, float]:
        """Why nothing is written to the file, what to do, since when; "" where it is."""
        found = self._refuge.trouble
        if found is None:
            return "", "", 0.0
        return f"{IN_MEMORY}: {found.what}", found.remedy, self._refuge.since

    def check(self) -> None:
        """Go over to memory where the file cannot be used, and back where it can."""
        with self._lock:
            self._refuge.check()
            self._use(self._refuge.db)

    def _go_over(self, error: Exception) -> bool:
        if self._refuge.trouble is not None:
            return False
        self._refuge.give_up(error)
        self._use(self._refuge.db)
        return True

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        try:
            return super()._select(sql, *values)
        except sqlite3.Error as error:
            with self._lock:
                if not self._go_over(error):
                    raise
            return super()._select(sql, *values)

    def _commit(self, tickets: Sequence[Ticket]) -> None:
        super()._commit(tickets)
        error = next((t.error for t in tickets if t.error is not None), None)
        if error is not None and self._go_over(error):
            for ticket in tickets:
                ticket.error = None
            super()._commit(tickets)
