"""Judges jobs as a whole before the first launch for them, over all parts of a request and the
nodes that Slurm will request later.

slurmctld resumes the nodes of a large job in several calls (ResumeRate), and ``provision`` serves
one pool after another. Each part alone may have room although the whole job has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.grouping import group_by
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Jobs
from slurm_elastic.controller.launching.shortfall import Shortfall
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.refusals import NoSpot
from slurm_elastic.model.cluster import NodeRequest, Offer
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.growth.stopped import startables
from slurm_elastic.policies.launch.gang import Gang, gangs, request_for
from slurm_elastic.policies.launch.job_room import (
    BoundsOfStart,
    JobRoom,
    Part,
    find_room,
    list_spread_jobs,
)
from slurm_elastic.policies.nodes.node_state import Phase, phase

AskForOffers = Callable[[Site, NodeRequest], tuple[Sequence[Offer], AnyCause | None]]
FindNoSpot = Callable[[Site, Sequence[str], Jobs], Mapping[str, NoSpot]]


class WholeJobs(Struct, frozen=True, kw_only=True):
    """``causes``: by job that lacks room, why. ``spare_nodes``: by pool, how many more nodes are
    available. ``later_nodes``: nodes that Slurm will request later for ``nodes_of`` these jobs. All
    are empty if each job lies in one part, whose own launches judge it.
    """

    causes: Mapping[int, AnyCause] = {}
    spare_nodes: Mapping[str, int] = {}
    later_nodes: tuple[str, ...] = ()
    nodes_of: Jobs = {}

    def explain(self, shortfall: Shortfall) -> Shortfall:
        """Return the shortfall of a part with the cause and the spare nodes of the whole jobs."""
        if not self.causes:
            return shortfall
        request = shortfall.request
        lacking = set(shortfall.nodes)
        causes = [
            self.causes[job]
            for job, nodes in request.job_nodes.items()
            if job in self.causes and lacking.issubset(nodes)
        ]
        # The parts share their bounds. If each part counted the whole rest as its own spare nodes,
        # enough nodes would stay without a hold, and Slurm would allocate them to the job again.
        spare = min(shortfall.spare_nodes, self.spare_nodes.get(request.pool.name, 0))
        return replace(shortfall, cause=next(iter(causes), shortfall.cause), spare_nodes=spare)


def judge_whole_jobs(
    site: Site,
    cloud: str,
    requests: Sequence[NodeRequest],
    jobs: Jobs,
    ask: AskForOffers,
    find_no_spot: FindNoSpot,
) -> WholeJobs:
    """Find the jobs of several parts that the known bounds leave no room for. ``requests``: the
    parts, in the order in which they are served. ``ask`` asks the cloud for offers.
    ``find_no_spot`` finds the nodes without spot machines, and why.
    """
    later = _request_later(site, cloud, requests, jobs, find_no_spot)
    requests = (*requests, *later)
    gangs_of = [_gangs_of(request) for request in requests]
    if not list_spread_jobs(gangs_of):
        return WholeJobs()
    answers = [ask(site, request) for request in requests]
    with site.ledger.together():
        state = site.ledger.state()
        scopes = [site.scope(request.pool, state) for request in requests]
    parts = [
        Part(
            request=request, gangs=of_part, offers=offers, scope=scope, trouble=trouble,
            starts=_starts_by_node(state.stopped, request, offers),
        )
        for request, of_part, (offers, trouble), scope in zip(
            requests, gangs_of, answers, scopes, strict=True
        )
    ]  # fmt: skip
    room = find_room(parts, site.served_nodes(), site.now(), site.config.ranking)
    nodes_of = {job: tuple(jobs[job]) for request in later for job in request.jobs}
    for request in later:
        for job, nodes in request.job_nodes.items():
            nodes_of[job] = tuple(dict.fromkeys((*nodes_of[job], *nodes)))
    return WholeJobs(
        causes=room.causes,
        spare_nodes=_sum_by_pool(requests, room),
        later_nodes=tuple(n for request in later for n in request.nodes),
        nodes_of=nodes_of,
    )


def _starts_by_node(
    stopped: Sequence[Machine], request: NodeRequest, offers: Sequence[Offer]
) -> Mapping[str, BoundsOfStart]:
    """Return the bounds of starts by node, for the request's nodes with a stopped machine. If a
    machine turns out to be unfit, its node gets a bought machine, which needs the same room.
    """
    nodes = frozenset(request.nodes)
    machines = [m for m in stopped if m.instance.node in nodes and m.pool == request.pool.name]
    return {s.machine.instance.node: s.within for s in startables(machines, offers)}


def _sum_by_pool(requests: Sequence[NodeRequest], room: JobRoom) -> Mapping[str, int]:
    spare: dict[str, int] = {}
    for request, count in zip(requests, room.spare_nodes, strict=True):
        spare[request.pool.name] = spare.get(request.pool.name, 0) + count
    return spare


def _gangs_of(request: NodeRequest) -> tuple[Gang, ...]:
    if not request.pool.partial_jobs:
        return gangs(request.nodes, request.job_nodes)
    # These nodes also serve a job that lacks others.
    return tuple(Gang(nodes=(node,)) for node in request.nodes)


def _request_later(
    site: Site,
    cloud: str,
    requests: Sequence[NodeRequest],
    jobs: Jobs,
    find_no_spot: FindNoSpot,
) -> Sequence[NodeRequest]:
    """Return requests for the nodes of multi-node jobs that Slurm has not requested yet."""
    shares = [share for request in requests for share in request.job_nodes.values()]
    # Most jobs have one node, and a reading of the queue takes most of a second at a large site.
    if not any(len(share) > 1 for share in shares):
        return ()
    asked = {node for request in requests for node in request.nodes}
    of_jobs = find_jobs_of_nodes(site, sorted(asked))
    whole_jobs = {job: nodes for job, nodes in of_jobs.items() if job in jobs}
    served = asked | site.served_nodes()
    names = dict.fromkeys(
        n for nodes in whole_jobs.values() for n in nodes
        if n not in served and n in site.pool_of and site.pool_of[n].cloud == cloud
    )  # fmt: skip
    view = site.slurm.nodes(list(names)) if names else {}
    later = [n for n in names if n in view and phase(view[n]) is not Phase.UP]
    # By the rule for the requested nodes. Nodes of another job or pool may have spot machines.
    no_spot = find_no_spot(site, later, whole_jobs)
    by_part = group_by(later, lambda node: (site.pool_of[node].name, no_spot.get(node)))
    return [
        request_for(requests[0].id, site.pools[name], nodes, whole_jobs, no_spot=cause)
        for (name, cause), nodes in by_part.items()
    ]


def find_jobs_of_nodes(site: Site, nodes: Sequence[str]) -> Mapping[int, Sequence[str]]:
    """Return the jobs that hold or wait for any of these nodes, with all their nodes. SlurmError if
    Slurm does not answer: without the jobs each node of a multi-node job would be bought alone, and
    no payer's budget would be checked. The caller's request or round tries again.
    """
    asked_nodes = set(nodes)
    return {j.id: j.nodes for j in site.slurm.jobs() if not asked_nodes.isdisjoint(j.nodes)}
