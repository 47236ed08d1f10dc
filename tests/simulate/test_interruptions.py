"""The simulator counts interruptions by machines, as ``ckptman.snapshot`` does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_cases import machine_with
from msgspec.structs import replace
from simulate.histories import histories

from slurm_elastic.ckptman.snapshot import mean_times_to_interruption
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.checkpoint.checkpoint import DEFAULT_MTTI, Daly, OnNotice, joint_mtti
from slurm_elastic.policies.growth.capacity import AnyGrowth, OnDemand, Slurm
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import Engine, simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.runs import SimulatedRun
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario
from tests.policies.strategies import instance

SAVES = Checkpoints(policy=Daly(), dump=5, restart=5, look=5)


def scenario(
    *available: tuple[int, int], growth: AnyGrowth | None = None, clock: Clock = Clock.READY
) -> Scenario:
    market = SpotMarket(Curve.flat(0.1), available=available)
    pool = PoolModel(
        name="cloud", machines=40, price=1.0, boot=BootTimes(((1, 20),)), release=Idle(60),
        spot=market, clock=clock,
    )  # fmt: skip
    return Scenario(pools=(pool,), growth=growth or Slurm(), checkpoints=SAVES)


def begun(engine: Engine) -> list[SimulatedRun]:
    """All runs, as they were when they began."""
    found: list[SimulatedRun] = []
    begin = engine.runs.begin

    def noted(job: int, *others: Any) -> tuple[int, int]:
        answer = begin(job, *others)
        found.append(engine.runs.now[job])
        return answer

    engine.runs.begin = noted  # type: ignore[method-assign]
    engine.run()
    return found


def test_a_job_on_many_machines_is_interrupted_with_the_first_of_them() -> None:
    jobs = Jobs([Job(1, 0, 100, 100, 1), Job(2, 0, 100, 100, 16)])
    assert [run.mtti for run in begun(Engine(jobs, scenario((0, 40))))] == [
        DEFAULT_MTTI,
        pytest.approx(DEFAULT_MTTI / 16),
    ]


def test_a_run_whose_machine_is_lost_while_it_boots_never_began() -> None:
    """The second job waits for machines that would be ready at 201, and runs at 200 on one that is."""
    market = SpotMarket(Curve.flat(0.1), available=[(0, 9), (200, 3)])
    pool = PoolModel(
        name="cloud", machines=8, price=1.0, boot=BootTimes(((1, 20), (8, 60))), release=Idle(60),
        spot=market, clock=Clock.REQUEST,
    )  # fmt: skip
    jobs = Jobs([Job(1, 0, 115, 1, 6), Job(2, 168, 0, 1, 2)])
    outcome = simulate(jobs, Scenario(pools=(pool,), growth=Slurm()))
    assert outcome.figures.interruptions == 1
    assert (list(outcome.starts), list(outcome.ends)) == ([54, 200], [169, 200])


def test_machines_count_and_not_jobs() -> None:
    """Eight machines run for 980 s, idle for 20 and are lost together."""
    jobs = Jobs([Job(1, 0, 980, 980, 8), Job(2, 1300, 50, 50, 1)])
    runs = begun(Engine(jobs, scenario((0, 40), (1020, 0), (1030, 40))))
    assert runs[-1].mtti == pytest.approx((8 * 1000 + DEFAULT_MTTI) / 9)


def test_machines_on_demand_beside_them_count_as_those_that_are_seldom_lost() -> None:
    jobs = Jobs([Job(1, 0, 100, 100, 6)])
    (run,) = begun(Engine(jobs, scenario((0, 4))))
    assert run.mtti == pytest.approx(DEFAULT_MTTI / 6)


def test_a_saved_job_moves_at_once_and_its_machine_ends_with_it() -> None:
    """The cloud warns at 880 of the loss at 1000; the save takes 5 s from the next look on."""
    site = replace(scenario((0, 40), (1000, 0), (1010, 40)), requeue_delay=0)
    site = replace(site, checkpoints=replace(SAVES, policy=OnNotice()))
    engine = Engine(Jobs([Job(1, 0, 2000, 2000, 2)]), site)
    outcome = engine.run()
    (pool,) = engine.pools
    first = min(pool.leases.end)
    assert 885 <= first <= 890, "and not at 1000"
    assert outcome.figures.interruptions == outcome.figures.checkpoints == 1
    assert outcome.figures.lost_hours == 0
    assert engine.runs.ended[0] == first + 20 + 5 + 2000 - (first - 5 - 20)


def test_what_a_saved_job_leaves_idle_is_given_to_the_next_at_once() -> None:
    """The second job has the first one's machine and one more, which is to be lost at 1000; it moves
    at 885.
    """
    site = scenario((0, 2), (1000, 1), growth=OnDemand())
    pools = tuple(replace(pool, machines=2) for pool in site.pools)
    saves = replace(SAVES, policy=OnNotice())
    site = replace(site, pools=pools, requeue_delay=500, checkpoints=saves)
    jobs = Jobs([Job(1, 0, 40, 40, 1), Job(2, 50, 2000, 2000, 2), Job(3, 100, 300, 300, 1)])
    assert list(simulate(jobs, site).starts) == [20, 80, 885]


@settings(max_examples=60, deadline=None)
@given(
    history=histories,
    falls=st.lists(st.integers(1, 900), max_size=4, unique_by=lambda at: at // 60),
    growth=st.sampled_from((Slurm(), OnDemand())),
    clock=st.sampled_from(tuple(Clock)),
)
def test_what_is_known_when_a_job_begins_is_what_the_daemon_would_know(
    history: Jobs, falls: list[int], growth: AnyGrowth, clock: Clock
) -> None:
    steps = {0: 9} | dict.fromkeys(falls, 0) | {at + 50: 9 for at in falls}
    engine = Engine(history, scenario(*sorted(steps.items()), growth=growth, clock=clock))
    (pool,) = engine.pools
    for run in begun(engine):
        if run.mtti is None:
            continue
        spot = sum(count for batch, count in run.pieces if pool.batch_spot[batch])
        each = daemons(engine, run.assigned_at)
        times = [each.get(Market.SPOT, DEFAULT_MTTI)] * spot
        times += [each.get(Market.ON_DEMAND, DEFAULT_MTTI)] * (run.need - spot)
        assert run.mtti == pytest.approx(joint_mtti(times))


def daemons(engine: Engine, now: int) -> dict[str, float]:
    """``mean_times_to_interruption`` of the machines that had been there by then, by market."""
    (pool,) = engine.pools
    machines: list[Machine] = []
    taken: Counter[str] = Counter()
    rows = zip(
        pool.leases.batch, pool.leases.end, pool.leases.count, pool.leases.reclaimed, strict=True
    )
    for batch, end, count, reclaimed in rows:
        market = Market.SPOT if pool.batch_spot[batch] else Market.ON_DEMAND
        start = pool.batch_start[batch]
        one = replace(instance("i", "n", "g"), market=market, launched=float(start))
        if min(start, end) <= now:
            machines += [
                machine_with(instance=one, pool="cloud", ended=float(min(end, now)))
            ] * count
            taken[one.offer_key] += count if reclaimed and end <= now else 0
    times = mean_times_to_interruption(machines, taken, float(now))
    return {offer.rsplit("/", 1)[1]: seconds for offer, seconds in times.items()}
