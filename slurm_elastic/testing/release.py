"""The duties of every release policy, both ours and those of plug-ins, according to ``OwnRelease``.

A policy's tests inherit ``ReleaseContract`` and define the fixture ``policy``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

import msgspec

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config.release_kinds import checked_release
from slurm_elastic.policies.growth.capacity import OnDemand
from slurm_elastic.policies.growth.release import AnyRelease, IdleMachine
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    IdleInstance,
    PoolRules,
    PoolSnapshot,
    decide,
)
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario

NOON = 1_800_014_400
"""Unix time of noon on a Friday, when the tested week begins."""
HOUR_S, DAY_S = 3600, 86400


def machines() -> Iterator[IdleMachine]:
    """Yield machines of each age and idle time, at each third hour of a week."""
    for hours, age, idle, lease, public in product(
        range(0, 7 * 24, 3), (0, 1, 600, 90_000), (0, 1, 599, 80_000), (1, 3600), (True, False)
    ):
        now = NOON + hours * HOUR_S
        if idle <= age:
            yield IdleMachine(now - age, now - idle, now, lease, public)


def due_of(policy: AnyRelease, machine: IdleMachine) -> int:
    """Return the time at which the machine may go, in the policy's opinion."""
    started, since, now, lease, public = machine
    return policy.due(started, since, now, lease, public=public)


class ReleaseContract:
    """The properties on which the daemon, its journal and the simulator rely."""

    def test_each_answer_is_a_time_from_now_on(self, policy: AnyRelease) -> None:
        for machine in machines():
            when = due_of(policy, machine)
            assert type(when) is int, machine
            assert when >= machine.now, machine

    def test_the_same_facts_have_the_same_answer(self, policy: AnyRelease) -> None:
        answers = [due_of(policy, machine) for machine in machines()]
        reversed_answers = [due_of(policy, machine) for machine in reversed(tuple(machines()))]
        assert answers == reversed_answers[::-1]

    def test_a_machine_that_stays_idle_goes_some_time(self, policy: AnyRelease) -> None:
        """Ask again at the time of each answer, as the simulator does. The machine must be due
        within days.
        """
        for machine in machines():
            current = machine
            while (when := due_of(policy, current)) > current.now:
                assert when < machine.now + 30 * DAY_S, f"still idle at {when}: {machine}"
                current = current._replace(now=when)

    def test_its_text_is_read_again(self, policy: AnyRelease) -> None:
        assert checked_release(text_of(policy)) == policy

    def test_the_daemon_decides_and_journals_by_it(self, policy: AnyRelease) -> None:
        idle = tuple(IdleInstance(node, NOON, NOON) for node in expand("burst[1-3]"))
        rules = PoolRules(growth=OnDemand(), release=policy)
        pool = PoolSnapshot(name="burst", rules=rules, idle=idle)
        now = GroupSnapshot(now=NOON, growth=OnDemand(), pools=(pool,))
        assert not decide(now).failed
        assert json.loads(msgspec.json.encode(msgspec.to_builtins(now)))["pools"]

    def test_the_simulator_serves_every_job_by_it(self, policy: AnyRelease) -> None:
        jobs = [
            Job(number=i, submit=1800 * i, procs=1 + i % 3, run=600, limit=900) for i in range(20)
        ]
        pool = PoolModel(name="burst", machines=4, procs=1, public=True, release=policy)
        result = simulate(Jobs(jobs), Scenario(pools=(pool,), growth=OnDemand()), NOON)
        assert all(start >= 0 for start in result.starts)
