"""A ledger that goes on in memory while its file cannot be used: end-only.

Rows that cannot be read are found again by the machines' tags, as with any new ledger. So the
daemon repairs, suspends and gives nodes back as ever. Only ``intend`` refuses: a machine whose
launch is written down nowhere would be lost with the process.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slurm_elastic.base.errors import EndOnlyError
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.state.ledger import SOUND, Condition, Ledger
from slurm_elastic.state.ledger.schema import LEDGER, LEDGER_TABLES, add_decisions
from slurm_elastic.state.store.files import open_writer, wait_as_usual
from slurm_elastic.state.store.refuge import Refuge, require_file
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.trouble import Kind, kind_of

END_ONLY = "end-only"
_MEANS = "nothing is bought, what Slurm has powered down is ended"


class Enduring(Ledger):
    """``check`` is to be called again and again; it changes over and back.

    A cloud counts as read only once this process has taken in a list of it: what the last one
    adopted while the file could not be used may have ended with it.
    """

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
        self._read: frozenset[str] = frozenset()

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

    def read_whole(self, cloud: str, now: float) -> None:
        """As the ledger's."""
        with self._lock:
            super().read_whole(cloud, now)
            self._read |= {cloud}

    def _read_whole(self, complete: Sequence[str]) -> frozenset[str]:
        return super()._read_whole(complete) & self._read

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

    def _put(
        self, changes: str | None, sql: str, *values: object, rows: tuple[object, ...] | None = None
    ) -> None:
        with self._lock:
            super()._put(changes, sql, *values, rows=rows)
            if not self._depth:
                self._refuge.keep()

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._refuge.noticing():
            return super()._select(sql, *values)


# The ledger of slurm-elasticd as the other service has it: now away, later another one.


AGAIN = 5.0
"""Seconds between two tries to open it."""
SHORT = 1.0
"""Seconds to wait for a lock then: jobs must not wait for it."""


class Followed(Ledger):
    """sqlite3.Error where there is none at the moment, as after slurm-elasticd has set a damaged
    one aside; the next call looks again. ConfigError is that of a file of a newer release.

    Opened while its disk may only be read, sqlite never writes it, whatever becomes of the disk: it
    is opened anew then.
    """

    def __init__(self, path: Path) -> None:
        Store.__init__(self, sqlite3.connect(":memory:", check_same_thread=False))
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._again = float("-inf")
        self._reads_only = False
        with contextlib.suppress(sqlite3.Error), self._lock:
            self._open()

    def _look_again(self) -> None:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(f"there is no ledger at the moment: {error}") from error
        anew = self._reads_only and time.monotonic() >= self._again
        if anew or (found.st_dev, found.st_ino) != self._identity:
            self._open()

    def _open(self) -> None:
        if time.monotonic() < self._again:
            raise sqlite3.OperationalError("the ledger could not be opened just now")
        self._again = time.monotonic() + AGAIN
        self._db.close()  # first: what it has open of the file a second one would share with it
        self._identity, self._reads_only = None, False
        try:
            require_file(self._path)  # slurm-elasticd makes it again
            connection = open_writer(self._path, LEDGER, timeout=SHORT)
            wait_as_usual(connection)
            found = os.stat(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(f"the ledger cannot be opened: {error}") from error
        self._use(connection)
        self._identity = (found.st_dev, found.st_ino)
        self._again = float("-inf")

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if kind_of(error) is Kind.READ_ONLY and not self._reads_only:
                self._reads_only, self._again = True, time.monotonic() + AGAIN
            raise

    @contextlib.contextmanager
    def _transaction(self, *changes: str | None) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._look_again()
            with self._noticing(), super()._transaction(*changes) as db:
                yield db

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            self._look_again()
            with self._noticing():
                return super()._select(sql, *values)
