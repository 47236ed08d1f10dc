"""sqlite for threads of which one runs at a time: whoever finds a file locked gives way, and each
statement is a place where another thread may come first, or the service be killed.
"""

from __future__ import annotations

import enum
import functools
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from slurm_elastic.state.store.journal import NOWHERE, Journal, identity
from tests.chaos import scheduler
from tests.chaos.scheduler import Scheduler, Task

_WRITES = ("insert", "update", "delete", "create", "alter", "vacuum", "drop", "replace")


Opened = tuple[object, ...]
"""How a file was opened, and which files that were."""


class Files:
    """Who writes to which file, and the open connections and journals of each owner.

    Connections that only read are kept when they are closed, for whoever opens the same files in the
    same way: services look at their files again and again, and sqlite takes longer to read the
    schema than to answer.
    """

    def __init__(self, sched: Scheduler) -> None:
        self.sched = sched
        self.writers: dict[str, object] = {}
        self.open: list[Connection] = []
        self.journals: WeakKeyDictionary[Journal, str] = WeakKeyDictionary()
        self._waiting: list[Task] = []
        self._kept: dict[str, list[Connection]] = {}

    def close(self, owner: str) -> None:
        """As the end of a process does: what was not committed is gone."""
        for path in list(self._kept):
            self.forget(path)
        for connection in [c for c in self.open if c.owner == owner]:
            connection.opened = None
            connection.close()
        for journal in [j for j, of in self.journals.items() if of == owner]:
            journal.close()

    def keep(self, connection: Connection) -> bool:
        """Whether it is kept: nothing is under way in it, and its files are what they were."""
        opened = connection.opened
        if opened is None or connection.in_transaction or opened != opened_as(*opened[:2]):
            return False
        self._kept.setdefault(connection.path, []).append(connection)
        return True

    def again(self, path: str, opened: Opened | None) -> Connection | None:
        """A kept connection, which reads all pages from the files again."""
        kept = self._kept.get(path)
        if opened is None or not kept:
            return None
        if kept[-1].opened != opened:
            self.forget(path)
            return None
        sqlite3.Connection.execute(kept[-1], "pragma shrink_memory")
        return kept.pop()

    def forget(self, path: str) -> None:
        """Close what is kept: the last connection that writes tidies up, and damage is found."""
        for connection in self._kept.pop(path, ()):
            connection.really_close()

    def take(self, path: str, who: object, patience: float) -> None:
        """sqlite's error where another one writes for so long (s)."""
        until = self.sched.now + patience
        while self.writers.get(path, who) is not who:
            if self.sched.now >= until:
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            self._waiting.append(self.sched.current)
            self.sched.block(until - self.sched.now)
        self.writers[path] = who

    def give(self, path: str, who: object) -> None:
        if self.writers.get(path) is who:
            del self.writers[path]
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                self.sched.wake(task)


class Kind(enum.Enum):
    """What a statement is to ``Files``."""

    READS = "reads"
    BEGINS = "begins"
    WRITES = "writes"
    SETS_PATIENCE = "sets the patience"


@functools.cache
def _kind(sql: str) -> Kind:
    word = sql.lstrip()[:12].lower()
    if word.startswith("pragma busy_") or sql.startswith("pragma busy_timeout"):
        return Kind.SETS_PATIENCE
    if word.startswith("begin"):
        return Kind.BEGINS
    return Kind.WRITES if word.startswith(_WRITES) else Kind.READS


class Connection(sqlite3.Connection):
    """Its own time-out is virtual."""

    files: Files
    path = ""
    owner = ""
    patience = 10.0
    opened: Opened | None = None

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        if self.path in ("", ":memory:"):
            return super().execute(sql, values)
        if not self._may_run(sql):
            return super().execute("select 1")
        try:
            return super().execute(sql, values)
        finally:
            if not self.in_transaction:
                self.files.give(self.path, self)

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
        if self.path in ("", ":memory:"):
            return super().executemany(sql, values)
        self._may_run(sql)
        try:
            return super().executemany(sql, values)
        finally:
            if not self.in_transaction:
                self.files.give(self.path, self)

    def _may_run(self, sql: str) -> bool:
        """Give way first, and wait for whoever writes. False for a time-out, which is virtual."""
        self.files.sched.pause()
        kind = _kind(sql)
        if kind is Kind.READS:
            return True
        if kind is Kind.SETS_PATIENCE:
            self.patience = float(sql.partition("=")[2]) / 1000
            return False
        if kind is Kind.BEGINS or not self.in_transaction:
            self.files.take(self.path, self, self.patience)
        return True

    def close(self) -> None:
        if self in self.files.open:
            self.files.open.remove(self)
        if not self.files.keep(self):
            self.files.forget(self.path)
            super().close()
        self.files.give(self.path, self)

    def really_close(self) -> None:
        super().close()


def opened_as(name: str, path: str) -> Opened | None:
    """None for a file that is not there, or that is opened for more than reading."""
    if not name.endswith("?mode=ro") or (file := identity(Path(path))) == NOWHERE:
        return None
    return name, path, file, identity(Path(f"{path}-wal")), identity(Path(f"{path}-shm"))


class Sqlite(ModuleType):
    """In place of the module in those of the product that open files."""

    def __init__(self) -> None:
        super().__init__("sqlite3")
        self.files: Files

    def use(self, sched: Scheduler) -> Files:
        self.files = Files(sched)
        return self.files

    def connect(self, name: str, **settings: Any) -> Connection:
        patience = float(settings.pop("timeout", 5.0))
        path = name.partition("?")[0].removeprefix("file:")
        opened = opened_as(name, path)
        made = self.files.again(path, opened)
        if made is None:
            made = sqlite3.connect(name, timeout=0.0, factory=Connection, **settings)
        made.files, made.patience, made.path = self.files, patience, path
        made.opened = opened
        made.owner = scheduler._scheduler.current.owner
        if made.path != ":memory:":
            self.files.open.append(made)
        return made

    def own(self, journal: Journal) -> None:
        """It ends with whoever opens it."""
        self.files.journals[journal] = scheduler._scheduler.current.owner

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)
