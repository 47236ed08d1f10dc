"""Spot prices of a ledger's launches, as a simulation needs them."""

from __future__ import annotations

from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.simulate.studies.paid_prices import paid_prices


def bought(
    launched: float, price: float, market: Market = Market.SPOT, zone: str = "a"
) -> Instance:
    return Instance(
        id=f"i-{launched}", cloud="aws", node="pub1", generation="g", instance_type="small",
        zone=zone, market=market, price=price, state=InstanceState.RUNNING, launched=launched,
    )  # fmt: skip


def test_each_launch_sets_the_price_until_the_next_and_the_whole_time_is_covered() -> None:
    trace = paid_prices([bought(300, 0.2), bought(200, 0.1), bought(250, 0.5, zone="b")], 100, 900)
    assert trace is not None
    assert trace.series["small", "a"].times == (100, 200, 300, 900)
    assert trace.series["small", "a"].prices == (0.1, 0.1, 0.2, 0.2)
    assert trace.series["small", "b"].prices == (0.5, 0.5, 0.5)


def test_launches_before_the_time_count_and_later_ones_do_not() -> None:
    trace = paid_prices([bought(50, 0.3), bought(950, 9.0)], 100, 900)
    assert trace is not None
    assert trace.series["small", "a"].at(100) == (0.3, 100)
    assert trace.end == 900


def test_without_a_spot_machine_there_are_no_prices() -> None:
    assert paid_prices([bought(200, 0.4, Market.ON_DEMAND), bought(200, 0.0)], 100, 900) is None
