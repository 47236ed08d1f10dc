"""A ledger that goes on in memory while its file cannot be used: end-only.

What can be read of the file goes over into memory; what cannot is found again by the machines'
tags, as with any new ledger. So the daemon repairs, suspends and gives nodes back as ever. Only
``intend`` refuses: a machine whose launch is written down nowhere would be lost with the process.

Once the file can be used again it takes in what has changed meanwhile (``moving``). A file that
sqlite calls damaged, or no database, is set aside first and a new one made; one that is locked, or
on a full disk, is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_elastic.errors import EndOnlyError
from slurm_elastic.ledger import Ledger
from slurm_elastic.ledger import schema as ledger_schema
from slurm_elastic.ledger.moving import Rows, copied, merge, put
from slurm_elastic.ledger.quarantine import is_damaged, set_aside
from slurm_elastic.ledger.trouble import ENOUGH, LEAST, Kind, Trouble, require_room, trouble_of
from slurm_elastic.model import LaunchSpec

log = logging.getLogger(__name__)

AGAIN = 10.0
"""Seconds between two looks at a file that could not be used."""
SHORT = 1000
"""Milliseconds to wait for a lock where the file is only looked at."""
TROUBLES = (sqlite3.Error, OSError)


class Enduring(Ledger):
    """``check`` is to be called again and again; it changes over and back. ``end_only`` says why
    nothing may be bought, "" where all is well, and ``since`` from when on (Unix time).
    """

    def __init__(
        self,
        path: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.RLock()
        self._path, self._now, self._monotonic = path, now, monotonic
        self._had: Rows = {}
        self._damage: sqlite3.DatabaseError | None = None
        self._trouble: Trouble | None = None
        self._again = float("-inf")
        self.since = 0.0
        try:
            self._take(ledger_schema.open_writer(path, ledger_schema.LEDGER))
        except TROUBLES as error:
            self._db = ledger_schema.open_memory(ledger_schema.LEDGER)
            self._go_over(error, self._reader())

    # what the daemon asks

    @property
    def end_only(self) -> str:
        """Why machines are only ended; empty where nothing is in the way."""
        return f"end-only: {self._trouble.what}" if self._trouble else ""

    @property
    def remedy(self) -> str:
        """What a person can do about that."""
        return self._trouble.remedy if self._trouble else ""

    def intend(self, spec: LaunchSpec, request: str, now: float) -> None:
        """As the ledger's; EndOnlyError where it could not be kept."""
        with self._lock:
            if self._trouble is not None:
                raise EndOnlyError(f"{self.end_only}; nothing is bought")
            super().intend(spec, request, now)

    def check(self) -> None:
        """Go over to memory where the file cannot be used, and back where it can."""
        with self._lock:
            if self._trouble is not None:
                self._try_to_return()
                return
            try:
                if self._damage is not None:
                    raise self._damage
                self._require_same_file()
                require_room(self._path.parent, LEAST)
            except TROUBLES as error:
                self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """The file has failed with ``error``: go on in memory."""
        with self._lock:
            if self._trouble is None:
                self._go_over(error, self._db)

    # inside

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._noticing(), super()._transaction() as db:
            yield db

    def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._noticing():
            return super()._select(sql, *values)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Whichever thread meets the damage first: the next ``check`` acts on it."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if trouble_of(error, self._path).kind is Kind.CORRUPT and self._trouble is None:
                self._damage = error
            raise

    def _take(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        found = os.stat(self._path)
        self._identity = (found.st_dev, found.st_ino)

    def _require_same_file(self) -> None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError as error:
            raise ledger_schema.lost(self._path) from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise ledger_schema.lost(self._path)

    def _reader(self) -> sqlite3.Connection | None:
        """The file for reading, where that is still possible."""
        with contextlib.suppress(Exception):  # whatever it is, there is nothing to read then
            return ledger_schema.open_reader(self._path, ledger_schema.LEDGER)
        return None

    def _go_over(self, error: Exception, source: sqlite3.Connection | None) -> None:
        trouble = self._trouble_of(error)
        rows, whole = copied(source, self._now(), SHORT) if source else ({}, False)
        memory = ledger_schema.open_memory(ledger_schema.LEDGER)
        put(memory, rows)
        if source is not None:
            with contextlib.suppress(sqlite3.Error):
                source.close()
        # What is made anew lacks all of it, what is there still has what was read of it.
        anew = trouble.kind in (Kind.CORRUPT, Kind.LOST)
        self._had = {} if anew or not whole else rows
        self._db, self._trouble, self._damage = memory, trouble, None
        self.since = self._now()
        self._again = self._monotonic() + (0.0 if anew else AGAIN)
        log.error(
            "%s; nothing is bought, what Slurm has powered down is ended; do: %s",
            self.end_only, trouble.remedy,
        )  # fmt: skip

    def _trouble_of(self, error: Exception) -> Trouble:
        """Sqlite calls some full disks an I/O error."""
        trouble = trouble_of(error, self._path)
        if trouble.kind is Kind.UNUSABLE:
            try:
                require_room(self._path.parent, LEAST)
            except OSError as closer:
                return trouble_of(closer, self._path)
        return trouble

    def _try_to_return(self) -> None:
        if self._monotonic() < self._again:
            return
        self._again = self._monotonic() + AGAIN
        try:
            require_room(self._path.parent, ENOUGH)
            connection = self._usable()
        except TROUBLES as error:
            self._tell(self._trouble_of(error))
            return
        try:
            merge(self._db, connection, self._had)
            connection.execute(f"pragma busy_timeout = {int(ledger_schema.BUSY_TIMEOUT * 1000)}")
            memory = self._db
            self._take(connection)
        except TROUBLES as error:
            connection.close()
            self._tell(self._trouble_of(error))
            return
        memory.close()
        log.warning("the ledger is used again after %.0f s", self._now() - self.since)
        self._trouble, self._had = None, {}

    def _tell(self, trouble: Trouble) -> None:
        if self._trouble is None or trouble.kind is not self._trouble.kind:
            log.error("end-only: %s; do: %s", trouble.what, trouble.remedy)
        self._trouble = trouble

    def _usable(self) -> sqlite3.Connection:
        """The file opened for writing; a damaged one is set aside and made anew."""
        try:
            connection = self._open()
        except sqlite3.DatabaseError as error:
            if trouble_of(error, self._path).kind is not Kind.CORRUPT:
                raise
        else:
            if not is_damaged(connection):
                return connection
            connection.close()
        aside = set_aside(self._path, self._now())
        log.error("the damaged ledger was set aside as %s", aside)
        self._had = {}
        return self._open()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            set_aside(self._path, self._now())  # a -wal without its file
        return ledger_schema.open_writer(self._path, ledger_schema.LEDGER, timeout=SHORT / 1000)
