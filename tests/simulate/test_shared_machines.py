"""Machines that jobs share by cores, memory and GPUs, as Slurm packs them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.checkpoint.checkpoint import Hour
from slurm_elastic.policies.growth.capacity import AnyGrowth, OnDemand, Slurm
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate import simulate
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.shared_machines import SharedMachine

POOL = PoolModel(
    name="cloud", machines=9, procs=4, memory=1000, gpus=0, shared=True, price=1.0,
    release=Idle(60), boot=BootTimes(((1, 10),)),
)  # fmt: skip

SITE = """
cluster: {{name: demo}}
allow: {{accounts: [physics], max_time: 7d}}
limits: {{dollars_per_hour: 900}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-0123456789abcdef0
    zones: [us-east-1a]
    types: {{c6i.xlarge: {{cpus: 4, memory: 8G, price: 0.2}}}}
pools:
  - {{name: p, cloud: aws, nodes: "n[1-99]", cpus: 4, memory: 8G, {share}
     instance_types: [c6i.xlarge]}}
"""


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
    assert list(pool.leases.end) == [10 + 300 + 60]
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


RACK = replace(POOL, machines=2, standing=2, public=False, memory=0, price=0.0)


def starts(*jobs: Job, pool: PoolModel = RACK) -> list[int]:
    return list(ran(*jobs, pool=pool).runs.first)


def test_jobs_wait_for_machines_that_others_share() -> None:
    """The third needs two whole machines, and the last one of them, while others share the first:
    each machine is counted once when it is asked when they will be free.
    """
    rows = [(0, 829, 1658, 2), (497, 518, 1036, 2), (849, 230, 1150, 8), (887, 485, 485, 7)]
    assert starts(*(Job(1, *row) for row in rows)) == [0, 497, 1015, 1245]


def test_a_small_job_waits_for_room_beside_others_not_for_a_machine_of_its_own() -> None:
    """The first that waits needs two processors, which the job of 50 s leaves; the last would keep
    them until 130, and the one before it only until then.
    """
    two = job(0, 100, 2), job(0, 400, 4), job(0, 50, 2)
    assert starts(*two, job(10, 300, 2), job(11, 400, 1))[3:] == [50, 100]
    one = job(0, 100, 2), job(0, 400, 4), job(0, 50, 1)
    assert starts(*one, job(10, 300, 2), job(11, 120, 1), job(12, 35, 1))[3:] == [50, 100, 12]


def test_room_beside_a_job_that_stays_is_kept_until_another_one_leaves_it_some() -> None:
    """At 100 three of four processors are the third job's: the last would have one until 511."""
    there = job(0, 100, 1), job(0, 1000, 1), job(0, 1000, 4)
    assert starts(*there, job(10, 300, 3), job(11, 500, 1))[3:] == [100, 400]


def test_a_job_goes_beside_others_where_it_keeps_nothing_from_the_first_that_waits() -> None:
    """Both machines have one processor left. The first is kept for the fourth job from 50 on."""
    busy = job(0, 50, 3), job(0, 400, 3)
    assert starts(*busy, job(1, 300, 4), job(2, 200, 1)) == [0, 0, 50, 2]


def test_a_machine_that_is_left_early_by_its_longest_job_is_free_for_the_first_that_waits() -> None:
    """At 20 the job that might have stayed until 1000 is gone: the whole machine is expected at 60,
    so the last, which would stay until 72, waits for it.
    """
    early = Job(1, 0, 20, 1000, 1), Job(1, 0, 60, 60, 1), Job(1, 0, 500, 500, 4)
    assert starts(*early, job(1, 100, 4), job(22, 50, 2))[3:] == [60, 160]


def test_for_a_job_that_needs_a_whole_machine_no_one_is_kept() -> None:
    """Two may be free at any moment from 20 on, as their jobs are beyond their limits: one is the
    first job's, and the last, of one processor, may stay beside the other's.
    """
    beyond = Job(1, 0, 100, 10, 1), Job(1, 0, 200, 20, 4)
    assert starts(*beyond, job(1, 50, 4), job(30, 500, 1))[2:] == [200, 30]


def check_expectations(engine: Engine) -> None:
    """Each machine in use is expected once, when the last of its jobs has reached its limit."""
    for index, machines in enumerate(engine.pools):
        shared = machines.shared
        assert shared is not None
        for host in shared.hosts:
            shares = [shared.share(one) for one in host.jobs]
            assert host.left == tuple(
                whole - sum(parts)
                for whole, parts in zip(shared.whole, zip(*shares, strict=True), strict=True)
            )
        limits = {
            run.job: (run.ready + engine.jobs.limit[run.job], run.need)
            for run in engine.runs.now.values()
            if run.pool == index
        }
        found = [max(limits.pop(one) for one in host.jobs) for host in shared.hosts]
        found += list(limits.values())
        coming = [(key >> 64, key & (1 << 32) - 1) for key in machines.coming.values()]
        if machines.expected.tracks:
            kept = [(key >> 64, key & (1 << 32) - 1) for key in machines.expected.keys]
            assert sorted(found + coming) == sorted(kept)


class Watched(Engine):
    """Looks at what is expected of machines each time the queue is looked at."""

    def __init__(self, jobs: Jobs, scenario: Scenario) -> None:
        super().__init__(jobs, scenario)
        schedule = self.queue.schedule

        def watched(now: int) -> None:
            check_expectations(self)
            schedule(now)
            check_expectations(self)

        self.queue.schedule = watched  # type: ignore[method-assign]


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
    engine = Watched(history, scenario)
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


small = st.builds(
    lambda submit, run, limit, procs: Job(1, submit, run, max(run, limit), procs),
    st.integers(0, 100), st.integers(0, 60), st.integers(0, 100), st.integers(1, 11),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(small, min_size=1, max_size=20).map(Jobs))
def test_each_machine_is_expected_once_while_jobs_wait(history: Jobs) -> None:
    engine = Watched(history, Scenario(pools=(replace(RACK, machines=3, standing=3),)))
    assert engine.run().figures.unserved == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(small, min_size=1, max_size=20).map(Jobs))
