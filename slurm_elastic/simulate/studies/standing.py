"""Replays a history on standing machines only. No machine is bought, released or lost, so ``easy``
finds the start of each job, to the same second as ``engine`` and several times as fast.
"""

from __future__ import annotations

from array import array

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.simulate.core import compiled
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.pools import machines_of
from slurm_elastic.simulate.queues import easy
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import machines_needed


def on_standing_machines(jobs: Jobs, scenario: Scenario) -> RunResult | None:
    """Return the same result as the engine. None if only the engine can compute it: the number of
    machines changes, there are several pools or reservations, or the queue was longer than the
    depth of a pass.
    """
    used = [index for index, pool in enumerate(scenario.pools) if pool.machines]
    if len(used) != 1 or scenario.reservations > 1 or not scenario.reuse or not len(jobs):
        return None
    (index,) = used
    pool = scenario.pools[index]
    if pool.standing < pool.machines:
        return None
    sizes = machines_needed(jobs, pool)
    if pool.shared and any(procs % pool.procs for procs in jobs.procs):
        return None
    if max(sizes) > pool.machines:
        return None
    starts = easy.starts(jobs, pool.machines, sizes)
    if scenario.depth is not None and _longest_queue(jobs, starts) >= scenario.depth:
        return None
    return _result_of(jobs, scenario, index, sizes, starts)


def _longest_queue(jobs: Jobs, starts: array[int]) -> int:
    """Return the largest number of waiting jobs at an arrival, including the new job."""
    core = compiled()
    if core is not None:
        return int(core.longest_queue(jobs.submit, starts))
    sorted_starts, longest, started = sorted(starts), 0, 0
    for arrived, when in enumerate(jobs.submit, 1):
        while sorted_starts[started] < when:
            started += 1
        if arrived - started > longest:
            longest = arrived - started
    return longest


def _check_capacity(sizes: array[int], starts: array[int], ends: array[int], machines: int) -> None:
    """Raise SlurmElasticError if more machines were used at a time than exist."""
    excess = _overfull(sizes, starts, ends, machines)
    if excess is not None:
        used, when = excess
        raise SlurmElasticError(
            "the simulation does not add up, which is a bug in slurm-elastic:"
            f" {used} of {machines} machines were used at {when}"
        )


def _overfull(
    sizes: array[int], starts: array[int], ends: array[int], machines: int
) -> tuple[int, int] | None:
    """Return how many machines were used, and when, where they were more than exist."""
    core = compiled()
    if core is not None:
        excess: tuple[int, int] | None = core.overfull(sizes, starts, ends, machines)
        return excess
    sorted_ends = sorted(zip(ends, sizes, strict=True))
    used = ended = 0
    for when, size in sorted(zip(starts, sizes, strict=True)):
        used += size
        while sorted_ends[ended][0] <= when and used > machines:
            used -= sorted_ends[ended][1]
            ended += 1
        if used > machines:
            return used, when
    return None


def _replayed(jobs: Jobs, sizes: array[int], starts: array[int]) -> tuple[array[int], int, int]:
    """Return the ends of the jobs, and the machine-seconds used and worked."""
    core = compiled()
    if core is not None:
        ended = array("q", bytes(8 * len(jobs)))
        return ended, *core.replayed(sizes, starts, jobs.run, ended)
    ended = array("q", [start + run for start, run in zip(starts, jobs.run, strict=True)])
    rows = zip(sizes, starts, ended, strict=True)
    used = sum([size * (end - start) for size, start, end in rows])
    return ended, used, sum([size * run for size, run in zip(sizes, jobs.run, strict=True)])


def _result_of(
    jobs: Jobs, scenario: Scenario, index: int, sizes: array[int], starts: array[int]
) -> RunResult:
    """Enter these runs into the books, which are then checked as after a run of the engine."""
    pools = machines_of(scenario, jobs)
    runs = Runs(jobs, scenario, pools)
    runs.first = starts
    runs.ended, used, runs.useful = _replayed(jobs, sizes, starts)
    runs.where = array("h", [index]) * len(jobs)
    machines, begin = pools[index], jobs.submit[0]
    _check_capacity(sizes, starts, runs.ended, machines.max_machines)
    machines.add_standing(begin)
    machines.busy_area = used
    last_end = max(max(runs.ended), jobs.submit[-1])
    for pool_machines in pools:
        pool_machines.close(last_end)
    return RunResult.of(jobs, pools, runs, (), frozenset())
