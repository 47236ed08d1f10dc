"""Nodes that no machine can be had for: their jobs are refused whole.

The nodes of a multi-node job are had together or not at all (``policies.launch.gang``). The
machines that such a job has by then serve another job of the round, or end in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.extensions import Jobs
from slurm_elastic.controller.giving_back import power_down_and_requeue, reject_nodes
from slurm_elastic.controller.oversized import bar, too_large
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import NeverTogether, RequestsRefused, ServesAnother
from slurm_elastic.model.causes.machine_ends import JobNotWhole
from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.policies.launch.gang import GangResult, gangs, request_for, resolve


class Shortfall(Struct, frozen=True, kw_only=True):
    """The part of a request that could not be had, and why; ``spare`` more could be, but not for
    these, as they are of use together only.
    """

    request: NodeRequest
    nodes: tuple[str, ...]
    why: AnyCause
    spare: int


def refuse(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], nodes: Sequence[str], jobs: Jobs
) -> None:
    """Refuse whole jobs; their machines serve others of the round, or end."""
    result = gang_result(site, cloud, shortfalls, nodes, jobs)
    shortfall_of = {shortfall.request.pool.name: shortfall for shortfall in shortfalls}
    never = too_large(site, cloud, result.failed, jobs)
    alone = _only_of(never, jobs)
    refused: dict[str, list[str]] = {}
    for node in result.refused:
        if node not in alone:
            refused.setdefault(site.pool_of[node].name, []).append(node)
    idle = set(result.ended)
    machines = [
        m for m in site.ledger.machines.live()
        if m.instance.node in idle and m.instance.cloud == cloud and m.is_wanted
    ]  # fmt: skip
    causes = tuple(dict.fromkeys(shortfall.why for shortfall in shortfalls))
    why = causes[0] if len(causes) == 1 else RequestsRefused(causes=causes)
    correlation = shortfalls[0].request.id
    if result.reassigned:
        site.record(correlation, "reassigned", result.reassigned, ServesAnother(cause=why))
    forced = turn_away(site, cloud, correlation, never, jobs, alone.intersection(result.refused))
    for name, some in refused.items():
        request = request_for(correlation, site.pools[name], some, jobs)
        if name in shortfall_of:
            short = shortfall_of[name]
            forced |= reject_nodes(site, request, some, short.why, spare=short.spare)
        else:
            site.record(correlation, "refused", (*some, *(f"job:{j}" for j in request.jobs)), why)
            forced |= power_down_and_requeue(site, some, site.slurm.nodes(some), why, correlation)
    # A node that has come up meanwhile was not powered down: its machine may have a job.
    doomed = [m for m in machines if m.instance.node in forced]
    terminate(site, cloud, doomed, JobNotWhole(), correlation)


def _only_of(some: Collection[int], jobs: Jobs) -> set[str]:
    """The nodes that only these jobs wait for."""
    others = {n for job, of in jobs.items() if job not in some for n in of}
    return {n for job in some for n in jobs[job]} - others


def turn_away(
    site: Site,
    cloud: str,
    correlation: str,
    never: Mapping[int, NeverTogether],
    jobs: Jobs,
    alone: Collection[str],
) -> set[str]:
    """Give back the nodes of jobs that can never have theirs: nobody else is kept from these, and
    the job does not come back for them. Returns those that are powered down.
    """
    forced: set[str] = set()
    for job, why in never.items():
        mine = [n for n in jobs[job] if n in alone]
        site.record(correlation, "refused", (*mine, f"job:{job}"), why)
        bar(site, job, cloud, why, correlation)
        forced |= power_down_and_requeue(
            site, mine, site.slurm.nodes(mine), why, correlation, hurry=False
        )
    return forced


def gang_result(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], nodes: Sequence[str], jobs: Jobs
) -> GangResult:
    """All nodes of these jobs that are at stake: those of this round, and those that have a
    machine already of an earlier one. One that is lost to a launch in doubt has one, perhaps.
    """
    lost = {n for shortfall in shortfalls for n in shortfall.nodes}
    served = site.served()
    touched = set(nodes)
    of_jobs = [of for of in jobs.values() if not touched.isdisjoint(of)]
    more = (n for of in of_jobs for n in of if n in served and _is_of(site, cloud, n))
    names = tuple(dict.fromkeys((*nodes, *more)))
    alone = {n for n in names if site.pool_of[n].partial_jobs}
    pools = {n: site.pool_of[n].name for n in names}
    return resolve(gangs(names, jobs, alone), (served | touched) - lost, pools)


def _is_of(site: Site, cloud: str, node: str) -> bool:
    return node in site.pool_of and site.pool_of[node].cloud == cloud
