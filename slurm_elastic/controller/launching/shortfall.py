"""Refuses jobs as a whole if some of their nodes get no machine.

A multi-node job gets machines for all its nodes or for none (``policies.launch.gang``). Machines
that a refused job already has serve another job of the round, or end in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.grouping import group_by
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import find_unfinished, terminate
from slurm_elastic.controller.extensions import Jobs
from slurm_elastic.controller.giving_back import (
    find_review,
    power_down_and_requeue,
    reject_nodes,
)
from slurm_elastic.controller.launching.launch import count_as_refused
from slurm_elastic.controller.launching.off_spot import find_jobs_off_spot
from slurm_elastic.controller.oversized import find_too_large, find_too_long, keep_job_out
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import (
    NeverHere,
    NotYetHere,
    NotYetOnDemand,
    RequestsRefused,
    ServesAnother,
)
from slurm_elastic.model.causes.machine_ends import JobNotWhole
from slurm_elastic.model.causes.refusals import NotRequeued, WaitsOffSpot
from slurm_elastic.model.causes.stops import AddressTaken
from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.launch.gang import GangResult, gangs, request_for, resolve
from slurm_elastic.state.audit_trail import job_subject


class Shortfall(Struct, frozen=True, kw_only=True):
    """The nodes of a request that get no machine, and the ``cause``. ``spare_nodes``: nodes that we
    could still buy; they are too few for this job, which needs all its nodes at once.
    ``partial_offers``: the offers that gave too few machines, with their earlier refusals.
    """

    request: NodeRequest
    nodes: tuple[str, ...]
    cause: AnyCause
    spare_nodes: int
    partial_offers: Mapping[str, int] = {}


def refuse_jobs(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], nodes: Sequence[str], jobs: Jobs
) -> None:
    """Refuse the jobs that lack nodes. Their machines serve other jobs of the round, or end."""
    result = resolve_gangs(site, cloud, shortfalls, nodes, jobs)
    never: dict[int, NeverHere | NotYetHere] = {**find_too_large(site, cloud, result.failed, jobs)}
    needs = {j: s for shortfall in shortfalls for j, s in shortfall.request.job_needs_s.items()}
    fitting = [job for job in result.failed if job not in never]
    never |= find_too_long(site, cloud, fitting, jobs, needs)
    lasting = [job for job in result.failed if job not in never]
    never |= _find_lacking_on_demand(site, cloud, shortfalls, lasting)
    of_growth = _find_waiting_on_demand(site, cloud, shortfalls, jobs)
    never |= {job: cause for job, (_, cause) in of_growth.items()}
    jobs = {**jobs, **{job: nodes for job, (nodes, _) in of_growth.items()}}
    never_nodes = _find_nodes_only_of(never, jobs)
    # Nodes that wait only for jobs that can never, or not yet, run here are given back by
    # ``turn_away_jobs``, without a hold: nothing is wrong with them.
    place_of_node = _find_parts(site, shortfalls, jobs)
    refused = group_by(
        (n for n in result.refused if n not in never_nodes),
        lambda node: (site.pool_of[node].name, place_of_node.get(node)),
    )
    idle = set(result.ended)
    machines = [
        m for m in site.ledger.machines.live()
        if m.instance.node in idle and m.instance.cloud == cloud and m.is_wanted
    ]  # fmt: skip
    # Before the nodes are powered down: afterwards they are drained by our holds.
    may_spare = bool(machines and site.extensions.spare_of_refused)
    view = site.slurm.nodes([m.instance.node for m in machines]) if may_spare else {}
    causes = tuple(dict.fromkeys(shortfall.cause for shortfall in shortfalls))
    cause = causes[0] if len(causes) == 1 else RequestsRefused(causes=causes)
    correlation = shortfalls[0].request.id
    if result.reassigned:
        site.record(correlation, "reassigned", result.reassigned, ServesAnother(cause=cause))
    forced = turn_away_jobs(
        site, cloud, correlation, never, jobs, never_nodes.intersection(result.refused), needs
    )
    spare_of = _count_spare(shortfalls)
    for (name, place), pool_nodes in refused.items():
        pool = site.pools[name]
        no_spot = None if place is None else shortfalls[place].request.no_spot
        request = request_for(correlation, pool, pool_nodes, jobs, no_spot=no_spot)
        if place is not None:
            # Only the first part of a pool also holds the pool's other nodes. A later part would
            # replace the causes of the earlier parts, and hold the spare nodes. The parts without
            # spot machines count on their own, because they hold no spot nodes.
            spare = len(pool.nodes)
            # An address that another machine has says nothing about the pool's other nodes.
            if not isinstance(shortfalls[place].cause, AddressTaken):
                spare = spare_of.pop((name, no_spot is None), spare)
            forced |= reject_nodes(site, request, pool_nodes, shortfalls[place].cause, spare=spare)
        else:
            site.record(
                correlation,
                "refused",
                (*pool_nodes, *(job_subject(j) for j in request.jobs)),
                cause,
            )
            forced |= power_down_and_requeue(
                site, pool_nodes, site.slurm.nodes(pool_nodes), cause, correlation
            )
    # Only machines whose node was powered down: a node that came up in the meantime was not, and
    # its machine may run a job.
    doomed = [m for m in machines if m.instance.node in forced]
    _count_refusals(site, shortfalls, doomed)
    _end(site, cloud, doomed, view, correlation)


def _find_lacking_on_demand(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], failed: Sequence[int]
) -> dict[int, NotYetOnDemand]:
    """Return the failed jobs that lack a machine only because they must stay off spot machines.

    If their nodes were held, slurmctld would give such a job the next nodes of the pool, one after
    the other, and other jobs could not use these for spot machines.
    """
    shortfall_of = {
        job: shortfall
        for shortfall in shortfalls
        if isinstance(shortfall.request.no_spot, NotRequeued)
        for job in shortfall.request.jobs
    }
    off_spot = find_jobs_off_spot(site, cloud, [job for job in failed if job in shortfall_of])
    return {job: _not_yet_on_demand(site, cloud, shortfall_of[job]) for job in off_spot}


def _find_waiting_on_demand(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], jobs: Jobs
) -> dict[int, tuple[tuple[str, ...], NotYetOnDemand]]:
    """Return the jobs because of which growth gets no spot machines (``WaitsOffSpot``), with the
    nodes that lack a machine for that reason alone. While such a job is kept out, growth starts
    spot machines for other jobs again.
    """
    shortfall_of = {
        job: shortfall
        for shortfall in shortfalls
        if isinstance(shortfall.request.no_spot, WaitsOffSpot)
        for job in shortfall.request.no_spot.jobs
        if job not in jobs
    }
    off_spot = find_jobs_off_spot(site, cloud, shortfall_of.keys())
    return {
        job: (shortfall_of[job].nodes, _not_yet_on_demand(site, cloud, shortfall_of[job]))
        for job in off_spot
    }


def _not_yet_on_demand(site: Site, cloud: str, shortfall: Shortfall) -> NotYetOnDemand:
    begins_at = find_review(site, shortfall.request.pool, shortfall.cause)
    return NotYetOnDemand(cloud=cloud, cause=shortfall.cause, begins_at=begins_at)


def end_useless_parts(site: Site, cloud: str, shortfalls: Sequence[Shortfall]) -> None:
    """End the machines that a growth policy has started for one job, if they are fewer than the job
    needs (``NodeRequest.least_by_node``): no job runs on them, so no job is refused. Each try is a
    refusal of its offers, as at a refused job, or they would be bought again and again.
    """
    for shortfall in shortfalls:
        _end_useless_part(site, cloud, shortfall)


def _end_useless_part(site: Site, cloud: str, shortfall: Shortfall) -> None:
    least_of = shortfall.request.least_by_node
    by_least = group_by(set(least_of) - set(shortfall.nodes), least_of.__getitem__)
    lacking = {least_of[node] for node in shortfall.nodes if node in least_of}
    useless = {n for least in lacking if len(by_least.get(least, ())) < least
               for n in by_least.get(least, ())}  # fmt: skip
    machines = [
        m for m in site.ledger.machines.live()
        if m.instance.node in useless and m.instance.cloud == cloud and m.is_wanted
    ]  # fmt: skip
    if not machines:
        return
    nodes = tuple(dict.fromkeys(m.instance.node for m in machines))
    view = site.slurm.nodes(nodes)
    correlation = shortfall.request.id
    forced = power_down_and_requeue(site, nodes, view, shortfall.cause, correlation)
    doomed = [m for m in machines if m.instance.node in forced]
    _count_refusals(site, [shortfall], doomed)
    _end(site, cloud, doomed, view, correlation)


def _count_refusals(site: Site, shortfalls: Sequence[Shortfall], doomed: Sequence[Machine]) -> None:
    useless_offers = {m.instance.offer_key for m in doomed}
    for shortfall in shortfalls:
        partial = shortfall.partial_offers
        count_as_refused(site, {k: n for k, n in partial.items() if k in useless_offers})


def _end(
    site: Site,
    cloud: str,
    doomed: Sequence[Machine],
    view: Mapping[str, SlurmNode],
    correlation: str,
) -> None:
    """End the machines of refused jobs, but for those that a feature stops."""
    unfinished = find_unfinished(site, doomed)
    doomed = [m for m in doomed if m not in unfinished]
    for spare_started in site.extensions.spare_of_refused:
        spared = spare_started(cloud, doomed, view, correlation)
        doomed = [m for m in doomed if m not in spared]
    terminate(site, cloud, doomed, JobNotWhole(), correlation)


def _find_parts(site: Site, shortfalls: Sequence[Shortfall], jobs: Jobs) -> dict[str, int]:
    """Return by node the place in ``shortfalls`` of its part of the request. Each part of a pool
    has a cause of its own. Nodes that jobs of the part have had before belong to it, too.
    """
    place_of_node: dict[str, int] = {}
    for place, shortfall in enumerate(shortfalls):
        request = shortfall.request
        mates = (node for job in request.jobs for node in jobs.get(job, ()))
        for node in (*request.nodes, *mates):
            if node in site.pool_of and site.pool_of[node].name == request.pool.name:
                place_of_node.setdefault(node, place)
    return place_of_node


def _count_spare(shortfalls: Sequence[Shortfall]) -> dict[tuple[str, bool], int]:
    """Return by pool, and by whether spot machines may be bought, how many nodes we could still
    buy: for the part of the request that leaves the most. Jobs of the other parts may need machines
    that are not available.
    """
    spare: dict[tuple[str, bool], int] = {}
    for shortfall in shortfalls:
        part = (shortfall.request.pool.name, shortfall.request.no_spot is None)
        spare[part] = max(spare.get(part, 0), shortfall.spare_nodes)
    return spare


def _find_nodes_only_of(selected_jobs: Collection[int], jobs: Jobs) -> set[str]:
    """Return the nodes that only these jobs wait for."""
    other_nodes = {
        n for job, job_nodes in jobs.items() if job not in selected_jobs for n in job_nodes
    }
    return {n for job in selected_jobs for n in jobs[job]} - other_nodes


def turn_away_jobs(
    site: Site,
    cloud: str,
    correlation: str,
    never: Mapping[int, NeverHere | NotYetHere],
    jobs: Jobs,
    own_nodes: Collection[str],
    needs_s: Mapping[int, float],
) -> set[str]:
    """Give back the nodes of jobs that can never get all of their nodes, or never or not yet for
    long enough (``needs_s``). The nodes are not held, so that other jobs can use them, and the job
    does not return to this cloud, or only later. Returns the nodes that were powered down.
    """
    cause_of: dict[str, AnyCause] = {}
    for job, cause in never.items():
        job_nodes = [n for n in jobs[job] if n in own_nodes]
        site.record(correlation, "refused", (*job_nodes, job_subject(job)), cause)
        keep_job_out(site, job, cloud, cause, correlation, jobs[job], needs_s.get(job) or 0.0)
        cause_of |= dict.fromkeys(job_nodes, cause)
    if not cause_of:
        return set()
    # All jobs at once: each call reads Slurm's nodes and jobs, and there may be hundreds of jobs.
    return power_down_and_requeue(
        site, tuple(cause_of), site.slurm.nodes(tuple(cause_of)), cause_of, correlation, hurry=False
    )


def resolve_gangs(
    site: Site, cloud: str, shortfalls: Sequence[Shortfall], nodes: Sequence[str], jobs: Jobs
) -> GangResult:
    """Decide which jobs fail, over all nodes of these jobs: the nodes of this round, and the nodes
    that have a machine from an earlier round.
    """
    lost = {n for shortfall in shortfalls for n in shortfall.nodes}
    # A node whose launch is in doubt counts as served, because it may have a machine.
    served = site.served_nodes()
    touched = set(nodes)
    of_jobs = [job_nodes for job_nodes in jobs.values() if not touched.isdisjoint(job_nodes)]
    served_before = (
        n for job_nodes in of_jobs for n in job_nodes if n in served and _is_node_of(site, cloud, n)
    )
    names = tuple(dict.fromkeys((*nodes, *served_before)))
    partial_nodes = {n for n in names if site.pool_of[n].partial_jobs}
    pools = {n: site.pool_of[n].name for n in names}
    return resolve(gangs(names, jobs, partial_nodes), (served | touched) - lost, pools)


def _is_node_of(site: Site, cloud: str, node: str) -> bool:
    return node in site.pool_of and site.pool_of[node].cloud == cloud
