"""The fault matrix's table, which ``docs/faults.md`` has."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.testing.bench import Bench
from slurm_elastic.testing.matrix import CALLS, FAULTS, FOR_GOOD, HIDDEN, LOST, outcome_of

PROVIDERS = ("fake", "local", "aws", "aws fleet", "opennebula", "openstack", "docker", "libvirt")
IN_MEMORY = ("fake", "local")
BY_LOOKUP = ("opennebula", "openstack")
"""Their APIs take no token with a launch: nothing but lists tells of one without an answer."""
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
REWRITTEN = "SLURM_ELASTIC_FAULT_TABLE"
OPEN = "?"

Cell = tuple[str, str, str]


def compared(cell: Cell, outcome: str) -> str:
    """The outcome, which must be the one that the page tells of; unless the table is written anew."""
    if REWRITTEN not in os.environ:
        assert outcome == published()[cell], "docs/faults.md tells it otherwise"
    return outcome


@functools.cache
def published() -> Mapping[Cell, str]:
    """The cells of the page's table."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(table({}).splitlines()[0])
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return told("\n".join(rows))


@contextmanager
def noted() -> Iterator[dict[Cell, str]]:
    """The outcomes of a module: printed in the end, and put into the file's table."""
    found: dict[Cell, str] = {}
    yield found
    print(f"\n{table(found, [p for p in PROVIDERS if any(p == cell[0] for cell in found)])}")
    if file := os.environ.get(REWRITTEN):
        path = Path(file)
        before = told(path.read_text()) if path.exists() else {}
        path.write_text(table(before | found) + "\n")


def cells(provider: str) -> list[Any]:
    """Each call x each fault, as a test's parameters; in the first tier each fault at one call, where
    it is that of a launch alone at that, so that each cloud has each fault once. In memory all are.
    """
    calls = itertools.cycle(CALLS)
    first = {f: "launch" if f in (*FOR_GOOD, HIDDEN, LOST) else next(calls) for f in FAULTS}
    return [
        pytest.param(
            provider, call, fault,
            marks=() if provider in IN_MEMORY or first[fault] == call else pytest.mark.release,
        )
        for call in CALLS
        for fault in FAULTS
    ]  # fmt: skip


def column(*providers: str) -> pytest.MarkDecorator:
    """The parameters of the columns of these."""
    whole = [cell for provider in providers for cell in cells(provider)]
    return pytest.mark.parametrize(("provider", "call", "fault"), whole)


class Column:
    """Each fault x each call of the ``provider`` that the fixture ``bench`` is of; with ``column``."""

    def test_no_orphan_no_double_and_a_defined_state(
        self, bench: Bench, outcomes: dict[Cell, str], provider: str, call: str, fault: str
    ) -> None:
        cell = (provider, call, fault)
        outcomes[cell] = compared(cell, outcome_of(bench, call, fault))


def table(outcomes: Mapping[Cell, str], providers: Sequence[str] = PROVIDERS) -> str:
    """Markdown: a row for each call and outcome, with the faults that have it. The outcome of most
    providers comes first and names none of them if all providers are known; the others follow with
    their names.
    """
    faults_by_row: dict[tuple[str, str], list[str]] = {}
    for call, fault in itertools.product(CALLS, FAULTS):
        by_outcome: dict[str, list[str]] = {}
        for provider in providers:
            outcome = outcomes.get((provider, call, fault), OPEN)
            by_outcome.setdefault(outcome, []).append(provider)
        first, *others = sorted(by_outcome, key=lambda outcome: -len(by_outcome[outcome]))
        is_whole = OPEN not in by_outcome and tuple(providers) == PROVIDERS
        parts = [f"{outcome}: {', '.join(by_outcome[outcome])}" for outcome in others]
        named = first if is_whole else f"{first}: {', '.join(by_outcome[first])}"
        faults_by_row.setdefault((call, "; ".join([named, *parts])), []).append(fault)
    rows = [
        f"| {call} | {'; '.join(faults)} | {text} |"
        for (call, text), faults in faults_by_row.items()
    ]
    return "\n".join(["| call | fault | what happens |", "|---|---|---|", *rows])


def told(text: str) -> dict[Cell, str]:
    """The cells of such a table, those left out that are open yet."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    found: dict[Cell, str] = {}
    cells_by_fault = [
        (call, fault, text) for call, faults, text in rows[2:] for fault in faults.split("; ")
    ]
    for call, fault, outcomes in cells_by_fault:
        rest = list(PROVIDERS)
        for part in reversed(outcomes.split("; ")):
            outcome, _, names = part.partition(": ")
            providers = names.split(", ") if names else rest
            rest = [provider for provider in rest if provider not in providers]
            found |= {(provider, call, fault): outcome for provider in providers}
    return {cell: outcome for cell, outcome in found.items() if outcome != OPEN}
