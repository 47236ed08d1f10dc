"""sqlite for threads of which one runs at a time: whoever finds a file locked gives way, and each
statement is a place where another thread may come first, or the service be killed.
"""

from __future__ import annotations

import sqlite3
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from slurm_elastic.state.store.journal import Journal
from tests.chaos import scheduler
from tests.chaos.scheduler import Scheduler, Task

_WRITES = ("insert", "update", "delete", "create", "alter", "vacuum", "drop", "replace")


class Files:
    """Who writes to which file, and the open connections and journals of each owner."""

    def __init__(self, sched: Scheduler) -> None:
        self.sched = sched
        self.writers: dict[str, object] = {}
        self.open: list[Connection] = []
        self.journals: WeakKeyDictionary[Journal, str] = WeakKeyDictionary()
        self._waiting: list[Task] = []

    def close(self, owner: str) -> None:
        """As the end of a process does: what was not committed is gone."""
        for connection in [c for c in self.open if c.owner == owner]:
            connection.close()
        for journal in [j for j, of in self.journals.items() if of == owner]:
            journal.close()

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


class Connection(sqlite3.Connection):
    """Its own time-out is virtual."""

    files: Files
    path = ""
    owner = ""
    patience = 10.0

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        if self.path in ("", ":memory:"):
            return super().execute(sql, values)
        return self._guarded(sql, lambda: super(Connection, self).execute(sql, values))

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
        if self.path in ("", ":memory:"):
            return super().executemany(sql, values)
        return self._guarded(sql, lambda: super(Connection, self).executemany(sql, values))

    def _guarded(self, sql: str, run: Any) -> sqlite3.Cursor:
        self.files.sched.pause()
        word = sql.lstrip()[:12].lower()
        if word.startswith("pragma busy_") or sql.startswith("pragma busy_timeout"):
            self.patience = float(sql.partition("=")[2]) / 1000
            return super().execute("select 1")
        if word.startswith("begin") or (word.startswith(_WRITES) and not self.in_transaction):
            self.files.take(self.path, self, self.patience)
        try:
            return run()
        finally:
            if not self.in_transaction:
                self.files.give(self.path, self)

    def close(self) -> None:
        super().close()
        self.files.give(self.path, self)
        if self in self.files.open:
            self.files.open.remove(self)


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
        made = sqlite3.connect(name, timeout=0.0, factory=Connection, **settings)
        made.files, made.patience = self.files, patience
        made.path = name.partition("?")[0].removeprefix("file:")
        made.owner = scheduler._scheduler.current.owner
        if made.path != ":memory:":
            self.files.open.append(made)
        return made

    def own(self, journal: Journal) -> None:
        """It ends with whoever opens it."""
        self.files.journals[journal] = scheduler._scheduler.current.owner

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)
