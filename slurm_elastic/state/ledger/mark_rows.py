"""How the marks of the ledger become rows, and come back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple

from slurm_elastic.model.cluster import Exclusion
from slurm_elastic.model.directive import Directive, Word
from slurm_elastic.model.memory import Aside, Decision, Drained, Run


def to_json(value: object) -> str:
    """Any of our values as JSON text."""
    return msgspec.json.encode(value).decode()


def to_jsons(*values: object) -> list[str]:
    """The same of each."""
    return [msgspec.json.encode(value).decode() for value in values]


def decision_values(decisions: Sequence[Decision]) -> list[object]:
    """Values for DECISION_COLUMNS of one after the other."""
    values: list[object] = []
    for d in decisions:
        detail = None if d.detail is None else to_json(d.detail)
        values += (d.at, d.correlation, d.kind, to_json(d.subjects), d.reason, detail)
    return values


def decision_from(row: sqlite3.Row) -> Decision:
    """A decision row as a value; ``detail`` comes back as plain JSON values."""
    detail = row["detail"]
    return Decision(
        at=row["at"],
        correlation=row["correlation"],
        kind=row["kind"],
        subjects=msgspec.json.decode(row["subjects"], type=tuple[str, ...]),
        reason=row["reason"],
        detail=None if detail is None else msgspec.json.decode(detail, type=dict[str, object]),
    )


def run_row(run: Run) -> tuple[object, ...]:
    """Values for RUN_COLUMNS."""
    return (*astuple(run)[:-1], to_json(run.shares))


def run_from(row: sqlite3.Row) -> Run:
    """A row of RUN_COLUMNS as a value."""
    shares = msgspec.json.decode(row["shares"], type=tuple[tuple[str, int], ...])
    names = ("job", "begin", "end", "label", "user", "uid", "account", "partition")
    return Run(shares=shares, **{name: row[name] for name in names})


def directive_row(one: Directive) -> tuple[object, ...]:
    """Values for DIRECTIVE_COLUMNS."""
    return to_json(one.word), one.who, one.since, one.starts, one.until, one.reason


def directive_from(row: sqlite3.Row) -> Directive:
    """A directive row as a value."""
    word: Word = msgspec.json.decode(row["word"], type=Word)
    names = ("number", "who", "since", "starts", "until", "reason")
    return Directive(word=word, **{name: row[name] for name in names})


def aside_from(row: sqlite3.Row) -> Aside:
    """A row of a job set aside as a value."""
    partitions = msgspec.json.decode(row["partitions"], type=tuple[str, ...])
    names = ("job", "account", "begin", "until")
    return Aside(partitions=partitions, **{name: row[name] for name in names})


def exclusion_row(one: Exclusion) -> tuple[object, ...]:
    """Values for EXCLUSION_COLUMNS."""
    return (*astuple(one)[:-1], to_json(one.about))


def exclusion_from(row: sqlite3.Row) -> Exclusion:
    """A row of EXCLUSION_COLUMNS as a value."""
    return Exclusion(**{**dict(row), "about": tuple(msgspec.json.decode(row["about"]))})


def drained_from(row: sqlite3.Row) -> Drained:
    return Drained(**dict(row))
