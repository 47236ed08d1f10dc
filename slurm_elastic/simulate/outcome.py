"""The result of a simulation in figures, and the check that no work, machine or dollar got lost."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.policies.launch.job_data import NO_DATA
from slurm_elastic.simulate.bills.leases import most_at_a_time
from slurm_elastic.simulate.core import compiled
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.shared_machines import machines_needed

MIN_RUN_S = 10


class PoolFigures(Struct, frozen=True, kw_only=True):
    """Figures of a pool. ``hours``: machine-hours up; ``peak``: the most machines at a time, paid
    or standing; ``on_demand``, ``spot`` and ``reserved``: dollars for the machines that were bought
    so. ``energy``: kWh.
    """

    name: str
    jobs: int
    launched: int
    peak: int
    hours: float
    busy_hours: float
    billed_hours: float
    on_demand: float
    spot: float
    reserved: float = 0.0
    energy: float = 0.0


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of the whole site. Waits: seconds until the first start. ``slowdown``: runs shorter
    than 10 s count as 10 s. ``utilisation``: the busy share of the machines' time. ``lost_hours``:
    machine-hours lost to interruptions; ``overhead_hours``: spent on checkpoints and restarts.
    ``peak``: the most machines of all pools at a time. ``reserved``: dollars for the machines that
    were started on held reservations, and for the ``unused`` part of these. ``energy``:
    kWh of the machines with a known power. ``unbought``: why no
    machine was ever bought although jobs waited. ``traffic``: the part of ``cost`` ($) for the data
    that jobs say they move, each once, in the pool in which it ended.
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
    reserved: float = 0.0
    unused: float = 0.0
    energy: float = 0.0
    unbought: str = ""
    traffic: float = 0.0


def unserved(policy: str, figures: Figures) -> Iterator[str]:
    """Yield a sentence for each group of jobs that did not run under a policy."""
    if figures.too_large:
        yield f"{policy}: {figures.too_large} jobs need more than any pool has"
    if figures.unserved:
        yield f"{policy}: {figures.unserved} jobs were never started"


class UnusedReservation(NamedTuple):
    """The dollars of a reservation that no machine used, from one second to another."""

    begin: int
    end: int
    dollars: float


class RunResult:
    """A finished run: when each job started and ended (-1: never), in which pool, and the figures.
    ``refusals``: per pool the reason of the first purchase that failed.
    """

    unused_reservations: Sequence[UnusedReservation] = ()

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
        """Compute the figures. Raises SlurmElasticError if the books do not add up."""
        problems = conservation(jobs, pools, runs, len(queue) + len(misfits))
        if problems:
            raise SlurmElasticError(
                "the simulation does not add up, which is a bug in slurm-elastic: "
                + "; ".join(problems)
            )
        return cls(jobs, pools, runs, _figures(jobs, pools, runs, len(queue), len(misfits)))

    def traffic(self) -> Iterator[tuple[int, int, float]]:
        """Yield the (start, end, dollars) of each ended job whose traffic is paid."""
        for job, dollars in _traffic(self.jobs, self.pools, self.ends, self.where):
            yield self.starts[job], self.ends[job], dollars

    def machines_by_hour(self, pool: int = 0) -> list[int]:
        """Return how many machines were paid in each hour of the run, each by its own started
        hours.
        """
        machines = self.pools[pool]
        begin = self.jobs.begin
        steps: dict[int, int] = {}
        for batch, end, count, _ in machines.leases.rows():
            start = machines.batch_start[batch]
            # -(-a // b) rounds up: a begun hour counts.
            hours = max(-(-(end - start) // 3600), 1)
            start_hour = (start - begin) // 3600
            steps[start_hour] = steps.get(start_hour, 0) + count
            steps[start_hour + hours] = steps.get(start_hour + hours, 0) - count
        return list(accumulate(steps.get(hour, 0) for hour in range(max(steps, default=-1))))

    def paid_steps(self, pool: int = 0) -> dict[int, int]:
        """Return the change of the number of paid machines, by second of the run."""
        machines = self.pools[pool]
        begin = self.jobs.begin
        steps: dict[int, int] = {}
        for batch, end, count, reclaimed in machines.leases.rows():
            start = machines.batch_start[batch] - begin
            seconds, _ = machines.leases.bill(batch, end, reclaimed=bool(reclaimed))
            steps[start] = steps.get(start, 0) + count
            steps[start + seconds] = steps.get(start + seconds, 0) - count
        return steps


def with_reserved_bill(outcome: RunResult, unused: Sequence[UnusedReservation]) -> None:
    """Read the dollars again from the pools' books, in which reservations are billed now."""
    pools = tuple(
        replace(figures, **_dollars(machines))
        for figures, machines in zip(outcome.figures.pools, outcome.pools, strict=True)
    )
    unused_dollars = sum(row.dollars for row in unused)
    on_demand, spot = sum(p.on_demand for p in pools), sum(p.spot for p in pools)
    reserved = sum(p.reserved for p in pools) + unused_dollars
    before = outcome.figures
    # The cost may have other parts than machines, which stay as they are.
    difference = (on_demand + spot + reserved) - (before.on_demand + before.spot)
    outcome.unused_reservations = unused
    outcome.figures = replace(
        before,
        cost=before.cost + difference,
        on_demand=on_demand,
        spot=spot,
        reserved=reserved,
        unused=unused_dollars,
        pools=pools,
    )


