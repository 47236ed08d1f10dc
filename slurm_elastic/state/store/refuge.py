"""A file of ours and, while it cannot be used, the memory that stands in for it.

All that can be read of the file goes over into memory, and all changes there back into the file
once that can be used again (``moving``). A file that sqlite calls damaged, or no database, is set
aside first and a new one made; one that is locked, or on a full disk, is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.state import statedir
from slurm_elastic.state.store import files
from slurm_elastic.state.store.lately import Lately
from slurm_elastic.state.store.moving import Also, Rows, Table, copied, merge, past, put, walk
from slurm_elastic.state.store.trouble import (
    ENOUGH,
    LEAST,
    Kind,
    Trouble,
    kind_of,
    require_room,
    trouble_of,
)

log = logging.getLogger(__name__)


AGAIN = 10.0
"""Seconds between two looks at a file that could not be used."""
LOOK = 60.0
"""Seconds between two readings of the file itself while it is in use."""
COPY = 600.0
"""Seconds between two copies of the file, for what is past."""
SHORT = 1000
"""Milliseconds to wait for a lock where the file is only looked at."""
TROUBLES = (sqlite3.Error, OSError)


class Refuge:
    """Keeps no lock: its owner calls it under its own. ``db`` is what to read and write; ``mode``
    is what the log calls the time without the file, and ``means`` what that means for others.
    """

    def __init__(
        self,
        path: Path,
        schema: files.Schema,
        tables: tuple[Table, ...],
        now: Callable[[], float],
        monotonic: Callable[[], float],
        mode: str,
        means: str,
        also: Also | None = None,
    ) -> None:
        self._path, self._schema, self._tables = path, schema, tables
        self._kept = _copy_of(path)
        self._now, self._monotonic = now, monotonic
        self._mode, self._means, self._also = mode, means, also
        self._had: Rows = {}
        self._damage: sqlite3.DatabaseError | None = None
        self._again = float("-inf")
        self._look = self._next_copy = monotonic() + LOOK
        self._orders: list[tuple[object, ...]] | None = None
        self.trouble: Trouble | None = None
        self.since = 0.0
        self._lately = Lately(path, schema, tables)
        try:
            require_file(path)
            connection = files.open_writer(path, schema)
            self._lately.watch(connection)
            self._take(connection)
        except TROUBLES as error:
            self._go_over(error, self._reader())

    def check(self) -> None:
        """Go over to memory where the file cannot be used, and back where it can."""
        if self.trouble is not None:
            self._try_to_return()
            return
        try:
            if self._damage is not None:
                raise self._damage
            self._require_same_file()
            require_room(self._path.parent, LEAST)
            self._read_file()
        except TROUBLES as error:
            self.give_up(error)

    def keep(self) -> None:
        """Write the last commit to the disk a second time, as far as a copy would lack it."""
        if self.trouble is None:
            self._lately.write(self.db)

    def give_up(self, error: Exception) -> None:
        """The file has failed with ``error``: go on in memory."""
        if self.trouble is None:
            self._go_over(error, self.db)

    @contextlib.contextmanager
    def noticing(self) -> Iterator[None]:
        """Whichever thread meets damage first: the next ``check`` acts on it."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if self.trouble is None and trouble_of(error, self._path).kind is Kind.CORRUPT:
                self._damage = error
            raise

    def _take(self, connection: sqlite3.Connection) -> None:
        found = os.stat(self._path)  # first: where it is gone again, what is in use stays
        self.db, self._identity = connection, (found.st_dev, found.st_ino)

    def _require_same_file(self) -> None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError as error:
            raise files.lost(self._path) from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise files.lost(self._path)

    def _read_file(self) -> None:
        """Read what is on the disk, with a connection of its own: ours would answer from its cache
        for as long as nobody else writes. Only damage counts: a lock is met by the next write.
        """
        try:
            news = self._has_orders()
            if not news and self._monotonic() < self._look:
                return
            self._look = self._monotonic() + LOOK
            with contextlib.closing(files.open_reader(self._path, self._schema)) as reader:
                walk(reader, self._tables, self._now())
                self._copy(reader, at_once=news)
        except sqlite3.Error as error:
            if trouble_of(error, self._path).kind is Kind.CORRUPT:
                raise
        except SlurmElasticError as error:
            log.debug("the file is not read: %s", error)

    def _has_orders(self) -> bool:
        """Whether the last copy lacks something of the tables that are copied ``at_once``. A new
        process makes one: the last may have died before it wrote down what it had just committed.
        """
        tables = [table.name for table in self._tables if table.at_once]
        rows = [tuple(row) for name in tables for row in self.db.execute(f"select * from {name}")]
        before, self._orders = self._orders, rows
        return bool(tables) and rows != before

    def _copy(self, reader: sqlite3.Connection, *, at_once: bool) -> None:
        """Keep what is past beside the file, which may be damaged one day."""
        is_due = at_once or self._monotonic() >= self._next_copy
        if not is_due or not any(table.past for table in self._tables):
            return
        self._next_copy = self._monotonic() + COPY
        try:
            for left in self._kept.parent.glob(f".{self._kept.name}.*"):
                left.unlink(missing_ok=True)  # a copy that a crash had cut short
            require_room(self._path.parent, ENOUGH + self._path.stat().st_size)
            with writing.draft(self._kept, mode=statedir.FILE) as draft:
                with contextlib.closing(sqlite3.connect(draft)) as target:
                    reader.backup(target)
                os.replace(draft, self._kept)
            writing.sync_directory(self._path.parent)
            self._lately.forget()
        except TROUBLES as error:
            log.warning("no copy of %s can be kept: %s", self._path, error)

    def _past(self) -> Rows:
        """The rows of the last copy, with those written down since."""
        rows: Rows = {}
        try:
            with contextlib.closing(files.open_reader(self._kept, self._schema)) as copy:
                rows = past(copy, self._tables, self._now())
        except (*TROUBLES, SlurmElasticError) as error:
            log.warning("what was over at the last copy is not known: %s", error)
        return self._lately.restored(rows, self._now())

    def _reader(self) -> sqlite3.Connection | None:
        """The file for reading, where that is still possible."""
        with contextlib.suppress(Exception):  # whatever it is, there is nothing to read then
            return files.open_reader(self._path, self._schema)
        return None

    def _go_over(self, error: Exception, source: sqlite3.Connection | None) -> None:
        trouble = self._trouble_of(error)
        rows: Rows = {}
        whole = False
        if source is not None:
            rows, whole = copied(source, self._tables, self._now(), SHORT)
            with contextlib.suppress(sqlite3.Error):
                source.close()
        if not whole and trouble.kind in (Kind.CORRUPT, Kind.LOST):
            for name, old in self._past().items():
                rows[name] = old | rows.get(name, {})
        memory = files.open_memory(self._schema)
        put(memory, rows)
        # A file that is made anew lacks all of it; one that is there still has what was read of it.
        anew = trouble.kind in (Kind.CORRUPT, Kind.LOST)
        self._had = {} if anew or not whole else rows
        self.db, self.trouble, self._damage = memory, trouble, None
        self.since = self._now()
        self._again = self._monotonic() + (0.0 if anew else AGAIN)
        self._say(trouble)

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
            self._still(error)
            return
        memory = self.db
        try:
            self._lately.watch(connection)
            merge(memory, connection, self._tables, self._had, self._also)
            files.wait_as_usual(connection)
            self._take(connection)
        except TROUBLES as error:
            connection.close()
            self._still(error)
            return
        memory.close()
        log.warning("%s is used again after %.0f s", self._path, self._now() - self.since)
        self.trouble, self._had = None, {}

    def _still(self, error: Exception) -> None:
        trouble = self._trouble_of(error)
        if self.trouble is None or trouble.kind is not self.trouble.kind:
            self._say(trouble)
        self.trouble = trouble

    def _say(self, trouble: Trouble) -> None:
        log.error("%s: %s; %s; do: %s", self._mode, trouble.what, self._means, trouble.remedy)

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
        log.error("the damaged %s was set aside as %s", self._schema.name, aside)
        self._had = {}
        return self._open()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            set_aside(self._path, self._now())  # a -wal without its file
            self._had = {}
        return files.open_writer(self._path, self._schema, timeout=SHORT / 1000)


def require_file(path: Path) -> None:
    """LostFileError where only its copy is there: a new one would know nothing of what that has."""
    if not path.exists() and _copy_of(path).exists():
        raise files.lost(path)


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.kept")


# A damaged file is put beside, under its name with a date, never deleted.


_BESIDE = ("-wal", "-shm")


def is_damaged(connection: sqlite3.Connection) -> bool:
    """Whether sqlite itself says so: an error alone may have been the disk's of that moment."""
    try:
        row = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return kind_of(error) is Kind.CORRUPT
    return row is not None and row[0] != "ok"


def set_aside(path: Path, now: float) -> Path | None:
    """Rename the file and what sqlite has left beside it; None where there was none of them.

    The file itself goes last: a new one that found an old ``-wal`` would take its pages for its
    own. OSError passes.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    there = [p for s in (*_BESIDE, "") if (p := path.with_name(path.name + s)).exists()]
    if not there:
        return None
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while any(aside.with_name(aside.name + s).exists() for s in (*_BESIDE, "")):
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for one in there:
        os.rename(one, aside.with_name(aside.name + one.name[len(path.name) :]))
    writing.sync_directory(path.parent)
    return aside
