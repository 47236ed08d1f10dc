"""How much data a job says that it moves, and what that costs."""

from __future__ import annotations

import math

import pytest

from slurm_elastic.policies.launch.job_data import NO_DATA, JobData, counted_data, data_of
from slurm_elastic.policies.launch.pool_order import TrafficTerms


@pytest.mark.parametrize(
    ("comment", "gb_in", "gb_out"),
    [
        ("data=120G", 120.0, 120.0),
        ("ckpt=criu,limit data=120G/5G", 120.0, 5.0),
        ("x;data=500M;y", 0.5, 0.5),
        ("data=1.5T/0G", 1500.0, 0.0),
    ],
)
def test_a_comment_says_how_much(comment: str, gb_in: float, gb_out: float) -> None:
    assert data_of(comment) == JobData(gb_in=gb_in, gb_out=gb_out)


@pytest.mark.parametrize("comment", ["", "data=/scratch/set", "mydata=5G", "data=", "meta data"])
def test_words_of_the_users_own_are_none(comment: str) -> None:
    assert data_of(comment) is NO_DATA


@pytest.mark.parametrize("comment", ["data=120", "data=120GB", "data=1G/2G/3G", "data=1G/x"])
def test_a_size_that_cannot_be_read_is_told(comment: str) -> None:
    with pytest.raises(ValueError, match="expected data=SIZE or data=IN/OUT"):
        data_of(comment)
    assert counted_data(comment) is NO_DATA


def test_traffic_costs_money_and_time() -> None:
    terms = TrafficTerms(price_in=0.01, price_out=0.09, bandwidth=1000.0)
    data = JobData(gb_in=100.0, gb_out=50.0)
    assert terms.dollars(data) == pytest.approx(1.0 + 4.5)
    assert terms.seconds(data) == pytest.approx(1200.0)
    assert TrafficTerms().seconds(data) == 0.0
    assert TrafficTerms(bandwidth=math.inf).dollars(data) == 0.0
