"""The order in which one job uses the pools of all clouds."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.misfits import TypeNotUsed
from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Usage
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.policies.launch.order_note import noted_order, with_order
from slurm_elastic.policies.launch.pool_order import (
    JobShape,
    PoolTerms,
    PricedRoom,
    cost,
    job_order,
    keys_of,
    partition_order,
    terms_of,
)
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS, Scope
from tests.policies.strategies import NOW, request

HOUR = 3600.0
SOLD_OUT = Quoted(text="sold out")
OFFER = Offer(
    cloud="aws", location=Location.PUBLIC, instance_type="m5.large", zone="a",
    market=Market.ON_DEMAND, price=0.10, cpus=2, memory=8000, on_demand_price=0.10,
)  # fmt: skip


def terms(
    cloud: str, price: float, market: Market = Market.ON_DEMAND, room: int = 99, **changes: object
) -> PoolTerms:
    location = 0.0 if cloud.startswith("own") else 1.0
    settings = {
        "pool": f"{cloud}-pool", "cloud": cloud, "partition": cloud,
        "offers": (PricedRoom(room=room, market=market, price=price),),
        "on_demand": price if market is Market.ON_DEMAND and location else math.inf,
        "keys": {"location": location, "waste": 0.0},
    }  # fmt: skip
    return PoolTerms(**{**settings, **changes})  # type: ignore[arg-type]


def clouds(
    *table: PoolTerms, machines: int = 1, ranking: tuple[str, ...] = DEFAULT_KEYS
) -> list[str]:
    job = JobShape(machines=dict.fromkeys((row.pool for row in table), machines), seconds=HOUR)
    return [row.terms.cloud for row in job_order(job, table, ranking)]


def test_the_cheaper_cloud_comes_first_in_both_orders_of_the_file() -> None:
    dear, cheap = terms("a", 0.90), terms("b", 0.05)
    assert clouds(dear, cheap) == clouds(cheap, dear) == ["b", "a"]


def test_the_files_order_decides_between_equal_prices() -> None:
    assert clouds(terms("b", 0.1), terms("a", 0.1)) == ["b", "a"]


def test_on_premises_comes_before_a_cheaper_public_cloud() -> None:
    assert clouds(terms("a", 0.0), terms("own", 5.0)) == ["own", "a"]


def test_spot_of_one_cloud_comes_before_on_demand_of_another() -> None:
    assert clouds(terms("a", 0.03), terms("b", 0.02, Market.SPOT)) == ["b", "a"]


def test_spot_that_costs_as_much_as_on_demand_elsewhere_saves_nothing() -> None:
    spot = terms("a", 0.05, Market.SPOT)
    assert clouds(spot, terms("b", 0.05)) == ["b", "a"]
    assert clouds(spot, terms("b", 0.051)) == ["a", "b"]


def test_a_cloud_that_cannot_sell_comes_last_but_before_other_locations() -> None:
    sold_out = terms("a", 0.01, unavailable=SOLD_OUT)
    assert clouds(sold_out, terms("b", 0.9)) == ["b", "a"]
    own = terms("own", 0.0, unavailable=SOLD_OUT)
    assert clouds(own, terms("b", 0.9)) == ["own", "b"]
    assert clouds(own, terms("b", 0.9), ranking=("price", "location")) == ["b", "own"]


def test_the_sites_keys_are_the_order() -> None:
    assert clouds(terms("own", 0.2), terms("a", 0.1), ranking=("price",)) == ["a", "own"]
    assert keys_of(("price", "waste")) == ("available", "price", "waste")
    assert keys_of(DEFAULT_KEYS) == ("location", "available", "market", "price", "waste")


def test_the_size_of_the_job_decides_where_the_cheap_offer_has_little_room() -> None:
    few = terms("a", 0.10)
    few = replace(few, offers=(
        PricedRoom(room=2, market=Market.ON_DEMAND, price=0.10),
        PricedRoom(room=9, market=Market.ON_DEMAND, price=0.50),
    ))  # fmt: skip
    even = terms("b", 0.20)
    assert clouds(few, even, machines=2) == ["a", "b"]
    assert clouds(few, even, machines=8) == ["b", "a"]


def test_fewer_larger_machines_may_be_cheaper() -> None:
    large, small = terms("a", 0.15), terms("b", 0.10)
    job = JobShape(machines={"a-pool": 1, "b-pool": 2}, seconds=HOUR)
    assert [row.terms.cloud for row in job_order(job, (large, small), DEFAULT_KEYS)] == ["a", "b"]


def test_the_boot_is_paid() -> None:
    slow, fast = terms("a", 0.10, boot_s=1800.0), terms("b", 0.12)
    short, long = (JobShape(machines={"a-pool": 1, "b-pool": 1}, seconds=s) for s in (600, 86400))
    assert [row.terms.cloud for row in job_order(short, (slow, fast), DEFAULT_KEYS)] == ["b", "a"]
    assert [row.terms.cloud for row in job_order(long, (slow, fast), DEFAULT_KEYS)] == ["a", "b"]
    assert cost(short, slow) == pytest.approx(0.10 * 2400 / 3600)


def test_whole_leases_are_paid() -> None:
    """A job of ten minutes pays an hour of a cloud that bills by the hour."""
    hourly, by_second = terms("a", 0.10, lease_s=HOUR), terms("b", 0.12)
    short, long = (JobShape(machines={"a-pool": 1, "b-pool": 1}, seconds=s) for s in (600, HOUR))
    assert [row.terms.cloud for row in job_order(short, (hourly, by_second), DEFAULT_KEYS)] == [
        "b", "a",
    ]  # fmt: skip
    assert [row.terms.cloud for row in job_order(long, (hourly, by_second), DEFAULT_KEYS)] == [
        "a", "b",
    ]  # fmt: skip
    assert cost(short, hourly) == pytest.approx(0.10)


def test_lost_work_counts_for_the_key_risk() -> None:
    calm = terms("a", 0.040, Market.SPOT)
    rough = terms("b", 0.035, Market.SPOT)
    rough = replace(rough, offers=(replace(rough.offers[0], lost_share=0.5),))
    assert clouds(calm, rough) == ["b", "a"]
    assert clouds(calm, rough, ranking=("location", "market", "risk")) == ["a", "b"]


def test_a_pool_that_cannot_hold_the_job_is_not_ranked() -> None:
    job = JobShape(machines={"b-pool": 1}, seconds=HOUR)
    order = job_order(job, (terms("a", 0.01), terms("b", 0.9)), DEFAULT_KEYS)
    assert [row.terms.cloud for row in order] == ["b"]


def test_a_cloud_without_an_offer_is_last() -> None:
    nothing = terms("a", 0.0, offers=(), keys={})
    assert clouds(nothing, terms("b", 0.9)) == ["b", "a"]


def test_in_a_partition_the_first_pool_that_can_sell_serves_the_job() -> None:
    first = terms("a", 0.5, pool="first")
    second, other = terms("a", 0.1, pool="second"), terms("b", 0.3)
    job = JobShape(machines={"first": 1, "second": 1, "b-pool": 1}, seconds=HOUR)
    order = partition_order(job, (first, second, other), DEFAULT_KEYS)
    assert [row.terms.pool for row in order] == ["b-pool", "first"]
    paused = replace(first, unavailable=SOLD_OUT)
    order = partition_order(job, (paused, second, other), DEFAULT_KEYS)
    assert [row.terms.pool for row in order] == ["second", "b-pool"]


def asked(*offers: Offer, scope: Scope | None = None, **settings: bool) -> PoolTerms:
    return terms_of(
        request(), "part", offers, scope or Scope(), NOW, DEFAULT_KEYS, boot_s=60.0, **settings
    )


def test_terms_have_the_offers_in_rank_order_with_their_room() -> None:
    spot = replace(OFFER, market=Market.SPOT, price=0.04, free=1)
    found = asked(OFFER, spot)
    assert [(o.market, o.price) for o in found.offers] == [
        (Market.SPOT, 0.04), (Market.ON_DEMAND, 0.10)
    ]  # fmt: skip
    assert found.offers[0].room == 1
    assert found.on_demand == 0.10
    assert found.unavailable is None
    assert found.keys["location"] == 1.0
    assert "price" not in found.keys


def test_a_cool_down_and_a_full_limit_make_a_pool_unavailable() -> None:
    cooling = Exclusion(kind=COOL_DOWN, scope=OFFER.key, until=NOW + 60, cause=SOLD_OUT)
    found = asked(OFFER, scope=Scope(exclusions=(cooling,)))
    assert "sold out" in str(found.unavailable)
    assert found.offers[0].price == 0.10, "people still see what it would cost"
    full = Scope(limits=Limits(nodes=3), usage=Usage(nodes={"": 3}))
    assert asked(OFFER, scope=full).unavailable is not None
    assert asked(OFFER, scope=full, has_idle=True).unavailable is None


def test_a_cloud_without_a_fitting_offer_is_unavailable() -> None:
    assert asked().unavailable is not None
    small = replace(OFFER, cpus=1)
    found = asked(small, has_idle=True)
    assert found.offers == ()
    assert not isinstance(found.unavailable, TypeNotUsed)
    assert found.unavailable is not None


def test_the_note_of_an_order_stands_beside_other_text() -> None:
    assert noted_order("") == noted_order("clouds=a,b") == ()
    assert noted_order("x [slurm-elastic clouds=a,b] y") == ("a", "b")
    assert with_order("", ("a", "b")) == "[slurm-elastic clouds=a,b]"
    text = with_order("theirs [slurm-elastic cost=$1.0 market=spot]", ("a", "b"))
    assert text == "theirs [slurm-elastic clouds=a,b] [slurm-elastic cost=$1.0 market=spot]"
    assert with_order(text, ("b", "a")) == text.replace("a,b", "b,a")
    assert noted_order(with_order(text, ("b", "a"))) == ("b", "a")


def test_a_job_that_outlasts_a_block_pays_the_next_offer() -> None:
    block = PricedRoom(room=4, market=Market.RESERVED, price=0.0, max_run_s=HOUR)
    after = PricedRoom(room=9, market=Market.ON_DEMAND, price=0.5)
    with_block, other = terms("a", 0.0, offers=(block, after)), terms("b", 0.3)
    machines = {"a-pool": 1, "b-pool": 1}
    for seconds, expected in ((HOUR, "a"), (HOUR + 1, "b")):
        job = JobShape(machines=machines, seconds=seconds)
        assert job_order(job, (with_block, other), DEFAULT_KEYS)[0].terms.cloud == expected
    assert cost(JobShape(machines=machines, seconds=7200.0), with_block) == pytest.approx(1.0)
