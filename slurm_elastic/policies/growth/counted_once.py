"""Finds the waiting jobs with enough machines on their way, so that a growth policy does not count
them again. Pure; shared by the daemon and the simulator.

A bound (``max_booting``, ``max_nodes``, a cap) may allow fewer machines than the policy wants. Then
only the first jobs stop counting, as many as these machines serve; the others count at the next
look, and get their machines as soon as the bound allows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import or_
from typing import Generic, NamedTuple

from msgspec.structs import replace

from slurm_elastic.policies.growth.allotting import Allot, CommonBound, P, Room, Share, allot
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    Demand,
    GroupBursts,
    Growth,
    OnDemand,
    OwnGrowth,
    Slurm,
    Waiting,
)


def counts_once(growth: AnyGrowth) -> bool:
    """Whether the policy counts a waiting job only until machines were started for it."""
    is_own_once = isinstance(growth, OwnGrowth) and growth.once
    return is_own_once or isinstance(growth, OnDemand | Bursts | GroupBursts)


def counts_by_nodes(growth: AnyGrowth) -> bool:
    """Whether the policy wants exactly one machine for each node of each waiting job."""
    return isinstance(growth, OnDemand)


class Dealing(NamedTuple, Generic[P]):
    """``shares``: of each job. ``fresh``: the places of the jobs for which the policy may start
    machines. ``sure``: the places of the jobs whose machines start whatever the policy wants.
    """

    shares: list[Share[P] | None]
    fresh: list[int]
    sure: list[int]


def deal(
    growth: AnyGrowth,
    needs: Sequence[Sequence[int]],
    clouds: Sequence[Sequence[Room[P]]],
    bounds: Sequence[CommonBound[P]],
    covered: Sequence[bool],
    begun: Sequence[bool],
    *,
    is_stuck: bool,
    allot: Allot[P] = allot,
) -> Dealing[P]:
    """Deal the machines to the waiting jobs, in the order of the queue (``allot``).

    ``covered``: by job, whether it counts no longer. ``begun``: by job, whether its machines start
    in turns. ``is_stuck``: nothing runs or boots, so the first job would wait for ever if the
    policy starts nothing for it. ``allot``: the simulator has it compiled, with equal results.
    """
    if isinstance(growth, Slurm):
        # Slurm itself starts the machines of jobs.
        shares = allot(needs, clouds, bounds, [False] * len(covered))
        return Dealing(shares, [*range(len(covered))], [])
    if counts_by_nodes(growth):
        shares = allot(needs, clouds, bounds)
        lacking = (place for place, share in enumerate(shares) if share is None or share.lack)
        return Dealing(shares, [*lacking], [])
    is_once = counts_once(growth)
    counted = [not (is_once and is_covered) for is_covered in covered]
    is_sure = [is_begun or (is_stuck and not place) for place, is_begun in enumerate(begun)]
    apart = _first_apart(needs, clouds, counted) if is_once else None
    if apart is not None:
        is_sure[apart] = True
    may_start = [*map(or_, counted, is_sure)]
    shares = allot(needs, clouds, bounds, may_start)
    sure = [place for place, share in enumerate(shares) if is_sure[place] and share is not None]
    fresh = [place for place, is_counted in enumerate(counted) if is_counted and not begun[place]]
    return Dealing(shares, fresh, sure)


def _first_apart(
    needs: Sequence[Sequence[int]], clouds: Sequence[Sequence[Room[P]]], counted: Sequence[bool]
) -> int | None:
    """Return the place of the first counted job whose machines idle or boot, but in several clouds.
    The policy would count these machines for the job, which then never starts.
    """
    free = [max(sum(room.free for room in rooms), 0) for rooms in clouds]
    if sum(1 for machines in free if machines) < 2:
        return None
    total = sum(free)
    for place, is_counted in enumerate(counted):
        if is_counted and needs[0][place] <= total:
            pairs = zip(needs, free, strict=True)
            if all(of_cloud[place] > machines for of_cloud, machines in pairs):
                return place
    return None


def find_fitting(
    fresh: Iterable[int], shares: Sequence[Share[P] | None], nodes: Sequence[int]
) -> list[int]:
    """Return the places of the fresh jobs that may be served by the machines of others. A
    multi-node job without room gets no machine, so it must count again.
    """
    return [place for place in fresh if shares[place] is not None or nodes[place] == 1]


def useful_machines(
    growth: AnyGrowth,
    grown: Callable[[Demand], Growth | None],
    demand: Demand,
    dealing: Dealing[P],
    wanted: int,
) -> int:
    """Return how many of the ``wanted`` machines can be of use. A policy may want more machines
    than a job has nodes (``Bursts``): those are for later jobs. If the job has no room, there is no
    work for them, so the policy is asked again without it. The nodes of the job itself stay in the
    number, because ``choose`` takes them off. ``demand``: its queue has a place for each share.
    """
    if not wanted or counts_by_nodes(growth) or not counts_once(growth):
        return wanted
    needs = [job.nodes for job in demand.queue]
    fitting = set(find_fitting(dealing.fresh, dealing.shares, needs))
    unfit = [place for place in dealing.fresh if place not in fitting]
    if not unfit:
        return wanted
    left_out = frozenset(unfit)
    answer = grown(
        replace(
            demand,
            queue=[job for place, job in enumerate(demand.queue) if place not in left_out],
            fresh=[demand.queue[place] for place in dealing.fresh if place in fitting],
        )
    )
    of_others = 0 if answer is None else answer.machines
    return min(wanted, of_others + sum(needs[place] for place in unfit))


def free_of(shares: Iterable[Share[P] | None]) -> int:
    """Return how many idle and booting machines these jobs get."""
    return sum([n for share in shares if share is not None for _, n in share.free])


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
