"""Machines that jobs share by cores, memory and GPUs, as Slurm packs them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.capacity import AnyGrowth, OnDemand, Slurm
from slurm_elastic.policies.checkpoint import Hour
from slurm_elastic.policies.release import Idle
from slurm_elastic.simulate.billing import Curve
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.jobs import Job, Jobs
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.scenario import PoolModel, Scenario

POOL = PoolModel(
    name="cloud", machines=9, procs=4, memory=1000, gpus=0, shared=True, price=1.0,
    release=Idle(60), boot=BootTimes(((1, 10),)),
)  # fmt: skip


def job(submit: int, run: int, procs: int, memory: int = 0, gpus: int = 0) -> Job:
    return Job(1, submit, run, run, procs, memory=memory, gpus=gpus)


def ran(*jobs: Job, pool: PoolModel = POOL, **site: object) -> Engine:
    engine = Engine(Jobs(jobs), Scenario(pools=(pool,), **site))  # type: ignore[arg-type]
    engine.run()
    return engine


def test_jobs_of_one_core_share_machines_also_while_these_boot() -> None:
    engine = ran(*(job(n, 100, 1) for n in range(8)))
    assert engine.pools[0].launched == 2
    assert list(engine.runs.first) == [10, 10, 10, 10, 14, 14, 14, 14]
    whole = ran(*(job(n, 100, 1) for n in range(8)), pool=replace(POOL, shared=False))
    assert whole.pools[0].launched == 8


def test_memory_bounds_what_goes_together_and_how_many_machines_a_job_needs() -> None:
    engine = ran(job(0, 100, 1, 600), job(0, 100, 1, 600), job(0, 100, 1, 400), job(0, 9, 1, 1500))
    assert engine.pools[0].launched == 2 + 2


def test_a_machine_is_idle_when_its_last_job_ends() -> None:
    engine = ran(job(0, 100, 2), job(0, 300, 1), job(50, 100, 1))
    (pool,) = engine.pools
    assert pool.launched == 1
    assert list(pool.lease_end) == [10 + 300 + 60]
    assert pool.busy_area == 300


def test_jobs_with_gpus_go_where_there_are_any() -> None:
    with_gpus = replace(POOL, name="gpu", gpus=2)
    engine = Engine(
        Jobs([job(0, 100, 1, gpus=1), job(0, 100, 1, gpus=1), job(0, 100, 1, gpus=2), job(0, 9, 1)]),
        Scenario(pools=(POOL, with_gpus)),
    )  # fmt: skip
    engine.run()
    assert list(engine.runs.where) == [1, 1, 1, 0]
    assert engine.pools[1].launched == 2


def test_a_small_job_does_not_keep_a_machine_from_the_first_that_waits() -> None:
    """The second needs both machines, the other one boots from 110 on; the third would stay on the
    first until 300.
    """
    pool = replace(POOL, machines=2)
    engine = ran(
        job(0, 100, 1), job(1, 100, 8), job(2, 290, 1), job(3, 50, 1), pool=pool
    )  # fmt: skip
    first = list(engine.runs.first)
    assert first[1] == 120
    assert first[3] == 10, "which ends before"
    assert first[2] >= 120


jobs = st.lists(
    st.builds(
        job,
        st.integers(0, 400),
        st.integers(0, 120),
        st.integers(1, 12),
        st.integers(0, 1500),
        st.integers(0, 0),
    ),
    min_size=1,
    max_size=30,
).map(Jobs)


@settings(max_examples=100, deadline=None)
@given(
    jobs,
    st.lists(st.integers(1, 900), max_size=4, unique_by=lambda at: at // 60),
    st.sampled_from([Slurm(), OnDemand()]),
    st.booleans(),
)
def test_the_books_hold_when_shared_machines_are_lost(
    history: Jobs, falls: list[int], growth: AnyGrowth, saves: bool
) -> None:
    """The books are checked by the run itself; nobody has more of a machine than there is."""
    steps = {0: 9} | dict.fromkeys(falls, 0) | {at + 50: 9 for at in falls}
    spot = SpotMarket(Curve.flat(0.1), available=sorted(steps.items()))
    scenario = Scenario(pools=(replace(POOL, spot=spot),), growth=growth)
    if saves:
        how = Checkpoints(policy=Hour(margin=3595), dump=2, restart=3, look=1)
        scenario = replace(scenario, checkpoints=how)
    engine = Engine(history, scenario)
    outcome = engine.run()
    assert outcome.figures.unserved == 0
    (pool,) = engine.pools
    assert pool.shared is not None
    assert not pool.shared.hosts
    assert pool.shared.overlap >= 0


@settings(max_examples=60, deadline=None)
@given(jobs, st.sampled_from([Slurm(), OnDemand()]))
def test_whole_machines_are_the_same_either_way(history: Jobs, growth: AnyGrowth) -> None:
    whole = Jobs(
        job._replace(procs=-(-job.procs // 4) * 4, memory=0)
        for job in map(history.__getitem__, range(len(history)))
    )
    scenario = Scenario(pools=(POOL,), growth=growth)
    alone = replace(scenario, pools=(replace(POOL, shared=False),))
    one, other = Engine(whole, scenario).run(), Engine(whole, alone).run()
    assert (one.starts, one.ends, one.figures) == (other.starts, other.ends, other.figures)
