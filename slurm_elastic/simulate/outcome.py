"""The result of a simulation in figures, and the proof that nothing got lost in it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.shared_machines import machines_needed

SHORT = 10


class PoolFigures(Struct, frozen=True, kw_only=True):
    """One pool. ``hours``: machine-hours up; ``peak``: most machines at a time."""

    name: str
    jobs: int
    launched: int
    peak: int
    hours: float
    busy_hours: float
    billed_hours: float
    on_demand: float
    spot: float


class Figures(Struct, frozen=True, kw_only=True):
    """The whole site. Waits are in seconds until the first start; the slowdown counts runs as 10 s
    at least. ``utilisation``: in which share of the machine time that was paid (or standing) a job
    had the machine. Hours are machine-hours lost to interruptions, and spent on checkpoints and
    restarts. ``unbought``: why no machine was ever bought although jobs waited.
    """

    jobs: int
    unserved: int
    too_large: int
    cost: float
    on_demand: float
    spot: float
    mean_wait: float
    p95_wait: int
    slowdown: float
    utilisation: float
    makespan: int
    lost_hours: float
    overhead_hours: float
    interruptions: int
    checkpoints: int
    api_calls: int
    peak: int
    pools: tuple[PoolFigures, ...]
    unbought: str = ""


def unserved(policy: str, figures: Figures) -> Iterator[str]:
    """The jobs that a policy did not run, a sentence each."""
    if figures.too_large:
        yield f"{policy}: {figures.too_large} jobs need more than any pool has"
    if figures.unserved:
        yield f"{policy}: {figures.unserved} jobs were never started"


class RunResult:
    """A finished run: when each job started and ended (-1: never), in which pool, and the figures.
    ``refusals``: by pool, why machines could not be bought the first time.
    """

    refusals: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self, jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs, figures: Figures
    ) -> None:
        self.jobs, self.pools, self.figures = jobs, pools, figures
        self.starts: array[int] = runs.first
        self.ends: array[int] = runs.ended
        self.where: array[int] = runs.where

    @classmethod
    def of(
        cls,
        jobs: Jobs,
        pools: Sequence[PoolMachines],
        runs: Runs,
        queue: Sequence[int],
        misfits: frozenset[int],
    ) -> RunResult:
        """Check the books, then compute the figures."""
        problems = conservation(jobs, pools, runs, len(queue) + len(misfits))
        if problems:
            raise SlurmElasticError(
                "the simulation does not add up, which is a defect of ours: " + "; ".join(problems)
            )
        return cls(jobs, pools, runs, _figures(jobs, pools, runs, len(queue), len(misfits)))

    def machines_by_hour(self, pool: int = 0) -> list[int]:
        """How many machines were paid in each hour of the run; each has hours of its own."""
        machines = self.pools[pool]
        begin = min(self.jobs.submit, default=0)
        steps: dict[int, int] = {}
        for batch, end, count, _ in machines.leases.rows():
            start = machines.batch_start[batch]
            hours = max(-(-(end - start) // 3600), 1)
            first = (start - begin) // 3600
            steps[first] = steps.get(first, 0) + count
            steps[first + hours] = steps.get(first + hours, 0) - count
        return list(accumulate(steps.get(hour, 0) for hour in range(max(steps, default=-1))))

    def paid_steps(self, pool: int = 0) -> dict[int, int]:
        """When machines begin or cease to be paid, and by how many their number changes."""
        machines = self.pools[pool]
        begin = min(self.jobs.submit, default=0)
        steps: dict[int, int] = {}
        for batch, end, count, reclaimed in machines.leases.rows():
            start = machines.batch_start[batch] - begin
            seconds, _ = machines.leases.bill(batch, end, reclaimed=bool(reclaimed))
            steps[start] = steps.get(start, 0) + count
            steps[start + seconds] = steps.get(start + seconds, 0) - count
        return steps


def conservation(jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs, unserved: int) -> list[str]:
    """Which sums of work, machines and money do not add up; empty if all do."""
    found = []
    ended = len([end for end in runs.ended if end >= 0])
    if ended + unserved != len(jobs) or runs.now:
        found.append(f"{len(jobs)} jobs came, {ended} ended, {unserved} could not be served")
    spent = runs.held + runs.useful + runs.lost + runs.overhead
    busy = sum(machines.busy_area for machines in pools)
    busy += sum(m.shared.overlap for m in pools if m.shared is not None)
    if spent != busy:
        found.append(f"machines were busy for {busy} s, jobs account for {spent} s")
    work = _work(jobs, pools, runs)
    if work != runs.useful:
        found.append(f"jobs brought {work} machine-seconds of work, {runs.useful} were done")
    for machines in pools:
        found += _pool_problems(machines)
    return found


def _work(jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs) -> int:
    """Machine-seconds of work: in machines of the pool in which a job ended, but for work that it
    saved in others; of jobs that did not end, only what they saved.
    """
    needs = [machines_needed(jobs, machines.pool) for machines in pools]
    rows = enumerate(zip(jobs.run, runs.where, runs.ended, strict=True))
    work = sum([needs[pool][job] * run for job, (run, pool, end) in rows if end >= 0])
    for job, pool, seconds in runs.kept:
        work += needs[pool][job] * seconds
        if runs.ended[job] >= 0:
            work -= needs[runs.where[job]][job] * seconds
    return work


def _pool_problems(machines: PoolMachines) -> list[str]:
    name, found = machines.pool.name, []
    if machines.launched != machines.released or machines.up:
        found.append(
            f"{name}: {machines.launched} machines came, {machines.released} went,"
            f" {machines.up} are left"
        )
    starts, leased = machines.batch_start, 0
    for batch, end, count, _ in machines.leases.rows():
        start = starts[batch]
        if start < end:  # otherwise it was taken before its bill began
            leased += count * (end - start)
    if leased != machines.up_area:
        found.append(f"{name}: leases last {leased} s, machines were up {machines.up_area} s")
    # Of machines that the cloud took an hour may be refunded: used, and not paid.
    if not any(machines.leases.reclaimed) and machines.leases.billed < machines.busy_area:
        found.append(
            f"{name}: {machines.leases.billed} s were paid, {machines.busy_area} s were used"
        )
    return found


def _figures(
    jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs, unserved: int, misfits: int
) -> Figures:
    waits = sorted(
        first - submitted
        for first, submitted, ended in zip(runs.first, jobs.submit, runs.ended, strict=True)
        if ended >= 0
    )
    up = sum(machines.up_area for machines in pools)
    first = min(jobs.submit, default=0)
    parts = tuple(_pool_figures(index, machines, runs) for index, machines in enumerate(pools))
    return Figures(
        jobs=len(waits),
        unserved=unserved,
        too_large=misfits,
        cost=sum(part.on_demand + part.spot for part in parts),
        on_demand=sum(part.on_demand for part in parts),
        spot=sum(part.spot for part in parts),
        mean_wait=sum(waits) / len(waits) if waits else 0.0,
        p95_wait=waits[math.ceil(0.95 * len(waits)) - 1] if waits else 0,
        slowdown=_slowdown(jobs, runs),
        utilisation=sum(m.busy_area for m in pools) / up if up else 0.0,
        makespan=max(max(runs.ended, default=-1), first) - first,
        lost_hours=runs.lost / 3600,
        overhead_hours=runs.overhead / 3600,
        interruptions=runs.interruptions,
        checkpoints=runs.checkpoints,
        api_calls=sum(machines.launches + machines.releases for machines in pools),
        peak=sum(machines.peak for machines in pools),
        pools=parts,
    )


def _pool_figures(index: int, machines: PoolMachines, runs: Runs) -> PoolFigures:
    return PoolFigures(
        name=machines.pool.name,
        jobs=runs.where.count(index),
        launched=machines.launched,
        peak=machines.peak,
        hours=machines.up_area / 3600,
        busy_hours=machines.busy_area / 3600,
        billed_hours=machines.leases.billed / 3600,
        on_demand=machines.leases.dollars["on-demand"],
        spot=machines.leases.dollars["spot"],
    )


def _slowdown(jobs: Jobs, runs: Runs) -> float:
    total, done = 0.0, 0
    for submitted, ended, run in zip(jobs.submit, runs.ended, jobs.run, strict=True):
        if ended >= 0:
            done += 1
            slowdown = (ended - submitted) / (run if run > SHORT else SHORT)
            total += slowdown if slowdown > 1.0 else 1.0
    return total / done if done else 0.0
