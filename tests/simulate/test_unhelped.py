"""The simulator stops buying for jobs that no machine helps, by slurm-elasticd's own guard."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.policies.growth.capacity import AnyGrowth, OnDemand, Ratio
from slurm_elastic.policies.growth.release import Flagged, Idle
from slurm_elastic.policies.growth.unused_purchases import IDLE_PROOF_S
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import Engine
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.unhelped import SimulatedGuard, _Bought

HOUR, BOOT, PERIOD = 3600, 100, 30
LONG = 20 * HOUR
BURST = PoolModel(
    name="burst", machines=4, procs=4, price=1.0, release=Idle(120), boot=BootTimes(((1, BOOT),)),
)  # fmt: skip
USELESS = replace(BURST, name="small", machines=3, procs=1, release=Idle(120))
# Two pools that share a limit: machines go when they are due, although jobs wait.
SITE = Scenario(pools=(BURST, USELESS), growth=Ratio(), guarded=True)


def job(submit: int, run: int, machines: int) -> Job:
    return Job(1, submit, run, run, 4 * machines)


FIRST, HEAD = job(0, LONG, 1), job(1000, HOUR, 4)
BEHIND = [job(1001, 2 * LONG, 1) for _ in range(3)]
"""HEAD needs all machines of the first pool, and so waits for FIRST. The jobs behind it would keep
three of them from it for longer than FIRST does, so they wait beside idle machines, which the
policy starts for them in vain. All are too large for the second pool, so none of its machines start.
"""
JOBS = [FIRST, HEAD, *BEHIND]


def found(*jobs: Job, growth: AnyGrowth | None = None, guarded: bool = True) -> Engine:
    site = replace(SITE, growth=growth or Ratio(), guarded=guarded, limits=Limits(nodes=6))
    engine = Engine(Jobs(jobs), site)
    engine.run()
    return engine


def in_vain(engine: Engine) -> list[int]:
    """When machines were bought for the other jobs while the first job ran."""
    assert not engine.pools[1].batch_start
    return sorted({start for start in engine.pools[0].batch_start if 0 < start < LONG})


def test_machines_that_help_nobody_are_bought_once_and_again_after_each_pause() -> None:
    assert len(in_vain(found(*JOBS, guarded=False))) > 200
    bought = [1020]
    for pause in (2 * HOUR, 4 * HOUR, 8 * HOUR):
        verdict = bought[-1] + BOOT + IDLE_PROOF_S
        bought.append(-(-(verdict + pause) // PERIOD) * PERIOD)
    assert in_vain(found(*JOBS)) == bought


def test_a_job_behind_others_counts_again_when_it_comes_first() -> None:
    kept = replace(BURST, release=Idle(30 * HOUR))
    engine = Engine(Jobs(JOBS), replace(SITE, pools=(kept,)))
    engine.run()
    guard, soon = engine.guard, 2 * HOUR
    assert guard is not None
    assert list(engine.runs.first)[1:] == [LONG + BOOT] + [LONG + BOOT + HOUR] * 3
    assert guard.unhelped_jobs == {3, 4}, "the first of them was the first that waited"
    assert list(guard.counted([1, 3, 4], soon)) == [1]
    assert list(guard.counted([3, 4], soon)) == [3]


def test_machines_that_are_used_change_nothing() -> None:
    jobs = [job(500 * number, 900 + 7 * number, 2) for number in range(60)]
    for growth in (OnDemand(), Ratio()):
        plain, guarded = (found(*jobs, growth=growth, guarded=how) for how in (False, True))
        assert list(plain.runs.first) == list(guarded.runs.first)
        assert plain.pools[0].batch_start == guarded.pools[0].batch_start


def test_a_job_that_needs_more_than_the_unused_machines_still_counts() -> None:
    engine = found(*JOBS)
    assert engine.guard is not None
    assert 1 not in engine.guard.unhelped_jobs


def test_a_job_that_was_interrupted_since_counts_again() -> None:
    engine = found(*JOBS)
    guard = engine.guard
    assert guard is not None
    for restarted in (False, True):
        guard._rows = {2: UnhelpedJob(job=2, asks="", since=0, reason="Priority")}
        if restarted:
            guard.interrupted(2, 5)
        assert list(guard.counted([1, 2], 6)) == ([1, 2] if restarted else [1])


def test_machines_that_are_kept_warm_are_watched_when_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They start when no job waits. A later job is none that they were started for, and a look at
    them then would lie in the past.
    """
    looks: list[int] = []
    look = SimulatedGuard.look

    def watched(guard: SimulatedGuard, number: int, waiting: list[int], now: int) -> bool:
        looks.append(now)
        return look(guard, number, waiting, now)

    monkeypatch.setattr(SimulatedGuard, "look", watched)
    warm = replace(BURST, min_idle=1)
    engine = Engine(
        Jobs([job(0, 100, 1), job(HOUR, 900, 1), job(2 * HOUR, 100, 3)]),
        replace(SITE, pools=(warm,), growth=OnDemand()),
    )
    engine.run()
    assert looks == sorted(looks) != []
    assert min(looks) == BOOT
    assert not [when for when in looks if BOOT < when < 2 * HOUR]


def test_a_look_at_a_judged_purchase_changes_nothing() -> None:
    """Some looks at a purchase are planned before an earlier one judges it."""
    engine = found(*JOBS)
    guard = engine.guard
    assert guard is not None
    assert not guard._bought
    pauses = [number for number in range(1, guard._next_number()) if guard.look(number, [1], LONG)]
    assert pauses == sorted(guard._pauses) != []
    assert len(pauses) < guard._number - 1


def test_a_machine_that_is_idle_for_a_short_time_is_no_proof() -> None:
    """Also in a pool whose release needs no idle times, so that its idle machines have none."""
    engine = Engine(
        Jobs([job(0, 100, 1)]), replace(SITE, pools=(replace(BURST, release=Flagged()),))
    )  # fmt: skip
    (machines,), guard = engine.pools, engine.guard
    assert guard is not None
    ((ready, ((batch, count),)),) = machines.start([(0, 1)], 0)
    machines.expect_boot(batch, count, ready)
    machines.put_idle(batch, machines.booted(batch), ready)
    for idle_s in (0, IDLE_PROOF_S - 1, IDLE_PROOF_S):
        enough = guard._sufficed(_Bought(0, (), [0]), ready + idle_s)
        assert enough == ({0} if idle_s == IDLE_PROOF_S else set())
