"""With several clouds, the price decides which one sells a job's machines, and not the file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import cheapest_cloud
from benchmarks.cloud_order import OWN, SET_UPS, SetUp, merged, scenario_of
from benchmarks.traces import VARIABLE, history
from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.growth.capacity import OnDemand, Slurm, parse_growth
from slurm_elastic.policies.growth.release import Flagged, Idle
from slurm_elastic.policies.launch.job_data import JobData
from slurm_elastic.policies.launch.pool_order import TrafficTerms
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate import series
from slurm_elastic.simulate.bills.billing import Billing, Curve, Hourly, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine, simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.queues import cloud_order
from slurm_elastic.simulate.queues.cloud_order import JobOrders
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.breakdown import by_month

SYNTHETIC = swf.load(Path(__file__).parent.parent / "data" / "synthetic.swf").jobs
BEGIN, END = SYNTHETIC.submit[0], SYNTHETIC.submit[-1]
RACK = PoolModel(name="rack", machines=8, standing=8, procs=2, public=False, limited=False)
BOOT = BootTimes(((1, 100),))


def cloud(name: str, price: float = 1.0, machines: int = 200, **settings: object) -> PoolModel:
    found = PoolModel(
        name=name, machines=machines, procs=2, price=price, release=Idle(600), boot=BOOT
    )
    return replace(found, **settings)


def walk(seed: int, lowest: float, highest: float, every: int = 1800) -> SpotMarket:
    """A spot price that moves all the time."""
    rng = random.Random(seed)
    times = list(range(BEGIN, END + every, every))
    return SpotMarket(Curve(times, [rng.uniform(lowest, highest) for _ in times]))


def jobs(*rows: tuple[int, int, int], **more: int) -> Jobs:
    """(submit, run, nodes), the limit as long as the run."""
    return Jobs(Job(i, s, r, r, 2 * n, **more) for i, (s, r, n) in enumerate(rows))


def launched(found: RunResult) -> list[int]:
    return [machines.launched for machines in found.pools]


def costs(pools: Sequence[PoolModel], scenario: Scenario) -> list[float]:
    """In all orders of the file."""
    return [
        simulate(SYNTHETIC, replace(scenario, pools=(RACK, *order))).figures.cost
        for order in permutations(pools)
    ]


GROWTHS = ("slurm", "on_demand", "bursts(waste=180)", "group_bursts(group=2)", "ratio(slots=1)",
           "semi_elastic(wait_limit=300, size=best, short=3600)")  # fmt: skip


@pytest.mark.parametrize("growth", GROWTHS)
def test_all_orders_of_the_file_cost_the_same(growth: str) -> None:
    pools = (
        cloud("a", spot=walk(1, 0.2, 0.6)),
        cloud("b", spot=walk(2, 0.3, 0.5)),
        cloud("c", 0.9),
    )
    found = costs(pools, Scenario(pools=pools, growth=parse_growth(growth)))
    assert max(found) <= 1.02 * min(found)


def test_prices_that_hardly_differ_do_not_spread_the_machines_of_a_growth_policy() -> None:
    spot = SpotMarket(Curve.flat(0.305))
    pools = (RACK, cloud("a", spot=walk(5, 0.30, 0.309)), cloud("b", spot=spot))
    _, a, b = launched(simulate(SYNTHETIC, Scenario(pools=pools, growth=OnDemand())))
    assert sorted((a > 0, b > 0)) == [False, True]
    _, a, b = launched(simulate(SYNTHETIC, Scenario(pools=pools)))
    assert min(a, b) > 0, "without such a policy each new job goes where it costs least"


def test_larger_machines_of_another_cloud_count_as_what_they_hold() -> None:
    pools = (cloud("small", 0.5), cloud("large", 0.9, procs=4))
    for growth in (Slurm(), OnDemand()):
        found = costs(pools, Scenario(pools=pools, growth=growth))
        assert max(found) <= 1.02 * min(found)


def test_the_flagged_machines_are_those_of_the_dear_cloud() -> None:
    growth = parse_growth("steady_stream(waste=180)")
    pools = (cloud("dear", 2.0, release=Flagged()), cloud("cheap", 1.0, release=Flagged()))
    found = costs(pools, Scenario(pools=pools, growth=growth))
    assert max(found) <= 1.02 * min(found)


@pytest.mark.parametrize("limits", [Limits(), Limits(nodes=30), Limits(dollars_per_hour=14.0)])
def test_limits_change_nothing_in_that(limits: Limits) -> None:
    pools = (cloud("a", spot=walk(3, 0.2, 0.6)), cloud("b", 0.8), cloud("c", 1.1))
    found = costs(pools, Scenario(pools=pools, limits=limits))
    assert max(found) <= 1.02 * min(found)


def test_terms_that_are_kept_under_a_limit_are_those_that_are_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = (RACK, cloud("a", spot=walk(4, 0.3, 1.2)), cloud("b", 0.8), cloud("c", 0.9, procs=3))
    scenario = Scenario(pools=pools, limits=Limits(nodes=60, dollars_per_hour=30.0, on_demand=25))
    kept = simulate(SYNTHETIC, scenario)
    with monkeypatch.context() as patch:
        patch.setattr(Purchases, "slack", lambda *_: -1)
        anew = simulate(SYNTHETIC, scenario)
    assert (kept.starts, kept.figures.cost) == (anew.starts, anew.figures.cost)


@pytest.mark.parametrize("billing", [PerSecond(minimum=3600), Hourly()])
def test_short_jobs_avoid_a_cheap_cloud_that_bills_them_an_hour(billing: Billing) -> None:
    pools = (cloud("cheap", 0.9, billing=billing), cloud("exact", 1.0))
    history = jobs((0, 500, 1), (10, 7000, 1))
    assert launched(simulate(history, Scenario(pools=pools))) == [1, 1]


@pytest.mark.parametrize(
    ("exact", "cheap"),
    [
        (cloud("exact"), cloud("cheap", 0.9, billing=PerSecond(minimum=3600))),
        (cloud("exact"), cloud("cheap", 0.95, billing=PerSecond(minimum=600))),
        (
            cloud("exact", boot=BootTimes(((1, 60),))),
            cloud("cheap", 0.9, boot=BootTimes(((1, 900),))),
        ),
    ],
)
def test_two_clouds_cost_hardly_more_than_the_better_one(
    exact: PoolModel, cheap: PoolModel
) -> None:
    both = costs((exact, cheap), Scenario(pools=(exact, cheap)))
    alone = [costs((pool,), Scenario(pools=(pool,)))[0] for pool in (exact, cheap)]
    assert max(both) <= 1.05 * min(alone)


def test_the_sites_own_nodes_come_first_and_on_premises_before_public() -> None:
    own = cloud("own", 5.0, machines=2, public=False)
    pools = (cloud("dear", 2.0), cloud("cheap", 1.0), replace(RACK, machines=1, standing=1), own)
    history = jobs(*((second, 500, 1) for second in range(5)))
    assert launched(simulate(history, Scenario(pools=pools))) == [0, 2, 1, 2]


def test_machines_that_are_paid_anyway_come_before_all_that_must_be_bought() -> None:
    reserved = cloud("dear reserved", 9.0, machines=2, standing=2, cloud="dear")
    pools = (cloud("cheap", 1.0), reserved, cloud("dear", 2.0))
    history = jobs(*((second, 500, 1) for second in range(5)))
    assert launched(simulate(history, Scenario(pools=pools))) == [3, 2, 0]


def test_the_boot_and_the_size_of_a_job_decide_between_clouds() -> None:
    slow, fast = cloud("slow", 1.0, boot=BootTimes(((1, 1000),))), cloud("fast", 1.5)
    short, long = jobs((0, 600, 1)), jobs((0, 6000, 1))
    scenario = Scenario(pools=(slow, fast))
    assert launched(simulate(short, scenario)) == [0, 1]
    assert launched(simulate(long, scenario)) == [1, 0]


def test_a_cloud_that_sells_nothing_now_comes_last() -> None:
    """The spot machines of the first cloud are gone at 1000, and its on-demand price is high."""
    spot = SpotMarket(Curve.flat(0.1), available=[(0, 9), (1000, 0)])
    pools = (cloud("a", 3.0, spot=spot), cloud("b", 1.0))
    history = jobs((0, 5000, 1), (1001, 100, 1), (1002, 100, 1))
    found = simulate(history, Scenario(pools=pools))
    assert launched(found) == [1, 3], "the job that lost its machine starts over in b"


def test_a_cloud_that_sells_nothing_but_has_an_idle_machine_comes_in_its_place() -> None:
    scenario = Scenario(
        pools=(cloud("dear", 2.0), cloud("cheap", 1.0)), cloud_limits={"cheap": Limits(nodes=1)}
    )
    found = simulate(jobs((0, 100, 1), (300, 100, 1), (310, 100, 1)), scenario)
    assert launched(found) == [1, 1]
    assert list(found.starts) == [100, 300, 410]


def falling(price: float) -> Engine:
    """A job waits from 10 to 610 for the only node of each cloud. At 300 the price of b falls."""
    spot = SpotMarket(Curve([0, 300], [0.9, price]))
    pools = (cloud("a", 2.0, 1, spot=SpotMarket(Curve.flat(0.8))), cloud("b", 2.0, 1, spot=spot))
    return Engine(jobs((0, 510, 1), (0, 510, 1), (10, 100, 1)), Scenario(pools=pools))


@pytest.mark.parametrize(("price", "pool"), [(0.77, 0), (0.75, 1)])
def test_a_waiting_job_changes_to_a_cloud_that_has_become_much_cheaper(
    price: float, pool: int
) -> None:
    engine = falling(price)
    engine.run()
    assert engine.runs.where[2] == pool


def test_only_so_many_jobs_change_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_order, "MAX_REORDERED_JOBS", 2)
    spot = SpotMarket(Curve([0, 100], [0.9, 0.1]))
    pools = (cloud("a", 2.0, 1, spot=SpotMarket(Curve.flat(0.8))), cloud("b", 2.0, 1, spot=spot))
    history = jobs((0, 9000, 1), (0, 9000, 1), *((10, 100, 1) for _ in range(5)))
    engine = Engine(history, Scenario(pools=pools))
    orders = engine.orders
    assert orders is not None
    waiting = list(range(2, 7))
    for job in waiting:
        orders.arrive(job, 10)

    def first() -> list[int]:
        return [orders.lanes[job][0][0] for job in waiting]

    orders.look(waiting, 10, 119)
    assert first() == [0] * 5, "the price falls at 100, and the next look is at 120"
    orders.look(waiting, 119, 120)
    assert first() == [1, 1, 0, 0, 0]
    orders.look(waiting, 120, 180)
    assert first() == [1] * 5


def orders_of(*pools: PoolModel, **settings: object) -> JobOrders | None:
    history = jobs((0, 100, 1))
    return Engine(history, replace(Scenario(pools=pools), **settings)).orders


def test_a_site_whose_clouds_do_not_compete_has_no_orders() -> None:
    own, other = cloud("own", public=False), cloud("other", public=False)
    assert orders_of(RACK, cloud("a")) is None
    assert orders_of(own, cloud("a")) is None
    assert orders_of(cloud("a", cloud="x"), cloud("b", cloud="x")) is None
    assert orders_of(cloud("a reserved", machines=2, standing=2, cloud="a"), cloud("a")) is None
    assert orders_of(cloud("a"), cloud("b")) is not None
    assert orders_of(own, other) is not None
    assert orders_of(own, cloud("a"), ranking=("price",)) is not None


def test_jobs_over_their_budget_keep_to_the_sites_own_machines() -> None:
    history = jobs((0, 3600, 1), (1, 3600, 1), (2, 3600, 1), account=3)
    pools = (replace(RACK, machines=1, standing=1), cloud("dear", 2.0), cloud("cheap", 1.0))
    scenario = Scenario(pools=pools, payers={"account:3": Bounds(per_day=0.0001)})
    found = simulate(history, scenario)
    assert launched(found) == [1, 0, 1]
    assert found.starts[2] >= 3600


NAME = "KTH-SP2-1996-2.1-cln"


@pytest.mark.parametrize("set_up", SET_UPS[:5], ids=lambda set_up: str(set_up.number))
def test_published_prices_on_a_public_history(set_up: SetUp) -> None:
    path = history(NAME)
    if path is None:
        pytest.skip(f"{NAME} is not at hand (${VARIABLE})")
    read = swf.load(path, 400)
    found = []
    for order in (set_up.clouds, set_up.clouds[::-1]):
        scenario = scenario_of(read, replace(set_up, clouds=order), OWN[NAME], "slurm")
        found.append(simulate(read.jobs, scenario, read.start).figures.cost)
        assert found[-1] == pytest.approx(cheapest_cloud.cost(read.jobs, scenario), abs=0.01)
    ideal = simulate(read.jobs, merged(scenario), read.start).figures.cost
    assert max(found) <= 1.02 * min(found)
    assert max(found) <= 1.05 * ideal


def test_jobs_with_much_data_go_where_traffic_costs_less() -> None:
    pools = (
        cloud("cheap", 1.0, traffic=TrafficTerms(price_out=0.1)),
        cloud("dear", 2.0, traffic=TrafficTerms(price_out=0.01)),
    )
    history = jobs((0, 3600, 1), (0, 3600, 1), (0, 3600, 1))
    history.data[1] = JobData(gb_in=100.0, gb_out=100.0)
    history.data[2] = JobData(gb_in=100.0, gb_out=1.0)
    found = simulate(history, Scenario(pools=pools))
    assert [pools[pool].name for pool in found.where] == ["cheap", "dear", "cheap"]
    assert found.figures.traffic == pytest.approx(100 * 0.01 + 1 * 0.1)
    machines = found.figures.on_demand + found.figures.spot
    assert found.figures.cost == pytest.approx(machines + found.figures.traffic)
    assert series.cost(found)[-1][1] == pytest.approx(found.figures.cost), "also week by week"
    assert sum(month.cost or 0 for month in by_month(found, 0)) == pytest.approx(found.figures.cost)
