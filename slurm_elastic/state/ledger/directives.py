"""The ledger's rows of operators' directives at run time."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from slurm_elastic.model.directive import Directive, Word
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import to_json

DIRECTIVE_COLUMNS = "word, who, since, starts, until, reason"


def directive_from(row: sqlite3.Row) -> Directive:
    """A directive row as a value."""
    word: Word = msgspec.json.decode(row["word"], type=Word)
    names = ("number", "who", "since", "starts", "until", "reason")
    return Directive(word=word, **{name: row[name] for name in names})


TABLES: Mapping[str, Table] = {
    "directives": ("select * from directives order by number", directive_from)
}
_LAST = """
    select max(coalesce((select max(number) from directives), 0),
        coalesce((select at from settled where what = 'directives'), 0))
"""


class Directives:
    """The rows of operators' orders. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def give(self, directive: Directive) -> Directive:
        """Record a directive; return it with its number, which no other directive ever had."""
        with self._store.transaction("directives") as db:
            # The table ``settled`` has the last number, because ended directives have no row. The
            # time is a lower bound for a ledger in memory, which may lack both.
            (last_number,) = db.execute(_LAST).fetchone()
            number = max(int(last_number) + 1, int(directive.since))
            sql = (
                f"insert into directives (number, {DIRECTIVE_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)"
            )
            one = directive
            values = (one.who, one.since, one.starts, one.until, one.reason)
            self._store.change(sql, number, to_json(one.word), *values)
            self._store.change("insert or replace into settled values ('directives', ?)", number)
        return msgspec.structs.replace(directive, number=number)

    def all(self) -> tuple[Directive, ...]:
        """All directives not ended yet, in force or not, in the order of their numbers."""
        return self._store.tables("directives")[0]

    def progress(self, number: int, word: Word) -> bool:
        """Record how far the directive is, which ``word`` contains; return whether it exists."""
        with self._store.transaction("directives"):
            sql = "update directives set word = ? where number = ?"
            return bool(self._store.change(sql, to_json(word), number))

    def shorten(self, number: int, until: float) -> None:
        """Let the directive end at ``until`` (Unix time)."""
        with self._store.transaction("directives"):
            self._store.change("update directives set until = ? where number = ?", until, number)

    def end(self, number: int) -> bool:
        """Delete the directive; return whether it existed."""
        with self._store.transaction("directives"):
            return bool(self._store.change("delete from directives where number = ?", number))
