"""A ledger that goes on in memory while its file cannot be used: end-only.

What cannot be read of the file is found again by the machines' tags, as with any new ledger. So the
daemon repairs, suspends and gives nodes back as ever. Only ``intend`` refuses: a machine whose
launch is written down nowhere would be lost with the process.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_elastic.errors import EndOnlyError
from slurm_elastic.ledger import SOUND, Condition, Ledger
from slurm_elastic.ledger.schema import LEDGER, LEDGER_TABLES, add_decisions
from slurm_elastic.model import LaunchSpec
from slurm_elastic.store.refuge import Refuge
from slurm_elastic.store.store import Store

END_ONLY = "end-only"
_MEANS = "nothing is bought, what Slurm has powered down is ended"


class Enduring(Ledger):
    """``check`` is to be called again and again; it changes over and back."""

    def __init__(
        self,
        path: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refuge = Refuge(
            path, LEDGER, LEDGER_TABLES, now, monotonic, END_ONLY, _MEANS, add_decisions
        )
        Store.__init__(self, self._refuge.db)

    @property
    def condition(self) -> Condition:
        """Why machines are only ended, while the file cannot be used."""
        trouble = self._refuge.trouble
        if trouble is None:
            return SOUND
        return Condition(
            end_only=f"{END_ONLY}: {trouble.what}",
            remedy=trouble.remedy,
            since=self._refuge.since,
        )

    def intend(self, spec: LaunchSpec, request: str, now: float) -> None:
        """As the ledger's; EndOnlyError where it could not be kept."""
        with self._lock:
            if self._refuge.trouble is not None:
                raise EndOnlyError(f"{self.end_only}; nothing is bought")
            super().intend(spec, request, now)

    def check(self) -> Condition:
        """Go over to memory where the file cannot be used, and back where it can."""
        with self._lock:
            self._refuge.check()
            self._use(self._refuge.db)
            return self.condition

    def give_up(self, error: Exception) -> None:
        """The file has failed with ``error``: go on in memory."""
        with self._lock:
            self._refuge.give_up(error)
            self._use(self._refuge.db)

    @contextlib.contextmanager
    def _transaction(self, *changes: str | None) -> Iterator[sqlite3.Connection]:
        with self._lock:
            with self._refuge.noticing(), super()._transaction(*changes) as db:
                yield db
            if not self._depth:
                self._refuge.keep()

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._refuge.noticing():
            return super()._select(sql, *values)
