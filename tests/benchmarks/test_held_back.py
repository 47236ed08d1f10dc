"""Intervals of plan policy against weeks that were held back."""

from __future__ import annotations

import pytest

from benchmarks.held_back import PART, held_back
from benchmarks.held_back import main as bench
from benchmarks.traces import VARIABLE, history
from slurm_elastic.simulate.comparison import Week


def test_as_many_weeks_that_followed_are_looked_up() -> None:
    """The same saving each week lies within; a wait that grows when nobody looks any more does not."""
    other = Week(jobs=10, waited=0, cost=2.0)
    calm = [(Week(jobs=10, waited=0, cost=1.0), other)] * 8
    later = [(Week(jobs=10, waited=9000, cost=1.0), other)] * 8
    assert list(held_back(calm + calm, 8)) == [(True, True)]
    assert list(held_back(calm + later, 8)) == [(True, False)]
    assert list(held_back(calm + later + later, 8))[-1] == (True, True)
    assert list(held_back(calm, 8)) == []


def test_most_of_what_followed_on_a_public_history_lies_within() -> None:
    name = "KTH-SP2-1996-2.1-cln"
    if history(name) is None:
        pytest.skip(f"{name} is not at hand (${VARIABLE})")
    rows = {row.case: row for row in bench(["--history", name]).rows if row.goal}
    assert len(rows) == 2
    assert all(row.ok and row.ours >= PART for row in rows.values())
