"""Merge rows that were written in memory with rows that others wrote to the disk in that time."""

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


class WaitingFacts:
    """The facts to append. Of each row they contain only its last state, after its deletion if
    there was one. Of ``numbered`` tables they contain all rows.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._last: dict[tuple[object, ...], Fact] = {}
        self._numbered: list[Fact] = []

    def add(self, facts: Sequence[Fact]) -> None:
        """Add facts that were written after all earlier ones."""
        for fact in facts:
            table = fact.put or fact.drop
            if table in self._schema.numbered_tables:
                self._numbered.append(fact)
                continue
            for row in fact.rows:
                key = view.key_of(self._schema, table, row)
                self._last.pop(("put", *key), None)
                if fact.drop:
                    self._last.pop(("drop", *key), None)
                self._last["drop" if fact.drop else "put", *key] = replace(fact, rows=[row])

    def lines(self) -> list[list[Fact]]:
        """The facts of each line. All facts with keys are in one line, because a line counts as a
        whole or not at all.
        """
        groups = groupby(self._last.values(), lambda fact: (fact.put, fact.drop))
        keyed = [
            Fact(put=put, drop=drop, rows=[row for fact in facts for row in fact.rows])
            for (put, drop), facts in groups
        ]
        numbered_lines = [
            self._numbered[i : i + _LINE] for i in range(0, len(self._numbered), _LINE)
        ]
        return [*([keyed] if keyed else []), *numbered_lines]


class MemoryMerge:
    """``base`` has the rows with which the memory began (none if no row could be read), ``disk``
    the rows on the disk now. If both have a row, the columns that changed in memory win. If others
    changed the same column, or the memory did not have the row, only the columns ``newer`` win. A
    row of a ``cleared`` table that others deleted stays deleted, because a person did it.
    """

    def __init__(self, disk: sqlite3.Connection, base: sqlite3.Connection, schema: Schema) -> None:
        self._disk, self._base, self._schema = disk, base, schema
        self._gone: set[tuple[object, ...]] = set()

    def facts(self, facts: Sequence[Fact]) -> list[Fact]:
        """The merged facts, ready to append, in the order in which they were written."""
        merged_facts = []
        for fact in facts:
            if fact.drop:
                self._gone.update(self._key(fact.drop, row) for row in fact.rows)
                merged_facts.append(fact)
            else:
                merged = (self._merged(fact.put, row) for row in fact.rows)
                if rows := [row for row in merged if row]:
                    merged_facts.append(Fact(put=fact.put, rows=rows))
        return merged_facts

    def _key(self, table: str, row: dict[str, Any]) -> tuple[object, ...]:
        return view.key_of(self._schema, table, row)

    def _merged(self, table: str, memory_row: dict[str, Any]) -> dict[str, Any]:
        """The merged row; empty if nothing must be written."""
        disk_row = view.row_like(self._disk, self._schema, table, memory_row)
        if self._key(table, memory_row) in self._gone:
            return memory_row
        base_row = view.row_like(self._base, self._schema, table, memory_row)
        if not disk_row:
            return {} if base_row and table in self._schema.clearable_tables else memory_row
        if table == _COUNTERS:
            return disk_row | {
                "value": disk_row["value"] + memory_row["value"] - base_row.get("value", 0)
            }
        newer = self._schema.newer_wins.get(table, ())
        return disk_row | {
            name: value
            for name, value in memory_row.items()
            if (value != base_row[name] and (name in newer or base_row[name] == disk_row[name])
                if base_row
                else name in newer and value is not None)
        }  # fmt: skip