def conservation(jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs, unserved: int) -> list[str]:
    """Return a sentence for each sum of jobs, work or machine time that does not add up."""
    problems = []
    ended = len(jobs) - runs.ended.count(-1)
    if ended + unserved != len(jobs) or runs.now:
        problems.append(f"{len(jobs)} jobs arrived, {ended} ended, {unserved} could not be served")
    spent = runs.held + runs.useful + runs.lost + runs.overhead
    busy = sum(machines.busy_area for machines in pools)
    busy += sum(m.shared.overlap for m in pools if m.shared is not None)
    # Whole seconds, so the sums are equal or the engine has lost some.
    if spent != busy:
        problems.append(f"machines were busy for {busy} s, jobs account for {spent} s")
    work = _work(jobs, pools, runs)
    if work != runs.useful:
        problems.append(f"jobs brought {work} machine-seconds of work, {runs.useful} were done")
    for machines in pools:
        problems += _pool_problems(machines)
    return problems


def _work(jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs) -> int:
    """Return the machine-seconds of work.

    The work of a job that ended counts in machines of its last pool; work that it saved elsewhere
    counts in machines of that pool. Of other jobs only saved work counts.
    """
    needs = [machines_needed(jobs, machines.pool) for machines in pools]
    core = compiled()
    if core is not None:
        work = int(core.work(jobs.run, runs.where, runs.ended, needs))
    else:
        rows = enumerate(zip(jobs.run, runs.where, runs.ended, strict=True))
        work = sum([needs[pool][job] * run for job, (run, pool, end) in rows if end >= 0])
    for job, pool, seconds in runs.kept:
        work += needs[pool][job] * seconds
        if runs.ended[job] >= 0:
            work -= needs[runs.where[job]][job] * seconds
    return work


def _pool_problems(machines: PoolMachines) -> list[str]:
    name, problems, leased = machines.pool.name, [], machines.leases.machine_seconds()
    if machines.launched != machines.released or machines.up:
        problems.append(
            f"{name}: {machines.launched} machines started, {machines.released} ended,"
            f" {machines.up} are left"
        )
    if leased != machines.up_area:
        problems.append(f"{name}: leases last {leased} s, machines were up {machines.up_area} s")
    # After a reclaim the last hour may be refunded. It was used but is not paid.
    if not any(machines.leases.reclaimed) and machines.leases.billed < machines.busy_area:
        problems.append(
            f"{name}: {machines.leases.billed} s were paid, {machines.busy_area} s were used"
        )
    return problems


