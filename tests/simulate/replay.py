"""A journal of what a daemon measured and decided, put through the simulator: the same decisions?

Each entry becomes a simulation that stands still at that moment: pools with as many machines idle,
busy and booting as were measured, and the jobs that waited. Its grower and its release of machines
are asked what a run would ask them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from slurm_elastic.policies.growth.release import Idle, IdleOrder
from slurm_elastic.policies.growth.scaling import GroupSnapshot, PoolSnapshot, ScalingPlan
from slurm_elastic.simulate.bills.billing import Hourly, PerSecond
from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.scaler import Grower
from slurm_elastic.simulate.scenario import PoolModel, Scenario

ENTRY = ("now", "plan")


def entry(detail: Mapping[str, object] | None) -> tuple[GroupSnapshot, ScalingPlan] | None:
    """A decision's measurement and plan; None where it is of another kind."""
    if detail is None or any(key not in detail for key in ENTRY):
        return None
    return msgspec.convert(detail["now"], GroupSnapshot), msgspec.convert(
        detail["plan"], ScalingPlan
    )


def differences(entries: Iterable[tuple[GroupSnapshot, ScalingPlan]]) -> list[str]:
    """A sentence for each entry on which the simulator would have decided otherwise."""
    found = []
    for now, plan in entries:
        still = _Still(now)
        for name, theirs, ours in (
            ("starts", _starts(plan), still.starts()),
            ("least", _least(plan), still.least),
            ("machines that may go", _leaves(now, plan), still.leaves(plan)),
        ):
            if theirs != ours:
                found.append(f"at {now.now}: {name}: the daemon {theirs}, the simulator {ours}")
    return found


def _least(plan: ScalingPlan) -> dict[str, int]:
    """By pool, fewer of the machines for the waiting jobs are of no use."""
    return {start.pool: start.least for start in plan.starts if not start.is_warm}


def _starts(plan: ScalingPlan) -> dict[str, int]:
    """By pool, for the waiting jobs and to keep it warm."""
    counts: dict[str, int] = {}
    for start in plan.starts:
        counts[start.pool] = counts.get(start.pool, 0) + start.machines
    return counts


def _leaves(now: GroupSnapshot, plan: ScalingPlan) -> dict[str, int]:
    pool_of = {one.node: pool.name for pool in now.pools for one in pool.idle}
    pool_of |= {node: pool.name for pool in now.pools for node in pool.taken}
    counts: dict[str, int] = {}
    for leave in plan.leaves:
        counts[pool_of[leave.node]] = counts.get(pool_of[leave.node], 0) + 1
    return counts


class _Still:
    """One moment as the simulator has it."""

    def __init__(self, now: GroupSnapshot) -> None:
        self._now = now
        jobs = Jobs()
        for job in now.queue:
            for _ in range(max(job.times, 1)):
                jobs.append(Job(job.id, job.submit, job.limit, job.limit, job.nodes))
        self._queue = range(len(jobs))
        models = tuple(_model(pool) for pool in now.pools)
        self._pools = [PoolMachines(model, order=IdleOrder.MAX_MARGIN, seed=0) for model in models]
        for machines, pool in zip(self._pools, now.pools, strict=True):
            _fill(machines, pool, now.now)
        scenario = Scenario(pools=models, growth=now.growth)
        needs = [jobs.procs for _ in models]
        self._grower = Grower(jobs, scenario, self._pools, needs)
        known = frozenset(now.covered)
        self._grower.cloud_of = [pool.cloud or pool.name for pool in now.pools]
        self._grower.covered = {i for i in self._queue if jobs.number[i] in known}
        self.least: dict[str, int] = {}
        self._grower.begun = {i for i in self._queue if jobs.number[i] in now.begun}

    def starts(self) -> dict[str, int]:
        """Machines to launch, by pool."""
        now, grower = self._now, self._grower
        wanted = grower.wanted(self._queue, now.head_start, now.running, now.now)
        self.least = {now.pools[index].name: least for index, _, least in wanted}
        counts = {index: count for index, count, _ in wanted}
        for index, count in counts.items():
            self._pools[index].booting += count
        for index, (machines, pool) in enumerate(zip(self._pools, now.pools, strict=True)):
            warm = grower.warm(machines, pool.rules.min_idle, now.now)
            counts[index] = counts.get(index, 0) + warm
        return {now.pools[index].name: count for index, count in counts.items() if count}

    def leaves(self, plan: ScalingPlan) -> dict[str, int]:
        """Machines to give back, by pool: nothing goes at a look that starts some."""
        now = self._now
        if plan.starts:
            return {}
        before = [machines.idle + machines.busy for machines in self._pools]
        self._grower.flag(self._queue, now.running, now.now)
        pairs = zip(self._pools, now.pools, strict=True)
        for machines, pool in pairs if not now.queue else ():
            machines.release_due(now.now, pool.rules.min_idle)
        after = [machines.idle + machines.busy - machines.draining for machines in self._pools]
        gone = (a - b for a, b in zip(before, after, strict=True))
        return {pool.name: n for pool, n in zip(now.pools, gone, strict=True) if n > 0}


def _model(pool: PoolSnapshot) -> PoolModel:
    """The pool with as much room as there was for the jobs that waited."""
    rules = pool.rules
    there = len(pool.idle) + len(pool.taken) + pool.promised + pool.booting
    total = pool.room if pool.total_room is None else pool.total_room
    return PoolModel(
        name=pool.name,
        machines=there + (total if pool.stop is None else 0),
        max_booting=None if pool.total_room is None else pool.booting + pool.room,
        public=rules.public,
        billing=PerSecond() if rules.lease <= 1 else Hourly(seconds=rules.lease),
        release=rules.release or Idle(NEVER),
    )


def _fill(machines: PoolMachines, pool: PoolSnapshot, now: int) -> None:
    for one in pool.idle:
        machines.found_idle(one.started, one.since, now)
    machines.busy, machines.booting = len(pool.taken) + pool.promised, pool.booting
    machines.promised = pool.promised  # to jobs that have no node yet
