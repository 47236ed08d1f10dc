"""Capacity blocks in the simulator: filled first, never under a job whose limit passes their end, and
paid as the cloud bills.
"""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Pool
from slurm_elastic.model.reserved import BLOCK_LEAD_S, Held, ReservationKind
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
)
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.policies.launch.reservations import SLACK_S
from slurm_elastic.simulate import Options, simulate
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.engine import simulate as replay
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario, Sold
from tests.simulate.test_reservations import HOUR, PRICE, moment, rows, site

BOOT = 90
END = 10 * HOUR
GONE = END - round(BLOCK_LEAD_S)
BLOCK = Held(
    cloud="aws", name="block", kind=ReservationKind.BLOCK, begins_at=0.0, ends_at=float(END),
    instance_type="m", zone="z", count=2, price=2.0,
)  # fmt: skip
BARE = Offer(
    cloud="aws", location=Location.PUBLIC, instance_type="m", zone="z", market=Market.ON_DEMAND,
    price=1.0, on_demand_price=1.0, cpus=4, memory=1000,
)  # fmt: skip
ON_BLOCK = replace(BARE, market=Market.RESERVED, held=BLOCK, price=2.0)
POOL = PoolModel(
    name="p", machines=9, procs=4, release=Idle(20 * HOUR), boot=BootTimes(((1, BOOT),)),
    offers=(Sold(offer=ON_BLOCK), Sold(offer=BARE)), resume_timeout=BOOT,
    wanted=Pool(
        name="p", cloud="aws", nodes=(), cpus=4, real_memory=1000,
        markets=(Market.RESERVED, Market.ON_DEMAND),
    ),
)  # fmt: skip


def job(submit: int, run: int, machines: int = 1, limit: int | None = None) -> Job:
    return Job(1, submit, run, limit or run, 4 * machines)


def ran(*jobs: Job, growth: AnyGrowth | None = None, pool: PoolModel = POOL) -> Engine:
    engine = Engine(
        Jobs(jobs), Scenario(pools=(pool,), growth=growth or Slurm(), held=(BLOCK,))
    )  # fmt: skip
    engine.run()
    assert engine.runs.interruptions == 0
    for batch, end, _, _ in engine.pools[0].leases.rows():
        if engine.pools[0].batch_offer[batch] == 0:
            assert end <= GONE
    return engine


def offers(engine: Engine) -> list[int]:
    """By machine, in the order of their launches: 0 for the block, 1 for on demand."""
    (pool,) = engine.pools
    return [
        pool.batch_offer[batch]
        for batch, _, count, _ in sorted(pool.leases.rows())
        for _ in range(count)
    ]


def test_a_block_is_filled_first() -> None:
    assert offers(ran(*(job(0, HOUR) for _ in range(3)))) == [0, 0, 1]


@pytest.mark.parametrize(("spare", "offer"), [(0, 0), (1, 1)])
def test_a_job_whose_limit_passes_the_end_is_placed_elsewhere(spare: int, offer: int) -> None:
    """slurm-elasticd's own bound: the longest boot, the limit, and some slack for clocks."""
    limit = GONE - BOOT - round(SLACK_S) + spare
    assert offers(ran(job(0, HOUR, limit=limit))) == [offer]


def test_an_idle_machine_of_a_block_gets_no_job_that_passes_its_end() -> None:
    short, long = job(0, HOUR), job(2 * HOUR, HOUR, limit=GONE - 2 * HOUR + 1)
    engine = ran(short, long)
    assert offers(engine) == [0, 1]
    fits = ran(short, job(2 * HOUR, HOUR, limit=GONE - 2 * HOUR))
    assert offers(fits) == [0]
    assert fits.runs.first[1] == 2 * HOUR


def test_the_cloud_ends_what_is_left_on_a_block() -> None:
    engine = ran(job(0, HOUR), job(30 * HOUR, HOUR))
    assert engine.pools[0].leases.end[0] == GONE
    assert offers(engine) == [0, 1]


def test_the_first_that_waits_is_promised_no_machine_that_ends_too_early() -> None:
    """Both machines are on the block, and the pool has no others. The second job is too long for
    the block, so it waits for its end; the third may use the block before that.
    """
    pool = replace(POOL, machines=2)
    blocked = [job(0, HOUR), job(0, 9 * HOUR - 200), job(HOUR, HOUR, limit=12 * HOUR)]
    engine = ran(*blocked, job(HOUR + 60, 2 * HOUR), pool=pool)
    assert engine.runs.first[3] == HOUR + BOOT or engine.runs.first[3] < 2 * HOUR
    assert engine.runs.first[2] >= 9 * HOUR - 200


