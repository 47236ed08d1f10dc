"""What was written in memory meets what others have written to the disk meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from slurm_elastic.state.store import view
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.view import Schema

_COUNTERS = "counters"
_LINE = 1000
"""Facts without keys in one line."""


class Waiting:
    """What is to be appended: of each row what was said of it last, be it said ever so often, and
    before that that it was gone; and all rows of tables that are ``numbered``.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._last: dict[tuple[object, ...], Fact] = {}
        self._numbered: list[Fact] = []

    def add(self, facts: Sequence[Fact]) -> None:
        """These, after all others."""
        for fact in facts:
            table = fact.put or fact.drop
            if table in self._schema.numbered:
                self._numbered.append(fact)
                continue
            for row in fact.rows:
                key = view.key_of(self._schema, table, row)
                self._last.pop(("put", *key), None)
                if fact.drop:
                    self._last.pop(("drop", *key), None)
                self._last["drop" if fact.drop else "put", *key] = replace(fact, rows=[row])

    def lines(self) -> list[list[Fact]]:
        """The facts of each line: all that have keys in one, as none of them may count alone."""
        some = groupby(self._last.values(), lambda fact: (fact.put, fact.drop))
        keyed = [
            Fact(put=put, drop=drop, rows=[row for fact in facts for row in fact.rows])
            for (put, drop), facts in some
        ]
        rest = [self._numbered[i : i + _LINE] for i in range(0, len(self._numbered), _LINE)]
        return [*([keyed] if keyed else []), *rest]


class Merge:
    """``base`` has what the memory began with, which is nothing where nothing could be read, and
    ``disk`` what is there now. Of a row in both, what we have changed counts: where others have
    changed the same or the memory did not know it, for the columns ``newer`` alone. A row of
    ``cleared`` that others have dropped stays away: a person has, and could not tell us.
    """

    def __init__(self, disk: sqlite3.Connection, base: sqlite3.Connection, schema: Schema) -> None:
        self._disk, self._base, self._schema = disk, base, schema
        self._gone: set[tuple[object, ...]] = set()

    def facts(self, facts: Sequence[Fact]) -> list[Fact]:
        """These as they are to be appended, in the order in which they were written."""
        found = []
        for fact in facts:
            if fact.drop:
                self._gone.update(self._key(fact.drop, row) for row in fact.rows)
                found.append(fact)
            else:
                merged = (self._merged(fact.put, row) for row in fact.rows)
                if rows := [row for row in merged if row]:
                    found.append(Fact(put=fact.put, rows=rows))
        return found

    def _key(self, table: str, row: dict[str, Any]) -> tuple[object, ...]:
        return view.key_of(self._schema, table, row)

    def _merged(self, table: str, ours: dict[str, Any]) -> dict[str, Any]:
        """As it is to be put; empty where it is not."""
        theirs = view.row_like(self._disk, self._schema, table, ours)
        if self._key(table, ours) in self._gone:
            return ours
        base = view.row_like(self._base, self._schema, table, ours)
        if not theirs:
            return {} if base and table in self._schema.cleared else ours
        if table == _COUNTERS:
            return theirs | {"value": theirs["value"] + ours["value"] - base.get("value", 0)}
        newer = self._schema.newer.get(table, ())
        return theirs | {
            name: value
            for name, value in ours.items()
            if (value != base[name] and (name in newer or base[name] == theirs[name]) if base
                else name in newer and value is not None)
        }  # fmt: skip
