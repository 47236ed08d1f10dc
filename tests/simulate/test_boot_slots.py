"""Only so many machines boot at a time: the others wait for their turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from simulate.histories import histories

from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
)
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Idle
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.boot_slots import BootTurns, last_ready, waves
from slurm_elastic.simulate.engine import Engine, simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import BootCap, Clock, PoolModel, Scenario

BOOT = BootTimes(((1, 10), (4, 18)))
POOL = PoolModel(
    name="cloud", machines=6, price=1.0, release=Idle(50), boot=BootTimes(((1, 10),)),
    clock=Clock.REQUEST,
)  # fmt: skip


def jobs(*rows: tuple[int, int, int]) -> Jobs:
    return Jobs(Job(i, submit, run, run, procs) for i, (submit, run, procs) in enumerate(rows))


def ran(history: Jobs, *pools: PoolModel, **site: object) -> Engine:
    engine = Engine(history, Scenario(pools=pools, **site))  # type: ignore[arg-type]
    engine.run()
    return engine


def boots(engine: Engine) -> list[list[tuple[int, int, int]]]:
    """The launches of each pool: (from, until, machines), as they were booked."""
    found = []
    for machines in engine.pools:
        batches: dict[int, int] = {}
        rows = zip(machines.leases.batch, machines.leases.count, strict=True)
        for batch, count in rows:
            batches[batch] = batches.get(batch, 0) + count
        starts = [(machines.batch_start[batch], count) for batch, count in batches.items()]
        boot = machines.pool.boot
        found.append([(begin, begin + boot.seconds(count), count) for begin, count in starts])
    return found


def most_at_once(rows: list[tuple[int, int, int]]) -> int:
    sums = [sum(n for a, b, n in rows if a <= when < b) for when, _, _ in rows]
    return max(sums, default=0)


def test_a_large_jobs_machines_boot_in_waves_and_it_starts_after_the_last() -> None:
    engine = ran(jobs((0, 100, 5)), replace(POOL, max_booting=2))
    assert sorted(boots(engine)[0]) == [(0, 10, 2), (10, 20, 2), (20, 30, 1)]
    assert list(engine.runs.first) == [30]
    assert engine.pools[0].leases.dollars["on-demand"] == (2 * 180 + 2 * 170 + 160) / 3600


def test_whoever_asks_first_boots_first_also_in_another_pool_of_the_cloud() -> None:
    small = replace(POOL, name="small", machines=2)
    cap = BootCap(pools=("small", "cloud"), machines=2)
    engine = ran(jobs((0, 100, 2), (1, 100, 2), (12, 100, 1)), small, POOL, boot_caps=(cap,))
    assert boots(engine) == [[(0, 10, 2)], [(10, 20, 2), (20, 30, 1)]]
    assert list(engine.runs.first) == [10, 20, 30]


def test_growth_asks_for_no_more_than_may_boot_now_and_again_later() -> None:
    engine = ran(jobs((0, 100, 4)), replace(POOL, max_booting=2), growth=SemiElastic(wait_limit=5))
    assert sorted(boots(engine)[0]) == [(0, 10, 2), (10, 20, 2)]
    assert list(engine.runs.first) == [20]


@pytest.mark.parametrize(
    "growth",
    [OnDemand(), Ratio(), SemiElastic(wait_limit=5), GroupBursts(group=3)],
    ids=lambda growth: type(growth).__name__,
)
def test_machines_whose_turns_outlast_their_idle_time_wait_for_the_last_one(
    growth: AnyGrowth,
) -> None:
    """Under a common limit idle machines go although jobs wait. Growth would buy them again for
    ever.
    """
    pool = replace(POOL, boot=BootTimes(((1, 100),)), release=Idle(60), max_booting=1, machines=4)
    pools = pool, replace(pool, name="other")
    scenario = Scenario(pools=pools, growth=growth, limits=Limits(nodes=5))
    history = jobs((0, 600, 3))
    for outcome in (Engine(history, scenario).run(), simulate(history, scenario)):
        assert outcome.figures.unserved == 0
        assert sum(machines.launched for machines in outcome.pools) <= 4


def test_backfill_counts_with_the_turns_that_it_has_to_wait_for() -> None:
    """The second job needs both machines at 100; the third would be done by 60 if its machine
    could boot at once, but it is the fourth wave's.
    """
    caps = BootTurns(1)
    assert waves([caps], 3, 0, BOOT.seconds) == [(0, 1), (10, 1), (20, 1)]
    assert last_ready([caps], 1, 5, BOOT.seconds) == 40
    assert caps.booked == [(0, 10, 1), (10, 20, 1), (20, 30, 1)]


def test_a_cap_of_nothing_is_refused() -> None:
    (why,) = Scenario(pools=(replace(POOL, max_booting=0),)).problems()
    assert why == "no machine could ever boot: max_booting is less than 1"


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 2)), max_size=12),
)
def test_no_cap_is_ever_passed_and_every_machine_gets_its_turn(
    caps: list[int], asked: list[tuple[int, int, int]]
) -> None:
    turns = [BootTurns(cap) for cap in caps]
    all_boots: list[list[tuple[int, int, int]]] = [[] for _ in turns]
    now = 0
    for wait, count, first in asked:
        now += wait
        mine = turns[min(first, len(turns) - 1) :]
        when = last_ready(mine, count, now, BOOT.seconds)
        booked = waves(mine, count, now, BOOT.seconds)
        assert sum(part for _, part in booked) == count
        assert when == max(begin + BOOT.seconds(part) for begin, part in booked)
        assert all(begin >= now for begin, _ in booked)
        rows = [(begin, begin + BOOT.seconds(part), part) for begin, part in booked]
        for index in range(len(turns) - len(mine), len(turns)):
            all_boots[index] += rows
    for cap, rows in zip(caps, all_boots, strict=True):
        assert most_at_once(rows) <= cap


@settings(max_examples=80, deadline=None)
@given(
    histories,
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2),
    st.sampled_from([Slurm(), OnDemand(), Bursts(waste=20), Ratio(), SemiElastic(wait_limit=30)]),
    st.sampled_from([Idle(30), AtOnce(), Delayed(before_end=20)]),
    st.sampled_from([Bounds(), Bounds(machines=15)]),
)
def test_never_more_boot_than_may_and_all_jobs_are_served(
    history: Jobs,
    own: int,
    together: int,
    least: int,
    growth: AnyGrowth,
    release: AnyRelease,
    bounds: Bounds,
) -> None:
    """The books are checked by the run itself."""
    first = PoolModel(
        name="first", machines=8, price=1.0, boot=BOOT, release=release, clock=Clock.REQUEST,
        billing=Hourly(seconds=100), max_booting=own, min_idle=least,
    )  # fmt: skip
    second = replace(first, name="second", max_booting=None, min_idle=0)
    scenario = Scenario(
        pools=(first, second),
        growth=growth,
        bounds=bounds,
        boot_caps=(BootCap(pools=("first", "second"), machines=together),),
    )
    if scenario.problems():
        return
    engine = Engine(history, scenario)
    outcome = engine.run()
    assert outcome.figures.jobs == len(history)
    one, other = boots(engine)
    assert most_at_once(one) <= own
    assert most_at_once(one + other) <= together


@settings(max_examples=40, deadline=None)
@given(
    histories,
    st.lists(st.integers(1, 900), max_size=4, unique_by=lambda at: at // 60),
    st.sampled_from([Slurm(), OnDemand()]),
    st.integers(0, 2),
)
def test_the_books_hold_when_machines_are_lost_that_wait_for_their_turn(
    history: Jobs, falls: list[int], growth: AnyGrowth, least: int
) -> None:
    steps = {0: 9} | dict.fromkeys(falls, 0) | {at + 50: 9 for at in falls}
    spot = SpotMarket(Curve.flat(0.1), available=sorted(steps.items()))
    pool = replace(POOL, machines=9, spot=spot, max_booting=2, min_idle=least)
    outcome = ran(history, pool, growth=growth)
    assert [end for end in outcome.runs.ended if end < 0] == []


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    gaps=st.lists(st.integers(0, 400), min_size=6, max_size=6),
    at_once=st.tuples(st.sampled_from((None, 1, 2)), st.sampled_from((None, 1, 3))),
    growth=st.sampled_from((OnDemand(), Bursts(), GroupBursts(), Ratio(), SemiElastic())),
)
def test_every_job_that_one_pool_could_hold_starts(
    sizes: list[int], gaps: list[int], at_once: tuple[int | None, int | None], growth: AnyGrowth
) -> None:
    """However few machines may boot at a time, and though the pools share out what was wanted."""
    at = [sum(gaps[:i]) for i in range(len(sizes))]
    history = jobs(*((t, 200, nodes) for t, nodes in zip(at, sizes, strict=True)))
    small = replace(POOL, name="small", machines=2, max_booting=at_once[0])
    large = replace(POOL, name="large", machines=5, max_booting=at_once[1])
    engine = Engine(history, Scenario(pools=(small, large), growth=growth))
    assert engine.run().figures.unserved == 0