def drawn(seed: int) -> list[Job]:
    chance = random.Random(seed)
    jobs = []
    for _ in range(50):
        run, procs = chance.randint(60, 6 * HOUR), chance.choice((1, 2, 4, 8))
        submit, limit = chance.randrange(12 * HOUR), run + chance.randrange(HOUR)
        jobs.append(Job(1, submit, run, limit, procs))
    return jobs


@pytest.mark.parametrize("growth", [Slurm(), OnDemand()], ids=["slurm", "on_demand"])
@pytest.mark.parametrize("shared", [False, True], ids=["whole", "shared"])
def test_no_job_is_cut_by_the_end_of_a_block_and_its_price_is_paid(
    growth: AnyGrowth, *, shared: bool
) -> None:
    for seed in range(12):
        jobs = Jobs(drawn(seed))
        pool = replace(POOL, shared=shared, release=Idle(60 * (1 + seed % 2 * 59)))
        engine = ran(*drawn(seed), growth=growth, pool=pool)
        assert min(engine.runs.ended) > 0
        outcome = replay(jobs, Scenario(pools=(pool,), growth=growth, held=(BLOCK,)))
        (machines,) = outcome.pools
        on_demand_s = sum(
            count * max(end - machines.batch_start[batch], 60)
            for batch, end, count, _ in machines.leases.rows()
            if machines.batch_offer[batch] == 1
        )
        block_s = END - jobs.submit[0]
        dollars = (block_s * BLOCK.count * BLOCK.price + on_demand_s) / 3600
        assert outcome.figures.cost == pytest.approx(dollars, abs=1e-4)


def test_a_growth_policy_counts_no_machine_that_the_waiting_job_cannot_use() -> None:
    """Both machines of the block idle when a job comes that is too long for it."""
    engine = ran(job(0, HOUR), job(0, HOUR), job(9 * HOUR + 600, HOUR), growth=OnDemand())
    assert offers(engine) == [0, 0, 1]
    assert engine.runs.first[2] == 9 * HOUR + 600 + BOOT


def test_a_machine_ahead_of_need_takes_no_room_from_a_job_that_needs_all() -> None:
    """The limits leave room for the three machines that the long job needs. A fourth one would be
    on the block, which ends too early for the job.
    """
    late = 8 * HOUR + 600
    scenario = Scenario(
        pools=(POOL,), growth=GroupBursts(group=4), held=(BLOCK,), guarded=True,
        limits=Limits(nodes=3),
    )  # fmt: skip
    engine = Engine(Jobs([job(late, 2 * HOUR, machines=3)]), scenario)
    engine.run()
    assert sorted(offers(engine)[:3]) == [1, 1, 1]
    assert engine.runs.first[0] == late + BOOT


def test_a_growth_policy_starts_no_machine_that_ends_before_the_waiting_job() -> None:
    late = 8 * HOUR + 600
    engine = ran(job(0, HOUR), job(late, 2 * HOUR), growth=OnDemand())
    assert offers(engine) == [0, 1]
    assert engine.runs.first[1] == late + BOOT


def test_of_the_jobs_that_wait_together_each_gets_machines_that_last() -> None:
    """The first job is too long for the block, the second and third are not."""
    late = 8 * HOUR + 600
    jobs = [job(late, 2 * HOUR), job(late, 600), job(late, 900)]
    engine = ran(*jobs, growth=OnDemand())
    assert sorted(offers(engine)) == [0, 0, 1]
    assert list(engine.runs.first) == [late + BOOT] * 3


def test_a_machine_for_no_job_may_end_early() -> None:
    """Two machines start for the one job, and only it needs a machine that stays."""
    late = 8 * HOUR + 600
    engine = ran(job(late, 2 * HOUR), growth=GroupBursts(group=2))
    assert sorted(offers(engine)) == [0, 1]
    assert engine.runs.first[0] == late + BOOT


