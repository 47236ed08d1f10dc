"""Machines are bought offer by offer, as the daemon's ranking has it, from clouds that refuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from simulate.histories import histories

from slurm_elastic.model.cluster import Limits, Location, Market, Offer
from slurm_elastic.policies.growth.capacity import OnDemand, Slurm
from slurm_elastic.policies.growth.release import AtOnce, Idle
from slurm_elastic.simulate import purchases
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import CoolDownTimes, PoolModel, Scenario, Sold

OFFER = Offer(
    cloud="aws", location=Location.PUBLIC, instance_type="m", zone="a", market=Market.ON_DEMAND,
    price=1.0, cpus=1, memory=1, on_demand_price=1.0,
)  # fmt: skip
ON_DEMAND = Sold(offer=OFFER)


def spot(zone: str, curve: Curve, *available: tuple[int, int], stock: str = "") -> Sold:
    offer = replace(OFFER, zone=zone, market=Market.SPOT)
    return Sold(offer=offer, market=SpotMarket(curve, available=available), stock=stock)


def pool(*offers: Sold, machines: int = 50, name: str = "cloud") -> PoolModel:
    return PoolModel(
        name=name, machines=machines, price=1.0, offers=offers, release=AtOnce(),
        boot=BootTimes(((1, 10),)),
    )  # fmt: skip


def jobs(*rows: tuple[int, int, int]) -> Jobs:
    """(submit, run, nodes), the limit as long as the run."""
    return Jobs(Job(i, s, r, r, n) for i, (s, r, n) in enumerate(rows))


def ran(history: Jobs, *pools: PoolModel, **site: object) -> Engine:
    engine = Engine(history, Scenario(pools=pools, **site))  # type: ignore[arg-type]
    engine.run()
    return engine


def bought(engine: Engine, index: int = 0) -> list[tuple[int, str, int]]:
    """(second, zone/market, machines) of each launch of a pool."""
    machines = engine.pools[index]
    counts: dict[int, int] = {}
    for batch, count in zip(machines.leases.batch, machines.leases.count, strict=True):
        counts[batch] = counts.get(batch, 0) + count
    offers = [machines.sold[number].offer for number in machines.batch_offer]
    return [
        (machines.batch_start[batch], f"{offers[batch].zone}/{offers[batch].market}", count)
        for batch, count in sorted(counts.items())
    ]


def test_each_launch_takes_the_zone_that_is_cheapest_then() -> None:
    """Zone a is cheap but for 22 minutes, zone b never: no mean over time says which to take."""
    a = spot("a", Curve([0, 1000, 2320], [0.05, 0.5, 0.05]))
    b = spot("b", Curve.flat(0.2))
    engine = ran(jobs((0, 100, 1), (1500, 100, 1), (3000, 100, 1)), pool(a, b, ON_DEMAND))
    assert bought(engine) == [(0, "a/spot", 1), (1500, "b/spot", 1), (3000, "a/spot", 1)]


@pytest.mark.parametrize("growth", [Slurm(), OnDemand()], ids=lambda growth: type(growth).__name__)
def test_a_cloud_that_refuses_parts_starts_no_machine_that_serves_no_job(
    growth: Slurm | OnDemand,
) -> None:
    """The zone has two machines, and four from 100 on. OnDemand looks every 30 s."""
    few = spot("a", Curve.flat(0.1), (0, 2), (100, 4))
    whole = replace(pool(few), release=Idle(600), refuses_parts=True)
    cool = CoolDownTimes(capacity=60, longest=60)
    engine = ran(jobs((0, 50, 4)), whole, growth=growth, cool_downs=cool)
    assert [count for _, _, count in bought(engine)] == [4]
    of_others = ran(
        jobs((0, 50, 4)), replace(whole, refuses_parts=False), growth=growth, cool_downs=cool
    )
    assert bought(of_others)[0][2] == 2


def test_machines_of_one_zone_fall_without_the_others() -> None:
    a = spot("a", Curve.flat(0.1), (0, 2), (500, 0))
    b = spot("b", Curve.flat(0.2), (0, 9))
    engine = ran(jobs((0, 2000, 2), (1, 2000, 2)), pool(a, b, ON_DEMAND))
    assert bought(engine)[:2] == [(0, "a/spot", 2), (1, "b/spot", 2)]
    assert engine.runs.interruptions == 1
    assert engine.runs.ended[1] == 2011
    assert bought(engine)[2] == (500, "b/spot", 2), "the lost job goes on in the other zone"


def test_offers_with_one_stock_sell_the_same_machines() -> None:
    steps = ((0, 3), (500, 1))
    small = spot("a", Curve.flat(0.1), *steps, stock="trace")
    large = spot("b", Curve.flat(0.2), *steps, stock="trace")
    engine = ran(jobs((0, 2000, 2), (1, 2000, 2)), pool(small, large, ON_DEMAND))
    assert bought(engine)[:3] == [(0, "a/spot", 2), (1, "a/spot", 1), (1, "a/on-demand", 1)]
    assert engine.pools[0].reclaimed == 2


def test_an_offer_that_refused_rests_for_longer_each_time() -> None:
    """Asked at 0, then from 180 on (when it refuses again), then from 540 on."""
    empty = spot("a", Curve.flat(0.1), (0, 0), (400, 9))
    rows = [(at, 50, 1) for at in (0, 100, 200, 450, 600)]
    engine = ran(jobs(*rows), pool(empty, ON_DEMAND))
    assert [offer for _, offer, _ in bought(engine)] == [*["a/on-demand"] * 4, "a/spot"]


def test_an_offer_whose_machines_were_taken_rests_too() -> None:
    a = spot("a", Curve.flat(0.1), (0, 9), (300, 0), (310, 9))
    engine = ran(jobs((0, 1000, 1), (600, 100, 1)), pool(a, ON_DEMAND))
    assert bought(engine) == [
        (0, "a/spot", 1), (300, "a/on-demand", 1), (600, "a/spot", 1)
    ]  # fmt: skip


def test_a_job_has_all_its_machines_or_none() -> None:
    """If a cloud gives only some of them, they end at once and are paid for a minute; the pool is
    held except for what can be had.
    """
    limits = {"aws": Limits(on_demand=3)}
    history = jobs((0, 100, 5), (1, 100, 2))
    own = pool(spot("a", Curve.flat(0.1), (0, 1), (1000, 9)), ON_DEMAND)
    engine = ran(history, own, cloud_limits=limits)
    assert engine.runs.ended[1] < engine.runs.ended[0]
    assert engine.runs.first[0] > 1000


def test_the_order_is_the_sites() -> None:
    dear = spot("a", Curve.flat(0.9))
    second = replace(OFFER, zone="b", price=0.3, on_demand_price=0.3)
    by_price = ran(jobs((0, 10, 1)), pool(dear, Sold(offer=second)), ranking=("price",))
    by_market = ran(jobs((0, 10, 1)), pool(dear, Sold(offer=second)))
    assert bought(by_price) == [(0, "b/on-demand", 1)]
    assert bought(by_market) == [(0, "a/spot", 1)]


def test_a_pool_that_no_offer_serves_lets_the_job_go_to_the_next_cloud() -> None:
    empty = replace(spot("a", Curve.flat(0.1), (0, 0)))
    other = Sold(offer=replace(OFFER, cloud="other", zone="z"))
    engine = ran(jobs((0, 100, 2)), pool(empty), pool(other, name="next"))
    assert bought(engine) == []
    assert bought(engine, 1) == [(0, "z/on-demand", 2)]


@settings(max_examples=60, deadline=None)
@given(
    histories,
    st.sampled_from([Slurm(), OnDemand()]),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 9)), max_size=5, unique_by=lambda s: s[0]),
    st.lists(st.tuples(st.integers(1, 900), st.sampled_from((0.1, 0.4, 2.0))), max_size=5,
             unique_by=lambda s: s[0]),
    st.sampled_from([Limits(), Limits(nodes=12, spot=5), Limits(dollars_per_hour=7.0)]),
)  # fmt: skip
def test_a_decision_that_is_kept_is_the_one_that_would_be_made_again(
    history: Jobs,
    growth: Slurm,
    steps: list[tuple[int, int]],
    prices: list[tuple[int, float]],
    limits: Limits,
) -> None:
    changes = sorted(({0: 0.2} | dict(prices)).items())
    a = spot("a", Curve([when for when, _ in changes], [price for _, price in changes]))
    b = spot("b", Curve.flat(0.3), *sorted(({0: 4} | dict(steps)).items()))
    most = 50 if limits.dollars_per_hour is None else 7
    pools = (pool(a, b, ON_DEMAND, machines=most), pool(a, ON_DEMAND, machines=most, name="more"))
    scenario = Scenario(
        pools=tuple(replace(one, release=Idle(60)) for one in pools),
        growth=growth,
        limits=limits,
        cool_downs=CoolDownTimes(capacity=30, longest=100),
    )
    if scenario.problems():
        return
    kept = Engine(history, scenario)
    first = kept.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(purchases.Purchases, "_store_decision", lambda *_: None)
        patch.setattr(purchases.Purchases, "room", purchases.Purchases._read_room)
        anew = Engine(history, scenario)
        second = anew.run()
    assert bought(kept) == bought(anew)
    assert bought(kept, 1) == bought(anew, 1)
    assert (first.starts, first.ends, first.figures) == (second.starts, second.ends, second.figures)
