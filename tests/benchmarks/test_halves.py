"""Ranges of plan policy against halves of histories."""

from __future__ import annotations

import random

import pytest

from benchmarks.halves import Known, Replayed, factors, known, rows
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.certainty import Choice, Week

OWN = "slurm+idle(600)"


def half(draw: random.Random, **costs: float) -> dict[str, Replayed]:
    """Nine weeks under Slurm's own policy, and under others that cost these shares of it."""
    pool = PoolModel(name="rack", machines=1, standing=1, public=False)
    figures = simulate(Jobs([Job(1, 0, 1, 1, 1)]), Scenario(pools=(pool,))).figures
    weeks = [Week(jobs=100, waited=9000, cost=100.0)] * 9
    dear = {
        name: [
            Week(jobs=100, waited=9000 + draw.randrange(900), cost=share * draw.uniform(90, 110))
            for _ in range(9)
        ]
        for name, share in costs.items()
    }
    return {name: Replayed(figures, of) for name, of in ({OWN: weeks} | dear).items()}


def comparisons(seed: int, **costs: float) -> list[Known]:
    draw = random.Random(seed)
    return list(known([half(draw, **costs) for _ in range(12)]))


def test_each_half_is_once_the_known_and_once_the_unseen_one() -> None:
    draw = random.Random(1)
    found = list(known([half(draw, cheap=0.5), half(draw, cheap=0.8)]))
    named = [one for one in found if one.kind == "named"]
    assert [one.errors.saving for one in named] == pytest.approx([0.3, 0.3], abs=0.05)
    assert {one.kind for one in found} >= {"named", "max-wait"}


def test_ranges_by_the_factors_of_other_histories_hold_in_weeks_of_the_same_kind() -> None:
    cases = {name: comparisons(seed, cheap=0.6, dear=1.2) for seed, name in enumerate("abc")}
    held = {row.case: row for row in rows(cases)}
    shares = [row.ours for case, row in held.items() if case.startswith("all chosen: savings")]
    assert len(shares) == 1
    assert shares[0] >= 0.88


def test_the_factor_is_the_largest_of_the_histories() -> None:
    calm, wild = comparisons(1, cheap=0.6), comparisons(2, cheap=0.6)
    draw = random.Random(3)
    wild += known([half(draw, cheap=0.5), half(draw, cheap=0.9)] * 4)
    both = factors({"calm": calm, "wild": wild}, Choice.NAMED)
    assert both.saving == factors({"wild": wild}, Choice.NAMED).saving
    assert both.saving > factors({"calm": calm}, Choice.NAMED).saving
