"""The duties of every growth policy, both ours and those of plug-ins, according to ``OwnGrowth``.

A policy's tests inherit ``GrowthContract`` and define the fixture ``policy``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

import msgspec
from msgspec.structs import replace

from slurm_elastic.config.growth_kinds import checked_growth
from slurm_elastic.policies.growth.capacity import AnyGrowth, Demand, Waiting
from slurm_elastic.policies.growth.counted_once import counts_once
from slurm_elastic.policies.growth.guarded import grown
from slurm_elastic.policies.growth.release import Flagged
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    PendingJob,
    PoolRules,
    PoolSnapshot,
    decide,
    excess,
)
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario

NOON = 1_800_014_400
"""Unix time of noon on a Friday, when the tested week begins."""
DAY_S = 86400
MAX_LOOKS = 1000
_QUEUES = (
    (),
    (Waiting(1, 60, NOON),),
    (Waiting(4, 3600, NOON - 7200), Waiting(1, 60, NOON)),
    (Waiting(2, 10 * 365 * DAY_S, NOON - DAY_S),) * 500,
)


def demands() -> Iterator[Demand]:
    """Yield demands with empty and full sites and queues, on each day of a week."""
    for day, queue, idle, busy, booting, head in product(
        range(7), _QUEUES, (0, 3), (0, 5), (0, 2), (None, 600)
    ):
        now = NOON + day * DAY_S
        yield Demand(
            now=now, queue=queue, fresh=queue[:1], running=busy, idle=idle, busy=busy,
            booting=booting, spare=idle, head_start=None if head is None else now + head,
        )  # fmt: skip


class GrowthContract:
    """The properties on which the daemon, its journal and the simulator rely."""

    def test_each_answer_makes_sense(self, policy: AnyGrowth) -> None:
        """The answer is None, or machines with a readable reason. Otherwise ``grown`` raises
        GrowthError.
        """
        for demand in demands():
            growth = grown(policy, demand)
            assert growth is None or str(growth.reason).strip(), demand
            assert excess(policy, demand) >= 0, demand

    def test_the_same_facts_have_the_same_answer(self, policy: AnyGrowth) -> None:
        answers = [grown(policy, demand) for demand in demands()]
        reversed_answers = [grown(policy, demand) for demand in reversed(tuple(demands()))]
        assert answers == reversed_answers[::-1]

    def test_machines_that_come_are_enough_some_time(self, policy: AnyGrowth) -> None:
        """If the queue never changes and all requested machines are booting, the policy must be
        satisfied after some looks.
        """
        for demand in demands():
            current = demand
            for _ in range(MAX_LOOKS):
                growth = grown(policy, current)
                if growth is None:
                    break
                fresh = () if counts_once(policy) else current.queue
                current = replace(current, booting=current.booting + growth.machines, fresh=fresh)
            assert growth is None, f"still {growth} after {MAX_LOOKS} looks at {demand}"

    def test_its_text_is_read_again(self, policy: AnyGrowth) -> None:
        assert checked_growth(text_of(policy)) == policy

    def test_the_daemon_decides_and_journals_by_it(self, policy: AnyGrowth) -> None:
        rules = PoolRules(growth=policy, release=Flagged())
        now = GroupSnapshot(
            now=NOON,
            growth=policy,
            pools=(PoolSnapshot(name="burst", rules=rules, room=5),),
            queue=(PendingJob(1, 2, 60, NOON, ("burst",)),),
        )
        plan = decide(now)
        assert not plan.failed, plan.unserved
        assert json.loads(msgspec.json.encode(msgspec.to_builtins(now)))["growth"]

    def test_the_simulator_serves_every_job_by_it(self, policy: AnyGrowth) -> None:
        jobs = [
            Job(number=i, submit=60 * i, procs=1 + i % 3, run=600, limit=900) for i in range(20)
        ]
        pool = PoolModel(name="burst", machines=4, procs=1, public=True)
        result = simulate(Jobs(jobs), Scenario(pools=(pool,), growth=policy))
        assert all(start >= 0 for start in result.starts)
