"""Pools that are kept warm: topped up when jobs take their machines, and spared by the release."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from simulate.histories import histories

from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    OnDemand,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.release import (
    AnyRelease,
    AtOnce,
    Delayed,
    Flagged,
    Idle,
    IdleOrder,
)
from slurm_elastic.policies.money.bounds import Bounds, Window
from slurm_elastic.simulate.bills.billing import Hourly
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine, simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

POOL = PoolModel(
    name="cloud", machines=6, price=3600.0, release=Idle(50), boot=BootTimes(((1, 10),))
)


def jobs(*rows: tuple[int, int, int]) -> Jobs:
    return Jobs(Job(i, submit, run, run, procs) for i, (submit, run, procs) in enumerate(rows))


def history_of(machines: PoolMachines) -> list[tuple[int, int, int]]:
    """(from, to, machines) of all leases: from their readiness on."""
    rows = zip(machines.leases.batch, machines.leases.end, machines.leases.count, strict=True)
    return [(machines.batch_start[batch], end, count) for batch, end, count in rows]


def ran(pool: PoolModel, history: Jobs, **site: object) -> Engine:
    engine = Engine(history, Scenario(pools=(pool,), **site))  # type: ignore[arg-type]
    engine.run()
    return engine


def test_a_warm_machine_serves_at_once_and_another_takes_its_place() -> None:
    """From the first job on one boots beside that job's; the second job need not wait."""
    warm = replace(POOL, min_idle=1)
    found = simulate(jobs((0, 100, 1), (200, 100, 1), (210, 5, 1)), Scenario(pools=(warm,)))
    assert list(found.starts) == [10, 200, 210]
    cold = simulate(jobs((0, 100, 1), (200, 100, 1), (210, 5, 1)), Scenario(pools=(POOL,)))
    assert list(cold.starts) == [10, 210, 220]


def test_what_is_kept_warm_outlives_the_idle_time_but_not_the_last_job() -> None:
    engine = ran(replace(POOL, min_idle=2), jobs((0, 10, 1), (5000, 10, 1)))
    ends = sorted(end for _, end, _ in history_of(engine.pools[0]))
    assert engine.runs.first[1] == 5000, "it was warm after 5000 s, and due since 60"
    assert [end for end in ends if end < 5000] == [60], "one of three went when it was due"
    assert all(end <= 5070 for end in ends), "all go when there is nobody any more"


def test_a_delayed_release_lets_the_spare_one_go_at_the_end_of_a_lease() -> None:
    """Two are idle from 110 on, one is kept: in the last 30 s of a lease one goes."""
    pool = replace(POOL, min_idle=1, billing=Hourly(seconds=300), release=Delayed(before_end=30))
    engine = ran(pool, jobs((0, 100, 1), (5000, 10, 1)))
    first = min(end for _, end, _ in history_of(engine.pools[0]))
    start = engine.pools[0].batch_start[0]
    assert 270 <= (first - start) % 300 < 300


def test_no_warm_machine_is_started_when_none_may_be() -> None:
    """At night only: at noon there is none, from 20:00 on there is one."""
    warm = replace(POOL, min_idle=1)
    night = Bounds(windows=(Window(20 * 3600, 6 * 3600),))
    engine = Engine(
        jobs((0, 10, 1), (9 * 3600, 10, 1)), Scenario(pools=(warm,), bounds=night), 12 * 3600
    )
    engine.run()
    starts = list(engine.pools[0].batch_start)
    assert min(starts) >= 8 * 3600
    assert list(engine.runs.first)[1] == 9 * 3600


def test_no_warm_machine_is_started_when_the_money_is_spent() -> None:
    """A dollar a second: when the last job takes the warm machine, none takes its place."""
    warm = replace(POOL, min_idle=1, clock=Clock.READY)
    engine = ran(warm, jobs((0, 10, 1), (30, 10, 1), (5000, 10, 1)), bounds=Bounds(per_day=5.0))
    assert engine.pools[0].launched == 2
    assert list(engine.runs.first) == [10, 30, 5000]
    assert ran(warm, jobs((0, 10, 1), (30, 10, 1), (5000, 10, 1))).pools[0].launched == 3


def test_windows_go_by_the_clock_wherever_the_history_begins() -> None:
    shut_until_one = Bounds(windows=(Window(3600, 7200),))
    for origin, start in ((0, 3610), (1800, 1810), (3600, 10)):
        engine = Engine(jobs((0, 10, 1)), Scenario(pools=(POOL,), bounds=shut_until_one), origin)
        engine.run()
        assert list(engine.runs.first) == [start]


def test_flagged_release_with_warm_machines_is_refused() -> None:
    pool = replace(POOL, min_idle=1, release=Flagged())
    (why,) = Scenario(pools=(pool,), growth=SteadyStream()).problems()
    assert "flagged release lets go of machines that min_idle_machines would start again" in why


def _seen(engine: Engine, least: int) -> list[tuple[int, int, int]]:
    """(second, machines idle or booting, room) at each end of a moment before the last job's."""
    seen: list[tuple[int, int, int]] = []
    keep = engine.warm.keep

    def watched(now: int) -> None:
        keep(now)
        machines = engine.pools[0]
        if engine.warm.kept(machines, now) == least:
            seen.append((now, machines.idle + machines.booting, machines.room()))

    engine.warm.keep = watched  # type: ignore[method-assign]
    engine.run()
    return seen


@settings(max_examples=60, deadline=None)
@given(
    histories,
    st.integers(1, 3),
    st.sampled_from([Slurm(), OnDemand(), Bursts(waste=20), SemiElastic(wait_limit=30)]),
    st.sampled_from([Idle(0), Idle(30), AtOnce(), Delayed(before_end=20)]),
    st.sampled_from(list(IdleOrder)),
    st.sampled_from(list(Clock)),
)
def test_a_warm_pool_lacks_no_machine_that_it_has_room_for(
    history: Jobs,
    least: int,
    growth: AnyGrowth,
    release: AnyRelease,
    order: IdleOrder,
    clock: Clock,
) -> None:
    """At the end of each moment ``least`` are idle or boot, unless all machines are there; the
    books are checked by the run itself.
    """
    pool = replace(
        POOL, machines=9, min_idle=least, release=release, clock=clock,
        billing=Hourly(seconds=100),
    )  # fmt: skip
    scenario = Scenario(pools=(pool,), growth=growth, order=order)
    if scenario.problems():
        return
    engine = Engine(history, scenario)
    for now, there, room in _seen(engine, least):
        assert there >= least or not room, now
    assert len([end for end in engine.runs.ended if end >= 0]) == len(history)


@pytest.mark.parametrize("growth", [Slurm(), OnDemand(), Bursts(waste=20)])
def test_without_warm_machines_nothing_changes(growth: AnyGrowth) -> None:
    history = jobs(*((i * 7, 20 + i % 30, 1 + i % 4) for i in range(60)))
    plain = ran(POOL, history, growth=growth)
    assert not plain.warm
    watched = ran(replace(POOL, max_booting=6), history, growth=growth)
    assert list(plain.runs.first) == list(watched.runs.first)
    assert history_of(plain.pools[0]) == history_of(watched.pools[0])
