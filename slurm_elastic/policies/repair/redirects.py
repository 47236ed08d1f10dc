"""Decides which waiting jobs a migration sends to the other cloud, and when they get their own
partitions back. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.verdict import could_run


class Redirect(Struct, frozen=True, kw_only=True):
    """The jobs with the partitions ``earlier`` get ``partitions``, by the order ``number``."""

    earlier: tuple[str, ...]
    partitions: tuple[str, ...]
    number: int = 0


class Route(Struct, frozen=True, kw_only=True):
    """The way of jobs from the partition ``source`` to ``target``.

    ``leaving``: the pools of the source that lose machines; ``is_whole``: its whole cloud does, so
    that no job can start there. ``pools``: the target's pools.
    """

    source: str
    target: str
    leaving: Sequence[Pool]
    pools: Sequence[Pool]
    is_whole: bool


def routes(
    nodes: Collection[str], to: str, pools: Sequence[Pool], partitions: Mapping[str, str]
) -> Iterator[Route]:
    """Yield the ways of jobs if the machines of ``nodes`` leave to the cloud ``to``, one for each
    cloud that loses machines. ``partitions``: by cloud.
    """
    for cloud, source in partitions.items():
        own_pools = [pool for pool in pools if pool.cloud == cloud]
        leaving = [pool for pool in own_pools if any(node in nodes for node in pool.nodes)]
        if cloud != to and leaving:
            yield Route(
                source=source,
                target=partitions[to],
                leaving=leaving,
                pools=[pool for pool in pools if pool.cloud == to],
                is_whole=all(node in nodes for pool in own_pools for node in pool.nodes),
            )


def is_waiting(job: SlurmJob) -> bool:
    """Whether the job waits and its partitions can be changed."""
    # A requeued job is PENDING and COMPLETING until its last run has left the nodes.
    return "PENDING" in job.states and "COMPLETING" not in job.states


def redirected(jobs: Iterable[SlurmJob], route: Route) -> Mapping[Redirect, list[int]]:
    """Return the waiting jobs of the source by their change of partitions.

    If the whole cloud is emptied, the target takes the place of the source and comes first.
    Otherwise jobs may still start on the machines that stay, so the target comes behind the source,
    and only jobs that could have used the leaving machines get it. A job that fits none of the
    target's pools stays where it is.
    """
    changes: dict[Redirect, list[int]] = {}
    for job in jobs:
        if not is_waiting(job) or route.source not in job.partitions:
            continue
        # A partition that can never run the job would only hide why the job waits.
        if not any(could_run(job, pool) for pool in route.pools):
            continue
        if route.is_whole:
            others = (p for p in job.partitions if p not in (route.source, route.target))
            partitions = (route.target, *others)
        elif route.target in job.partitions or not _wanted_leaving(job, route):
            continue
        else:
            place = job.partitions.index(route.source) + 1
            partitions = (*job.partitions[:place], route.target, *job.partitions[place:])
        change = Redirect(earlier=job.partitions, partitions=partitions)
        changes.setdefault(change, []).append(job.id)
    return changes


def _wanted_leaving(job: SlurmJob, route: Route) -> bool:
    return any(could_run(job, pool) for pool in route.leaving)


def due_back(
    jobs: Iterable[SlurmJob],
    redirects: Mapping[int, Sequence[Redirect]],
    in_force: Collection[int],
) -> list[tuple[SlurmJob, Redirect]]:
    """Return the waiting jobs that get their earlier partitions back, with the redirect to undo.

    ``redirects``: by job, in their order. ``in_force``: the numbers of the orders that still hold.
    A job keeps its partitions if a person has changed them after our change.
    """
    due = []
    for job in jobs:
        steps = redirects.get(job.id, ())
        if not steps or not is_waiting(job):
            continue
        last = steps[-1]
        # slurmctld shows the partition that it tried last at the front, so the order says nothing.
        if last.number not in in_force and {*job.partitions} == {*last.partitions}:
            due.append((job, last))
    return due


def steps_of_tasks(
    jobs: Iterable[SlurmJob], redirects: Mapping[int, Sequence[Redirect]]
) -> dict[int, list[Redirect]]:
    """Return by job the redirects of tasks that were redirected as part of their array.

    slurmctld gives a task of an array a job id of its own when it starts. The id of the array stays
    with the tasks that still wait.
    """
    found = {}
    for job in jobs:
        steps = redirects.get(job.array, ()) if job.id not in redirects else ()
        if steps and {*job.partitions} == {*steps[-1].partitions}:
            found[job.id] = list(steps)
    return found


def own_order(earlier: Sequence[str], noted: Sequence[str]) -> tuple[str, ...]:
    """Return the partitions ``earlier`` in the order that the submit filter has ``noted`` on the
    job; unchanged if there is no such note.
    """
    if not noted or not {*noted} <= {*earlier}:
        return tuple(earlier)
    return (*(p for p in earlier if p not in noted), *noted)