def test_in_the_order_of_submission_no_job_starts_later_for_sharing(history: Jobs) -> None:
    """A theorem where no job overtakes another: by induction, at any time the jobs before one hold
    no more machines than they would without sharing.
    """
    pool = replace(RACK, machines=3, standing=3)
    alone = Scenario(pools=(replace(pool, shared=False),), depth=1)
    beside = Scenario(pools=(pool,), depth=1)
    later = Engine(history, alone).run().starts
    assert all(a <= b for a, b in zip(Engine(history, beside).run().starts, later, strict=True))


def of_users(seed: int) -> Jobs:
    chance = random.Random(seed)
    return Jobs(
        Job(1, chance.randrange(4000), run, run + chance.randrange(600), procs, user=user)
        for run, procs, user in (
            (chance.randint(1, 900), chance.choice((1, 1, 2, 3, 4, 6)), chance.randrange(3))
            for _ in range(80)
        )
    )


def test_users_who_do_not_share_get_machines_of_their_own() -> None:
    jobs = [job(0, 100, 1)._replace(user=user) for user in (1, 1, 1, 2, 2, 2, 2, 2)]
    machines = {
        name: ran(*jobs, pool=pool).pools[0].launched
        for name, pool in (
            ("anybody", POOL), ("user", replace(POOL, by_user=True)),
            ("exclusive", replace(POOL, shared=False)),
        )
    }  # fmt: skip
    assert machines == {"anybody": 2, "user": 3, "exclusive": 8}


@pytest.mark.parametrize("growth", [Slurm(), OnDemand()], ids=["slurm", "on_demand"])
def test_no_two_users_are_on_one_machine_at_a_time(
    growth: AnyGrowth, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = replace(POOL, by_user=True, machines=5)
    for seed in range(15):
        jobs = of_users(seed)
        engine = Engine(jobs, Scenario(pools=(pool,), growth=growth))
        shared = engine.pools[0].shared
        assert shared is not None
        joined: list[tuple[int, SharedMachine]] = []
        join = shared.join

        def noted(number: int, host: SharedMachine, end: int) -> None:
            assert {jobs.user[one] for one in host.jobs} <= {jobs.user[number]}  # noqa: B023
            joined.append((number, host))  # noqa: B023
            join(number, host, end)  # noqa: B023

        monkeypatch.setattr(shared, "join", noted)
        engine.run()
        assert joined
        assert min(engine.runs.ended) >= 0


def test_one_user_shares_as_everybody_does() -> None:
    jobs = Jobs(one._replace(user=7) for one in map(of_users(1).__getitem__, range(80)))
    runs = []
    for by_user in (False, True):
        engine = Engine(jobs, Scenario(pools=(replace(POOL, by_user=by_user, machines=5),)))
        engine.run()
        runs.append((list(engine.runs.first), list(engine.pools[0].leases.rows())))
    assert runs[0] == runs[1]


def test_a_pools_share_is_read_from_the_configuration(tmp_path: Path) -> None:
    machines = {}
    for share in ("", "share: user,", "share: exclusive,"):
        file = tmp_path / "site.yaml"
        file.write_text(SITE.format(share=share))
        jobs = [
            {
                "JobIDRaw": number, "Submit": 1_800_000_000, "ElapsedRaw": 600, "ReqCPUS": 1,
                "State": "COMPLETED", "User": user, "Account": "physics",
            }
            for number, user in enumerate(("ann", "ann", "ann", "bob", "bob", "bob", "bob", "bob"))
        ]  # fmt: skip
        (row,) = simulate(jobs, file, "slurm").pools
        machines[share] = row["launched"]
    assert list(machines.values()) == [2, 3, 8]
