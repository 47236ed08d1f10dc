"""The ledger of slurm-elasticd as the other service has it: now away, later another one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.ledger import Ledger
from slurm_elastic.ledger.schema import LEDGER
from slurm_elastic.store.files import BUSY_TIMEOUT, open_writer
from slurm_elastic.store.store import Store
from slurm_elastic.store.trouble import Kind, kind_of

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
        with contextlib.suppress(sqlite3.Error):
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
            connection = open_writer(self._path, LEDGER, timeout=SHORT)
            connection.execute(f"pragma busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
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
