"""The series of a run over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.checkpoint.checkpoint import (
    FirstOf,
    OnNotice,
    Threshold,
    ThresholdStatic,
)
from slurm_elastic.simulate import series
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario

JOBS = Jobs([Job(1, 0, 100, 100, 2), Job(2, 10, 100, 100, 2), Job(3, 5000, 50, 50, 1)])
OUTCOME = simulate(
    JOBS, Scenario(pools=(PoolModel(name="p", machines=2, procs=1, price=2.0, billing=Hourly()),))
)


def test_the_queue_ends_empty_and_holds_who_waits() -> None:
    steps = series.queue(OUTCOME)
    assert max(value for _, value in steps) >= 1
    assert steps[-1][1] == 0


def test_machines_go_back_to_none_and_never_exceed_the_peak() -> None:
    steps = series.machines(OUTCOME.pools[0])
    assert max(value for _, value in steps) == OUTCOME.figures.peak
    assert steps[-1][1] == 0


def test_the_last_cost_is_the_whole_cost() -> None:
    assert series.cost(OUTCOME)[-1][1] == pytest.approx(OUTCOME.figures.cost)


def test_the_traffic_of_jobs_without_data_is_an_amount_too() -> None:
    """JSON of a run has 0.0 then, as for each other amount."""
    assert isinstance(OUTCOME.figures.traffic, float)


MARKET = SpotMarket(Curve([0, 600, 900, 6000], [0.1, 0.2, 0.4, 0.1]), bid=0.5)


def test_the_threshold_is_half_way_from_the_price_to_the_bid() -> None:
    """EC3's: at first from the price at launch, then from the mean of the last ten minutes."""
    ((text, steps),) = series.thresholds(Threshold(), MARKET)
    assert text == "threshold"
    assert [when for when, _ in steps[:4]] == [0, 600, 1200, 1800]
    expected = [(0.1 + 0.5) / 2, (0.1 + 0.5) / 2, (0.3 + 0.5) / 2, (0.4 + 0.5) / 2]
    assert [limit for _, limit in steps[:4]] == pytest.approx(expected)


def test_every_threshold_of_a_policy_is_drawn_and_none_where_no_price_takes_machines() -> None:
    both = FirstOf((OnNotice(), ThresholdStatic(0.2), Threshold(period=1200)))
    found = dict(series.thresholds(both, MARKET))
    assert found["threshold_static"] == [(0, pytest.approx(0.4)), (6000, pytest.approx(0.4))]
    assert "threshold(period=1200)" in found
    assert series.thresholds(OnNotice(), MARKET) == []
    assert series.thresholds(both, SpotMarket(Curve.flat(0.1))) == []


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 100)), min_size=1, max_size=300),
    st.integers(2, 50),
)
def test_thinning_keeps_the_peak_and_the_end(points: list[tuple[int, float]], most: int) -> None:
    steps = sorted(dict(points).items())
    thin = series.thinned(steps, most)
    assert len(thin) <= max(most + 2, 2)
    assert max(v for _, v in thin) == max(v for _, v in steps)
    assert thin[-1] == steps[-1]
    assert [when for when, _ in thin] == sorted({when for when, _ in thin})
