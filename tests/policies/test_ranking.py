"""Ranking: what fits, in which order, with which room, and why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Usage
from slurm_elastic.model.exclusion import COOL_DOWN, NO_SPOT, Exclusion
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.model.max_price import MaxPrice
from slurm_elastic.policies.launch.ranking import (
    Scope,
    ceiling,
    market,
    rank,
    risk,
    serving,
    shortfall,
    unsold,
    used_by,
    waste,
)
from tests.policies.strategies import NOW, offers, request

OFFER = Offer(
    cloud="aws",
    location=Location.PUBLIC,
    instance_type="m5.large",
    zone="a",
    market=Market.ON_DEMAND,
    price=0.10,
    cpus=2,
    memory=8000,
    on_demand_price=0.10,
)
SPOT = replace(OFFER, market=Market.SPOT, price=0.04)


def reason(offer: Offer, scope: Scope | None = None, **pool: object) -> str:
    placement = rank(request(**pool), [offer], scope or Scope(), NOW)
    assert not placement.ranked
    return placement.rejected[0].reason


def test_on_premises_is_taken_before_a_cheaper_public_offer() -> None:
    own = replace(OFFER, location=Location.ON_PREMISES, price=9.0, zone="own", on_demand_price=None)
    placement = rank(request(), [OFFER, own, SPOT], Scope(), NOW)
    assert [r.offer for r in placement.ranked] == [own, SPOT, OFFER]


def test_reserved_spot_on_demand_then_price_then_waste() -> None:
    reserved = replace(OFFER, market=Market.RESERVED, price=0.2)
    dear_spot = replace(SPOT, price=0.05, zone="b")
    wasteful = replace(OFFER, instance_type="m5.xlarge", cpus=4)
    placement = rank(request(), [wasteful, OFFER, dear_spot, SPOT, reserved], Scope(), NOW)
    assert [r.offer for r in placement.ranked] == [reserved, SPOT, dear_spot, OFFER, wasteful]


def test_hosts_that_are_switched_off_are_filled_one_after_the_other() -> None:
    own = replace(OFFER, location=Location.ON_PREMISES, on_demand_price=None)
    hosts = {"a": 9, "b": 2, "c": 1, "d": 4}
    found = [replace(own, zone=zone, free=free) for zone, free in hosts.items()]

    def order(nodes: int) -> list[str]:
        asked = replace(request(), nodes=tuple(f"n{i}" for i in range(nodes)))
        return [r.offer.zone for r in rank(asked, found, switched, NOW).ranked]

    switched = Scope(packed_clouds=frozenset({own.cloud}))
    assert order(1) == ["c", "b", "d", "a"]
    assert order(2) == ["b", "d", "a", "c"], "one that has room for all comes first"
    assert order(9) == ["a", "d", "b", "c"]
    ranked = rank(request(), found, Scope(), NOW).ranked
    assert [r.offer.zone for r in ranked] == list("abcd"), "no host there is switched off"


def test_the_keys_are_data() -> None:
    placement = rank(request(), [SPOT, replace(OFFER, price=0.01)], Scope(), NOW, ["price"])
    assert [r.offer.market for r in placement.ranked] == [Market.ON_DEMAND, Market.SPOT]


@pytest.mark.parametrize(
    ("offer", "pool", "words"),
    [
        (replace(OFFER, cpus=1), {}, "has 1 cpus, the pool's nodes need 2"),
        (replace(OFFER, memory=900), {}, "has 900 MiB, the pool's nodes need 1000 MiB"),
        (OFFER, {"gres": {"gpu": 1}}, "has 0 gpu, the pool's nodes need 1"),
        (OFFER, {"markets": (Market.SPOT,)}, "the pool does not use the on-demand market"),
        (OFFER, {"zones": ("b",)}, "zone a is not among the pool's zones"),
        (OFFER, {"instance_types": ("c5",)}, "m5.large is not among the pool's instance types"),
        (OFFER, {"max_price": 0.05}, "costs $0.10/h, the pool pays at most $0.05/h"),
        (SPOT, {"max_price": MaxPrice(spot=0.02)}, "costs $0.04/h, the pool pays at most $0.02/h"),
        (
            SPOT,
            {"max_price": MaxPrice(spot=1.0, types={"m5.large": 0.01})},
            "costs $0.04/h, the pool pays at most $0.01/h",
        ),
        (
            SPOT,
            {"max_price": MaxPrice(of_on_demand=0.2)},
            "costs $0.04/h, the pool pays at most $0.02/h",
        ),
        (
            replace(SPOT, price=0.1),
            {},
            "spot at $0.10/h is not cheaper than on-demand at $0.10/h",
        ),
        (replace(OFFER, free=0), {}, "aws has 0 free"),
        (
            replace(OFFER, free=0, free_reason="the quota is 8"),
            {},
            "aws has 0 free: the quota is 8",
        ),
    ],
)
def test_rejections_say_why(offer: Offer, pool: dict[str, object], words: str) -> None:
    assert reason(offer, **pool) == words


def told(offer: Offer, price: float) -> Offer:
    return replace(offer, reference_price=price, reference="spot in b")


@pytest.mark.parametrize("offer", [OFFER, SPOT])
def test_a_typed_price_below_what_the_cloud_asks_stops_the_type_in_both_markets(
    offer: Offer,
) -> None:
    """A decimal point too far left: the spending cap would let hundreds of them start."""
    dear = told(replace(offer, on_demand_price=0.0328), 11.2)
    assert reason(dear) == (
        "clouds[aws].types[m5.large].price of the configuration is $0.0328/h, but the cloud itself"
        " asks $11.20/h (spot in b): no machine of this type is started before the right price is"
        " there"
    )


@pytest.mark.parametrize("price", [0.04, 0.10, 0.1009])
def test_a_typed_price_that_is_rounded_or_above_the_clouds_stands(price: float) -> None:
    assert rank(request(), [told(OFFER, price)], Scope(), NOW).ranked


def test_the_hourly_cap_counts_the_dearest_price_that_is_known() -> None:
    scope = Scope(limits=Limits(dollars_per_hour=0.3))
    rooms = [rank(request(), [o], scope, NOW).ranked[0].room for o in (OFFER, told(OFFER, 0.1009))]
    assert rooms == [3, 2]


@pytest.mark.parametrize("key", [SPOT.key, "aws/*/*/spot", "aws/*/*/*"])
def test_cool_downs_cover_an_offer_a_market_or_a_cloud(key: str) -> None:
    cool = Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=NOW + 30.2,
        code="ICE",
        cause=Quoted(text="no machines"),
        count=1,
    )
    assert reason(SPOT, Scope(exclusions=(cool,))) == (
        "cooling down until 13:47:11 UTC after ICE: no machines"
    )
    over = replace(cool, until=NOW)
    assert rank(request(), [SPOT], Scope(exclusions=(over,)), NOW).ranked


def test_a_market_cool_down_leaves_the_other_market() -> None:
    cool = Exclusion(
        kind=COOL_DOWN,
        scope="aws/*/*/spot",
        until=NOW + 30,
        code="quota",
        cause=Quoted(text="limit"),
        count=1,
    )
    placement = rank(request(), [SPOT, OFFER], Scope(exclusions=(cool,)), NOW)
    assert [r.offer for r in placement.ranked] == [OFFER]


def test_blocked_clouds_give_their_sentence() -> None:
    assert (
        reason(OFFER, Scope(blocked={"aws": Quoted(text="no hourly cap is set")}))
        == "no hourly cap is set"
    )


def test_the_tightest_limit_bounds_the_room() -> None:
    scope = Scope(
        limits=Limits(nodes=10, on_demand=3),
        cloud_limits={"aws": Limits(nodes=8)},
        usage=Usage(nodes={"": 4, "cloud:aws": 4, "market:on-demand": 1}),
    )
    assert rank(request(), [OFFER], scope, NOW).ranked[0].room == 2
    assert rank(request(), [SPOT], scope, NOW).ranked[0].room == 4


def test_the_hourly_cap_counts_spot_at_the_on_demand_price() -> None:
    scope = Scope(limits=Limits(dollars_per_hour=0.35), usage=Usage(dollars_per_hour={"": 0.05}))
    assert rank(request(), [SPOT], scope, NOW).ranked[0].room == 3
    assert SPOT.worst_price == 0.10


def test_a_full_limit_is_a_readable_rejection() -> None:
    scope = Scope(limits=Limits(nodes=4), usage=Usage(nodes={"": 4}))
    assert reason(OFFER, scope) == "the cluster is limited to 4 nodes, 4 are in use"
    cap = Scope(limits=Limits(dollars_per_hour=0.05))
    assert reason(OFFER, cap) == (
        "the cluster may spend $0.05/h, spends $0.00/h and this costs up to $0.10/h"
    )


@given(st.lists(offers(), max_size=8), st.randoms(use_true_random=False))
def test_every_offer_is_ranked_or_rejected_whatever_the_order(found, random) -> None:
    found = list({o.key: o for o in found}.values())
    first = rank(request(), found, Scope(), NOW)
    shuffled = list(found)
    random.shuffle(shuffled)
    assert rank(request(), shuffled, Scope(), NOW) == first
    assert len(first.ranked) + len(first.rejected) == len(found)
    for ranked in first.ranked:
        assert ranked.offer.cpus >= 2
        assert ranked.offer.memory >= 1000
        assert 1 <= ranked.room <= 4


@given(st.lists(offers(), min_size=2, max_size=8))
def test_no_public_offer_stands_before_an_on_premises_one(found) -> None:
    ranked = rank(request(), found, Scope(), NOW).ranked
    locations = [r.offer.location for r in ranked]
    assert locations == sorted(locations, key=lambda x: x is Location.PUBLIC)


def test_risk_weighs_the_price_against_what_interruptions_cost() -> None:
    """Half an hour lost, twice in an hour, doubles the price: on-demand is cheaper then."""
    calm = replace(SPOT, instance_type="calm", price=0.045, interruption_rate=0.01)
    cheap = replace(SPOT, instance_type="cheap", price=0.04, interruption_rate=0.5)
    wild = replace(SPOT, instance_type="wild", price=0.06, interruption_rate=2.0)
    paid = replace(SPOT, instance_type="paid", market=Market.ON_DEMAND, price=0.10)
    asked = request(interruption_loss=1800.0)
    some = [wild, cheap, paid, calm]
    order = rank(asked, some, Scope(), NOW, ("location", "risk")).ranked
    assert [r.offer.instance_type for r in order] == ["calm", "cheap", "paid", "wild"]
    usual = rank(asked, some, Scope(), NOW).ranked
    assert [r.offer.instance_type for r in usual] == ["cheap", "calm", "wild", "paid"]
    assert risk(asked, calm) == pytest.approx(0.045 * 1.005)
    assert risk(asked, wild) == pytest.approx(0.12)
    assert risk(asked, paid) == 0.10


def test_work_that_is_saved_often_makes_the_cheap_one_the_better() -> None:
    calm = replace(SPOT, instance_type="calm", price=0.045, interruption_rate=0.01)
    cheap = replace(SPOT, instance_type="cheap", price=0.04, interruption_rate=0.5)
    often = request(interruption_loss=600.0)
    order = rank(often, [calm, cheap], Scope(), NOW, ("risk",)).ranked
    assert [r.offer.instance_type for r in order] == ["cheap", "calm"]


def test_a_job_that_cannot_be_saved_gets_no_spot_machine() -> None:
    rule = Exclusion(
        kind=NO_SPOT, scope="job:7", until=NOW + 60, cause=Quoted(text="it cannot be saved: a lock")
    )
    scope = Scope(exclusions=(rule,))
    wanted = replace(request(), jobs=(6, 7))
    placement = rank(wanted, [SPOT, OFFER], scope, NOW)
    assert [r.offer for r in placement.ranked] == [OFFER]
    (rejected,) = placement.rejected
    assert (
        rejected.reason == "a job of this request gets no spot machine: it cannot be saved: a lock"
    )
    others = replace(request(), jobs=(6, 77))
    assert len(rank(others, [SPOT, OFFER], scope, NOW).ranked) == 2
    assert len(rank(wanted, [SPOT, OFFER], scope, NOW + 61).ranked) == 2


CALM_OR_NOT = Scope(
    usage=Usage(nodes={"": 4, "cloud:aws": 4, "pool:std": 4}, dollars_per_hour={"": 9.0}),
    exclusions=(
        Exclusion(kind=COOL_DOWN, scope=OFFER.key, until=NOW + 9, code="x", cause=Quoted(text="y")),
    ),
    blocked={"aws": Quoted(text="no hourly cap is set")},
)


@pytest.mark.parametrize(
    ("found", "pool", "limits", "most", "bound"),
    [
        ([OFFER], {}, Limits(), 4, ""),
        ([replace(OFFER, free=0), told(replace(OFFER, zone="b"), 11.2)], {}, Limits(), 4, ""),
        ([OFFER], {}, Limits(nodes=3), 3, "the cluster is limited to 3 nodes, 0 are in use"),
        ([SPOT], {}, Limits(spot=2), 2, "the cluster on spot is limited to 2 nodes, 0 are in use"),
        # Those that may cost least are bought first: three of $0.10, and none of $0.20 beside them.
        (
            [replace(OFFER, price=0.2, on_demand_price=0.2, zone="b"), OFFER],
            {},
            Limits(dollars_per_hour=0.35),
            3,
            "the cluster may spend $0.35/h, spends $0.00/h and this costs up to $0.10/h",
        ),
        ([SPOT, OFFER], {}, Limits(spot=1, on_demand=1), 2, "the cluster on on-demand"),
        ([OFFER], {"max_nodes": 1}, Limits(), 1, "pool std is limited to 1 node"),
        ([replace(OFFER, cpus=1)], {}, Limits(), 0, "has 1 cpus, the pool's nodes need 2"),
        ([replace(SPOT, price=9.0)], {"max_price": 0.05}, Limits(), 4, ""),
        ([OFFER], {"max_price": 0.05}, Limits(), 0, "costs $0.10/h, the pool pays at most"),
        ([], {}, Limits(), 0, ""),
    ],
)
def test_more_nodes_than_the_ceiling_can_never_be_had(
    found: list[Offer], pool: dict[str, object], limits: Limits, most: int, bound: str
) -> None:
    """Whatever is in use, refused or paused now."""
    nodes, why = ceiling(request(**pool), found, replace(CALM_OR_NOT, limits=limits))
    assert nodes == most
    assert str(why or "").startswith(bound)
    assert bool(why) == bool(bound)


@pytest.mark.parametrize(
    ("found", "scope", "words"),
    [
        ([OFFER], Scope(), ""),
        ([replace(OFFER, free=3), replace(SPOT, free=1)], Scope(), ""),
        (
            [replace(OFFER, free=3)],
            Scope(),
            "3 of 4 nodes are available now: aws has 3 free",
        ),
        ([replace(OFFER, free=0)], Scope(), "aws has 0 free"),
        ([OFFER], CALM_OR_NOT, "no hourly cap is set"),
        ([], Scope(), "it has no offer"),
    ],
)
def test_what_lacks_now_is_told_by_the_first_bound(
    found: list[Offer], scope: Scope, words: str
) -> None:
    assert str(shortfall(request(), found, scope, NOW) or "") == words


def test_types_that_no_zone_sells_are_named_with_their_market() -> None:
    asked = request(markets=(Market.SPOT, Market.ON_DEMAND)).pool
    assert unsold(asked, [OFFER, SPOT], ["m5.large"]) == ()
    assert unsold(asked, [OFFER], ["m5.large", "c5"]) == (
        ("m5.large", Market.SPOT), ("c5", Market.SPOT), ("c5", Market.ON_DEMAND),
    )  # fmt: skip
    assert unsold(asked, [OFFER], []) == ()


def test_spot_that_is_no_cheaper_comes_after_on_demand() -> None:
    reserved, dear = replace(OFFER, market=Market.RESERVED), replace(SPOT, price=0.10)
    unknown = replace(SPOT, price=9.0, on_demand_price=None)
    order = [dear, OFFER, SPOT, reserved, unknown]
    order.sort(key=lambda o: market(request(), o))
    assert order == [reserved, SPOT, unknown, OFFER, dear]


def test_what_is_bought_counts_in_each_scope_at_its_worst_price() -> None:
    found = used_by(Usage(nodes={"": 1}, dollars_per_hour={"": 1.0}), request().pool, SPOT, 2)
    assert found.nodes == {
        "": 3, "cloud:aws": 2, "pool:std": 2, "market:spot": 2, "cloud:aws:spot": 2,
    }  # fmt: skip
    assert found.dollars_per_hour == pytest.approx({"": 1.2, "cloud:aws": 0.2})


def test_an_offer_of_another_cloud_is_none_of_the_pools() -> None:
    assert reason(OFFER, cloud="gcp") == "is of cloud aws, the pool is of gcp"


@pytest.mark.parametrize(
    ("max_price", "bid"),
    [
        (None, None),
        (0.06, 0.05),
        (9.0, 0.09),  # spot never costs more than on-demand, $0.10 with its disk
        (MaxPrice(spot=0.04), 0.03),
        (MaxPrice(spot=0.04, types={"m5.large": 0.05}), 0.04),
        (MaxPrice(types={"c5.large": 0.05}), None),
        (MaxPrice(of_on_demand=0.5), 0.04),
        (MaxPrice(of_on_demand=0.5, types={"m5.large": 0.03}), 0.02),
    ],
)
def test_the_bid_is_the_highest_price_of_a_type_without_its_disks(
    max_price: float | MaxPrice | None, bid: float | None
) -> None:
    pool = request(max_price=max_price, machine=MachineOptions(disk_price=0.01)).pool
    found = pool.bid(replace(SPOT, on_demand_price=0.10, disk_price=0.01))
    assert found == (None if bid is None else pytest.approx(bid))


def test_a_part_of_an_unknown_price_is_no_bid() -> None:
    pool = request(max_price=MaxPrice(of_on_demand=0.5)).pool
    assert pool.bid(replace(SPOT, on_demand_price=None)) is None


# at the very bounds, and in words


@pytest.mark.parametrize(
    ("offer", "pool"),
    [
        (replace(OFFER, cpus=2, memory=1000), {}),
        (replace(OFFER, gres={"gpu": 1}), {"gres": {"gpu": 1}}),
        (OFFER, {"max_price": 0.10}),
        (OFFER, {"max_price": MaxPrice(spot=0.01)}),
        (SPOT, {"max_price": MaxPrice(spot=0.01, types={"m5.large": 0.04})}),
        (SPOT, {"max_price": MaxPrice(of_on_demand=0.4)}),
        (OFFER, {"zones": ("b", "a"), "instance_types": ("c5", "m5.large")}),
        (told(replace(OFFER, on_demand_price=1.0), 1.01), {}),
    ],
)
def test_what_is_just_enough_serves(offer: Offer, pool: dict[str, object]) -> None:
    assert rank(request(**pool), [offer], Scope(), NOW).ranked


def test_a_typed_price_may_be_a_hundredth_too_low_and_no_more() -> None:
    assert "the right price" in reason(told(replace(OFFER, on_demand_price=1.0), 1.0101))


def test_the_greater_part_that_nobody_can_use_is_wasted() -> None:
    assert waste(request(), replace(OFFER, cpus=4, memory=8000)) == pytest.approx(0.875)
    assert waste(request(), replace(OFFER, cpus=16, memory=2000)) == pytest.approx(0.875)
    assert waste(request(), replace(OFFER, cpus=2, memory=1000)) == 0


@pytest.mark.parametrize(
    ("offer", "scope", "words"),
    [
        (OFFER, Scope(), "public, on-demand, $0.10/h"),
        (replace(SPOT, interruption_rate=0.5), Scope(),
         "public, spot, $0.04/h, taken 0.5 times an hour"),
        (replace(OFFER, free=2), Scope(),
         "public, on-demand, $0.10/h; room is bounded: aws has 2 free"),
    ],
)  # fmt: skip
def test_why_an_offer_is_taken_is_told_with_its_bound(
    offer: Offer, scope: Scope, words: str
) -> None:
    assert rank(request(), [offer], scope, NOW).ranked[0].reason == words


AWS_ONLY = {"aws": Limits(nodes=9, spot=3, dollars_per_hour=0.35)}


@pytest.mark.parametrize(
    ("offer", "scope", "room"),
    [
        (OFFER, Scope(pool_nodes={"std": 2}), 2),
        (OFFER, Scope(pool_nodes={"std": None}), 4),
        (OFFER, Scope(pool_nodes={"other": 1}), 4),
        (OFFER, Scope(pool_nodes={"std": 4}, usage=Usage(nodes={"pool:std": 1})), 3),
        (OFFER, Scope(cloud_limits=AWS_ONLY), 3),
        (SPOT, Scope(cloud_limits=AWS_ONLY, usage=Usage(nodes={"cloud:aws:spot": 2})), 1),
        (SPOT, Scope(cloud_limits=AWS_ONLY, usage=Usage(nodes={"market:spot": 2})), 3),
        (OFFER, Scope(cloud_limits=AWS_ONLY, usage=Usage(nodes={"cloud:aws": 7})), 2),
        (OFFER, Scope(cloud_limits=AWS_ONLY, usage=Usage(dollars_per_hour={"cloud:aws": 0.1})), 2),
        (OFFER, Scope(cloud_limits={"gcp": Limits(nodes=1)}), 4),
        (SPOT, Scope(limits=Limits(spot=3), usage=Usage(nodes={"market:spot": 2})), 1),
        (SPOT, Scope(limits=Limits(on_demand=1)), 4),
    ],
)
def test_each_bound_leaves_what_it_has_left(offer: Offer, scope: Scope, room: int) -> None:
    assert rank(request(), [offer], scope, NOW).ranked[0].room == room


def test_what_costs_nothing_is_bounded_by_no_dollars() -> None:
    free = replace(OFFER, price=0.0, on_demand_price=None)
    spent = Scope(limits=Limits(dollars_per_hour=1.0), usage=Usage(dollars_per_hour={"": 2.0}))
    assert rank(request(), [free], spent, NOW).ranked[0].room == 4


def test_launches_stay_within_what_the_earlier_ones_leave() -> None:
    some = [replace(SPOT, free=2), replace(OFFER, free=9), replace(OFFER, zone="b", price=0.11)]
    found = serving(request(), some, Scope(limits=Limits(nodes=3)), NOW)
    assert [(r.offer.market, r.room) for r in found] == [(Market.SPOT, 2), (Market.ON_DEMAND, 1)]
    two = [replace(OFFER, free=1), replace(OFFER, zone="b", free=9)]
    capped = Scope(limits=Limits(dollars_per_hour=0.35))
    assert [r.room for r in serving(request(), two, capped, NOW)] == [1, 2]
