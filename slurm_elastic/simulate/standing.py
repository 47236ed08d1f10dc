"""A history on machines that all stand anyway: nothing is bought, released or lost, so ``easy``
tells when each job starts, several times as fast as ``engine`` and to the same second.
"""

from __future__ import annotations

from array import array

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.simulate import easy
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.pools import machines_of
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import machines_needed


def on_standing_machines(jobs: Jobs, scenario: Scenario) -> RunResult | None:
    """The same outcome as the engine's. None if only the engine can tell: machines come and go,
    there are several pools or reservations, or the queue was longer than one look goes.
    """
    used = [index for index, pool in enumerate(scenario.pools) if pool.machines]
    if len(used) != 1 or scenario.reservations > 1 or not scenario.reuse or not len(jobs):
        return None
    (index,) = used
    pool = scenario.pools[index]
    if pool.standing < pool.machines:
        return None
    sizes = array("q", machines_needed(jobs, pool))
    if pool.shared and any(procs % pool.procs for procs in jobs.procs):
        return None
    if max(sizes) > pool.machines:
        return None
    starts = easy.starts(jobs, pool.machines, sizes)
    if scenario.depth is not None and _longest_queue(jobs, starts) >= scenario.depth:
        return None
    return _booked(jobs, scenario, index, sizes, starts)


def _longest_queue(jobs: Jobs, starts: array[int]) -> int:
    """Most jobs that waited in the second of an arrival, that one included."""
    begun, most, started = sorted(starts), 0, 0
    for arrived, when in enumerate(jobs.submit, 1):
        while begun[started] < when:
            started += 1
        if arrived - started > most:
            most = arrived - started
    return most


def _no_machine_twice(sizes: array[int], starts: array[int], ends: array[int], most: int) -> None:
    """SlurmElasticError if more machines were used at a time than there are."""
    over = sorted(zip(ends, sizes, strict=True))
    used = gone = 0
    for when, size in sorted(zip(starts, sizes, strict=True)):
        used += size
        while over[gone][0] <= when and used > most:
            used -= over[gone][1]
            gone += 1
        if used > most:
            raise SlurmElasticError(
                "the simulation does not add up, which is a defect of ours:"
                f" {used} of {most} machines were used at {when}"
            )


def _booked(
    jobs: Jobs, scenario: Scenario, index: int, sizes: array[int], starts: array[int]
) -> RunResult:
    """The books of these runs, which are checked like any others."""
    pools = machines_of(scenario, jobs)
    runs = Runs(jobs, scenario, pools)
    runs.first = starts
    runs.ended = array("q", [start + run for start, run in zip(starts, jobs.run, strict=True)])
    runs.where = array("b", [index]) * len(jobs)
    machines, begin = pools[index], jobs.submit[0]
    _no_machine_twice(sizes, starts, runs.ended, machines.most)
    machines.stand(begin)
    rows = zip(sizes, starts, runs.ended, strict=True)
    machines.busy_area = sum([size * (end - start) for size, start, end in rows])
    runs.useful = sum([size * run for size, run in zip(sizes, jobs.run, strict=True)])
    last = max(max(runs.ended), jobs.submit[-1])
    for one in pools:
        one.close(last)
    return RunResult.of(jobs, pools, runs, (), frozenset())