def test_machines_for_jobs_of_both_kinds_are_counted_apart() -> None:
    """Two jobs come together: an idle machine of the block is for the short one alone."""
    late = 9 * HOUR + 600
    jobs = [job(0, HOUR), job(0, HOUR), job(late, HOUR), job(late, 120)]
    engine = ran(*jobs, growth=OnDemand())
    assert offers(engine) == [0, 0, 1]
    assert list(engine.runs.first)[2:] == [late + BOOT, late]


LATER = replace(BLOCK, name="later", begins_at=24.0 * HOUR, ends_at=40.0 * HOUR)
ONLY = replace(
    POOL, machines=4, offers=(Sold(offer=ON_BLOCK),), release=Idle(600),
    wanted=Pool(
        name="p", cloud="aws", nodes=(), cpus=4, real_memory=1000, markets=(Market.RESERVED,)
    ),
)  # fmt: skip
"""A pool that has the machines of the block only."""
GROWTHS = (Slurm(), OnDemand(), Bursts(), GroupBursts(group=1), SemiElastic(), Ratio())


@pytest.mark.parametrize("growth", GROWTHS, ids=lambda growth: type(growth).__name__)
@pytest.mark.parametrize("depth", [1, 2], ids=["easy", "two reservations"])
@pytest.mark.parametrize("has_later", [False, True], ids=["only", "and later"])
def test_jobs_that_outlast_the_only_block_do_not_keep_its_machines_from_others(
    growth: AnyGrowth, depth: int, *, has_later: bool
) -> None:
    """slurm-elasticd counts no such job and starts no machine for it."""
    held = (BLOCK, LATER) if has_later else (BLOCK,)
    pool = replace(ONLY, offers=tuple(Sold(offer=replace(ON_BLOCK, held=row)) for row in held))
    jobs = [job(0, HOUR, limit=11 * HOUR) for _ in range(4)] + [job(60, 600), job(60, 600)]
    scenario = Scenario(
        pools=(pool,), growth=growth, held=held, guarded=True, reservations=depth
    )  # fmt: skip
    engine = Engine(Jobs(jobs), scenario)
    engine.run()
    first = list(engine.runs.first)
    assert max(first[4:]) < HOUR
    assert all(start >= LATER.begins_at if has_later else start < 0 for start in first[:4])
    assert engine.unserved == ([] if has_later else [0, 1, 2, 3])


@pytest.mark.parametrize("growth", GROWTHS[:-1], ids=lambda growth: type(growth).__name__)
def test_jobs_that_outlast_a_block_get_the_machines_of_another_pool(growth: AnyGrowth) -> None:
    """They do not hold the pool of the block, in which the short jobs run. Ratio starts no machine
    here, because more jobs run than wait.
    """
    other = replace(
        POOL, name="q", machines=4, offers=(Sold(offer=BARE),),
        wanted=Pool(
            name="q", cloud="aws", nodes=(), cpus=4, real_memory=1000, markets=(Market.ON_DEMAND,)
        ),
    )  # fmt: skip
    jobs = [job(0, HOUR, limit=11 * HOUR) for _ in range(4)] + [job(60, 600), job(60, 600)]
    engine = Engine(Jobs(jobs), Scenario(pools=(ONLY, other), growth=growth, held=(BLOCK,)))
    engine.run()
    assert set(engine.runs.where[:4]) == {1}
    assert max(engine.runs.first) < HOUR
    assert 0 in engine.runs.where[4:]


def test_the_bill_is_the_block_and_the_machines_on_demand(tmp_path: object) -> None:
    line = (
        "name: b, kind: capacity-block, id: cr-0123456789abcdef0, type: c6i.large, count: 2,"
        f" zone: us-east-1a, price: 0.5, from: {moment(0)}, to: {moment(END)}"
    )
    config = site(tmp_path, line)  # type: ignore[arg-type]
    jobs = [(0, HOUR), (0, HOUR), (0, HOUR), (11 * HOUR, HOUR)]
    result = simulate(
        rows(jobs), config, "individual", Options(boot=((1, float(BOOT)),), whole_nodes=True)
    )
    on_demand = 2 * (HOUR + BOOT) / 3600 * PRICE
    total = result.totals[0]
    assert total["cost"] == pytest.approx(2 * 0.5 * END / 3600 + on_demand, abs=1e-4)
    assert total["on_demand"] == pytest.approx(on_demand, abs=1e-4)
    assert result.runs[0][1].figures.interruptions == 0
