"""Finds the waiting jobs with enough machines on their way, so that a growth policy does not count
them again. Pure; shared by the daemon and the simulator.

A bound (``max_booting``, ``max_nodes``, a cap) may allow fewer machines than the policy wants. Then
only the first jobs stop counting, as many as these machines serve; the others count at the next
look, and get their machines as soon as the bound allows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    Demand,
    GroupBursts,
    Growth,
    OnDemand,
    OwnGrowth,
    Waiting,
)


def counts_once(growth: AnyGrowth) -> bool:
    """Whether the policy counts a waiting job only until machines were started for it."""
    is_own_once = isinstance(growth, OwnGrowth) and growth.once
    return is_own_once or isinstance(growth, OnDemand | Bursts | GroupBursts)


def machines_for(growth: AnyGrowth, jobs: Sequence[Waiting]) -> int:
    """Return how many machines a policy that counts a job once starts for these jobs."""
    if isinstance(growth, Bursts | GroupBursts):
        return growth.machines_for(jobs)
    return _nodes(jobs)


def spare_machines(growth: AnyGrowth, covered: Sequence[Waiting], machines: int) -> int:
    """Return how many of the idle and booting ``machines`` the ``covered`` jobs do not need."""
    if not covered or not machines:
        return machines
    # A covered job gets its nodes, also if the policy counts it as less.
    return max(machines - max(machines_for(growth, covered), _nodes(covered)), 0)


def served_jobs(
    growth: AnyGrowth,
    fresh: Iterable[tuple[int, int]],
    demand: Demand,
    answer: Growth | None,
    started: int,
) -> Iterator[int]:
    """Yield the fresh jobs, head first, that need no more machines after ``started`` machines of
    the policy's ``answer`` were started. ``fresh``: the id of each of them, and how many entries of
    ``demand.fresh`` it has.
    """
    served = _served_entries(growth, demand, answer, started)
    for job, entries in fresh:
        served -= entries
        # An array is served with its last task, because its waiting tasks are one job.
        if served < 0:
            return
        yield job


def _served_entries(growth: AnyGrowth, demand: Demand, answer: Growth | None, started: int) -> int:
    fresh = demand.fresh
    if answer is None or started >= answer.machines:
        return len(fresh)
    machines = demand.spare + started
    prefixes = range(len(fresh) + 1)
    return bisect_right(prefixes, machines, key=lambda n: machines_for(growth, fresh[:n])) - 1


def _nodes(jobs: Sequence[Waiting]) -> int:
    return sum([job.nodes for job in jobs])
