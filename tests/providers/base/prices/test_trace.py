"""Price traces in the forms that the archives have."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.providers.base.prices.trace import PriceTrace, Series, load_trace
from slurm_elastic.sandbox.ec2.prices import SHIPPED, SpotPrices, shipped


def test_one_offers_file_is_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "m3.medium_us-east-1a_2015.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write(
            "timestamp,price_usd_per_hour\n"
            "2015-03-12 10:00:00+00:00,0.2\n2015-03-11 10:00:00+00:00,0.1\n"
        )
    trace = load_trace(path)
    assert set(trace.series) == {("m3.medium", "us-east-1a")}
    assert trace.series["m3.medium", "us-east-1a"].prices == (0.1, 0.2)
    assert trace.end - trace.start == 86400


def test_a_file_of_many_offers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(
        "timestamp,az,instance_type,price\n"
        "2021-03-02T05:28:18+00:00,us-east-1b,c5.9xlarge,0.6385\n\n1614663000,z,t,1\n"
    )
    trace = load_trace(path)
    assert trace.series["c5.9xlarge", "us-east-1b"].prices == (0.6385,)
    assert trace.series["t", "z"].times == (1614663000.0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column timestamp nor price nor type nor zone"),
        ("timestamp,price\n1,2\n", "no column type nor zone"),
        ("timestamp,type,zone,price\n", "holds no price"),
        ("timestamp,type,zone,price\n1,t,z\n", "line 2: list index out of range"),
        ("timestamp,type,zone,price\nnever,t,z,1\n", "line 2: Invalid isoformat string: 'never'"),
        ("timestamp,type,zone,price\n1,t,z,cheap\n", "line 2: could not convert string"),
        ("timestamp,type,zone,price\n1,t,z,-1\n", "line 2: -1.0 is not a price"),
        ("timestamp,type,zone,price\n1,t,z,nan\n", "line 2: nan is not a price"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_trace(path)


@pytest.mark.parametrize("name", ["missing.csv", "not-gzip.csv.gz"])
def test_files_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "not-gzip.csv.gz").write_text("plain")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_trace(tmp_path / name)


def test_a_price_holds_until_the_next() -> None:
    series = Series((10.0, 20.0), (1.0, 2.0))
    assert [series.at(t)[0] for t in (0, 10, 19.9, 20, 99)] == [1, 1, 1, 2, 2]


def test_a_trace_is_replayed_at_its_speed_and_begins_again() -> None:
    trace = load_trace(SHIPPED)
    prices = SpotPrices(trace, speed=3600, now=1000.0)
    key = ("c5.large", "us-east-1a")
    series = trace.series[key]
    for seconds in (0.0, 1.0, 9.5, 22.9):
        quote = prices.quote(*key, 1000.0 + seconds)
        assert quote is not None
        assert quote.price == series.at(trace.start + seconds * 3600)[0]
        assert quote.since <= 1000.0 + seconds
    span = (trace.end - trace.start) / 3600
    again = prices.quote(*key, 1000.0 + span + 1.0)
    assert again is not None
    assert again.price == series.at(trace.start + 3600)[0]


def test_a_price_set_by_hand_holds_until_it_is_given_back() -> None:
    prices = shipped(speed=1.0, now=0.0)
    before = prices.quote("c5.large", "us-east-1a", 0.0)
    prices.fix("c5.*", "us-east-1a", 9.0, now=5.0)
    fixed = {q.type for q in prices.quotes(6.0) if q.price == 9.0}
    assert fixed == {"c5.large", "c5.xlarge"}
    prices.fix("new.type", "z", 1.0, now=5.0)
    assert prices.quote("new.type", "z", 6.0) is not None
    for pattern in ("c?.none", "[ab].none"):
        prices.fix(pattern, "z", 1.0, now=6.0)
        assert prices.quote(pattern, "z", 6.0) is None, "a pattern is no offer"
    prices.fix("*", "*", None, now=7.0)
    assert prices.quote("c5.large", "us-east-1a", 0.0) == before
    assert prices.quote("new.type", "z", 8.0) is None


def test_the_prices_before_are_told_the_newest_first() -> None:
    key = ("t9.tiny", "z")
    trace = PriceTrace({key: Series((0.0, 3600.0, 7200.0), (0.1, 0.2, 0.3))})
    prices = SpotPrices(trace, speed=3600, now=100.0)
    prices.fix(*key, 9.0, now=100.5)
    prices.fix(*key, None, now=101.5)
    prices.fix(*key, 8.0, now=101.75)

    def told(now: float) -> list[tuple[float, float]]:
        return [(quote.price, quote.since) for quote in prices.history(*key, now)]

    assert told(101.9) == [(8.0, 101.75), (0.2, 101.5), (9.0, 100.5), (0.1, 100.0)]
    assert told(101.6) == [(0.2, 101.5), (9.0, 100.5), (0.1, 100.0)]
    prices.fix(*key, None, now=101.8)
    assert told(101.9)[:2] == [(0.2, 101.8), (8.0, 101.75)]


def test_a_price_of_another_trace_is_not_told() -> None:
    key = ("t9.tiny", "z")
    prices = SpotPrices(PriceTrace({key: Series((0.0,), (0.1,))}), speed=1.0, now=0.0)
    prices.fix(*key, 9.0, now=1.0)
    prices.replay(load_trace(SHIPPED), speed=1.0, now=2.0)
    assert prices.quote(*key, 3.0) is not None, "set by hand"
    prices.fix("*", "*", None, now=4.0)
    assert prices.quote(*key, 5.0) is None


def test_the_shipped_day_reaches_the_on_demand_price_as_ec2s_does_and_is_mostly_below() -> None:
    prices = load_trace(SHIPPED).series["c5.large", "us-east-1a"].prices
    assert max(prices) == 0.085, "spot is never dearer there"
    assert sorted(prices)[len(prices) // 2] < 0.05