def _figures(
    jobs: Jobs, pools: Sequence[PoolMachines], runs: Runs, unserved: int, misfits: int
) -> Figures:
    waits = _sorted_waits(jobs, runs)
    up = sum(machines.up_area for machines in pools)
    start = jobs.begin
    pool_figures = tuple(
        _pool_figures(index, machines, runs, most_at_a_time([machines.leases]))
        for index, machines in enumerate(pools)
    )
    traffic = sum((dollars for _, dollars in _traffic(jobs, pools, runs.ended, runs.where)), 0.0)
    return Figures(
        jobs=len(waits),
        unserved=unserved,
        too_large=misfits,
        cost=sum(figures.on_demand + figures.spot for figures in pool_figures) + traffic,
        traffic=traffic,
        on_demand=sum(figures.on_demand for figures in pool_figures),
        spot=sum(figures.spot for figures in pool_figures),
        mean_wait=sum(waits) / len(waits) if waits else 0.0,
        p95_wait=waits[math.ceil(0.95 * len(waits)) - 1] if waits else 0,
        slowdown=_slowdown(jobs, runs),
        utilisation=sum(m.busy_area for m in pools) / up if up else 0.0,
        makespan=max(max(runs.ended, default=-1), start) - start,
        lost_hours=runs.lost / 3600,
        overhead_hours=runs.overhead / 3600,
        interruptions=runs.interruptions,
        checkpoints=runs.checkpoints,
        api_calls=sum(machines.launches + machines.releases for machines in pools),
        peak=pool_figures[0].peak if len(pools) == 1 else most_at_a_time([m.leases for m in pools]),
        pools=pool_figures,
        energy=sum(figures.energy for figures in pool_figures),
    )


def _traffic(
    jobs: Jobs, pools: Sequence[PoolMachines], ends: Sequence[int], where: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Yield each ended job that moves data, and the dollars for its traffic."""
    if not jobs.data:
        return
    ended = (job for job, end in enumerate(ends) if end >= 0)
    for job in ended:
        if (data := jobs.data_of(job)) is not NO_DATA:
            yield job, pools[where[job]].pool.traffic.dollars(data)


def _pool_figures(
    index: int, machines: PoolMachines, runs: Runs, most_machines: int
) -> PoolFigures:
    return PoolFigures(
        name=machines.pool.name,
        jobs=runs.where.count(index),
        launched=machines.launched,
        peak=most_machines,
        hours=machines.up_area / 3600,
        busy_hours=machines.busy_area / 3600,
        billed_hours=machines.leases.billed / 3600,
        energy=machines.up_area / 3600 * machines.pool.watts / 1000,
        **_dollars(machines),
    )


def _dollars(machines: PoolMachines) -> dict[str, float]:
    dollars = machines.leases.dollars
    return {name.replace("-", "_"): dollars[name] for name in ("on-demand", "spot", "reserved")}


def _sorted_waits(jobs: Jobs, runs: Runs) -> Sequence[int]:
    core = compiled()
    if core is not None:
        waits = array("q", bytes(8 * len(jobs)))
        del waits[core.waits(jobs.submit, runs.first, runs.ended, waits) :]
        return waits
    return sorted(
        start - submitted
        for start, submitted, ended in zip(runs.first, jobs.submit, runs.ended, strict=True)
        if ended >= 0
    )


def _slowdown(jobs: Jobs, runs: Runs) -> float:
    core = compiled()
    if core is not None:
        return float(core.slowdown(jobs.submit, runs.ended, jobs.run, MIN_RUN_S))
    total, done = 0.0, 0
    for submitted, ended, run in zip(jobs.submit, runs.ended, jobs.run, strict=True):
        if ended >= 0:
            done += 1
            slowdown = (ended - submitted) / (run if run > MIN_RUN_S else MIN_RUN_S)
            total += slowdown if slowdown > 1.0 else 1.0
    return total / done if done else 0.0
