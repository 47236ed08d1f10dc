"""What was written in memory meets what others have written to the disk meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from slurm_elastic.state.store import view
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.view import Schema

_COUNTERS = "counters"


class Merge:
    """``base`` has what the memory began with, which is nothing where nothing could be read, and
    ``disk`` what is there now. Of a row in both, what we have changed counts: where others have
    changed the same or the memory did not know it, for the columns ``newer`` alone.
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
                rows = [self._merged(fact.put, row) for row in fact.rows]
                found.append(Fact(put=fact.put, rows=rows))
        return found

    def _key(self, table: str, row: dict[str, Any]) -> tuple[object, ...]:
        return view.key_of(self._schema, table, row)

    def _merged(self, table: str, ours: dict[str, Any]) -> dict[str, Any]:
        theirs = view.row_like(self._disk, self._schema, table, ours)
        if not theirs or self._key(table, ours) in self._gone:
            return ours
        base = view.row_like(self._base, self._schema, table, ours)
        if table == _COUNTERS:
            return theirs | {"value": theirs["value"] + ours["value"] - base.get("value", 0)}
        newer = self._schema.newer.get(table, ())
        return theirs | {
            name: value
            for name, value in ours.items()
            if (value != base[name] and (name in newer or base[name] == theirs[name]) if base
                else name in newer and value is not None)
        }  # fmt: skip
