"""Intervals of plan policy against weeks that were held back."""

from __future__ import annotations

import pytest

from benchmarks.held_back import OWN, PART, Played, chosen, held_back
from benchmarks.held_back import main as bench
from benchmarks.traces import VARIABLE, history
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.certainty import Week


def test_as_many_weeks_that_followed_are_looked_up() -> None:
    """The same saving each week lies within; a wait that grows when nobody looks any more does not."""
    other = Week(jobs=10, waited=0, cost=2.0)
    calm = [(Week(jobs=10, waited=0, cost=1.0), other)] * 8
    later = [(Week(jobs=10, waited=9000, cost=1.0), other)] * 8
    assert list(held_back(calm + calm, 8)) == [(True, True)]
    assert list(held_back(calm + later, 8)) == [(True, False)]
    assert list(held_back(calm + later + later, 8))[-1] == (True, True)
    assert list(held_back(calm, 8)) == []


def played(*weeks: tuple[int, float]) -> Played:
    """A policy with these seconds waited and dollars of each week; other figures are some."""
    pool = PoolModel(name="rack", machines=1, standing=1, public=False)
    some = simulate(Jobs([Job(1, 0, 1, 1, 1)]), Scenario(pools=(pool,))).figures
    return Played(some, [Week(jobs=10, waited=waited, cost=cost) for waited, cost in weeks])


def test_the_choice_is_made_from_the_weeks_before_and_looked_up_in_those_that_follow() -> None:
    """The quick one is cheap for eight weeks only, the slow one always: who chooses the cheapest
    takes the first and finds its saving gone, and later takes the other one.
    """
    turned = [(0, 0.5)] * 8 + [(0, 3.0)] * 16
    found = {
        OWN: played(*[(0, 2.0)] * 24),
        "quick": played(*turned),
        "slow": played(*[(5000, 1.0)] * 24),
    }
    told = list(chosen(found, "cheapest", 8))
    assert (told[0], told[-1]) == ((False, True), (True, True))


def test_where_nothing_else_is_chosen_no_interval_is_looked_up() -> None:
    found = {OWN: played(*[(0, 1.0)] * 16), "dear": played(*[(9, 2.0)] * 16)}
    assert list(chosen(found, "cheapest", 8)) == list(chosen(found, "nearest", 8)) == []


@pytest.mark.release
def test_most_of_what_followed_on_a_public_history_lies_within() -> None:
    name = "KTH-SP2-1996-2.1-cln"
    if history(name) is None:
        pytest.skip(f"{name} is not at hand (${VARIABLE})")
    rows = bench(["--history", name]).rows
    goals = [row for row in rows if row.goal]
    assert len(goals) == 2
    assert all(row.ok and row.ours >= PART for row in goals)
    assert any(row.case.startswith("chosen of 7, cheapest: waits within") for row in rows)
