"""Forecasts of starts are scored against what the same history came to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.price import MONTHS, forecasts
from benchmarks.traces import history
from slurm_elastic.simulate.histories import swf


def test_a_forecast_by_habits_errs_less_than_one_by_limits() -> None:
    month = replace(MONTHS[1], every=60)
    path = history(month.history)
    if path is None:
        pytest.skip("the history is not at hand ($SLURM_ELASTIC_DATA)")
    found = list(forecasts(swf.load(path).jobs, month))
    assert len(found) > 50
    ours = sum(abs(one.was - one.told[len(one.told) // 2]) for one in found)
    assert ours < 0.8 * sum(abs(one.was - one.limits) for one in found)
    assert sum(one.told[0] <= one.was <= one.told[-1] for one in found) > 0.75 * len(found)
