"""Keeps jobs off spot machines that growth policies start, from the decision to the launch.

slurmctld asks for such a machine without a job, and then starts any waiting job on it. So while a
job waits for nodes of a pool that must stay off spot machines (``--no-requeue``), growth starts no
spot machine there that the job could get. The launch reads this in the journal, which also has the
answer after a restart of the daemon.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import expand
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launching.off_spot import find_off_spot
from slurm_elastic.features.growth.growth_stays import recent_decisions
from slurm_elastic.model.causes.refusals import WaitsOffSpot
from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.growth.scaling import PendingJob, ScaleUp
from slurm_elastic.policies.launch.gang import part_of
from slurm_elastic.policies.launch.spot_use import may_buy_other
from slurm_elastic.state.ledger import Decision

DETAIL = "off_spot"
"""The key in the details of a growth policy's decision."""
MAX_JOBS = 100
"""At most this many waiting jobs are recorded for the nodes of a pool."""


class OffSpotStart(Struct, frozen=True, kw_only=True):
    """Nodes of a pool whose machines must not be spot machines, and the jobs because of which."""

    nodes: tuple[str, ...]
    jobs: tuple[int, ...]


def detail_of(
    site: Site,
    queue: Sequence[PendingJob],
    jobs: Iterable[SlurmJob],
    starts: Iterable[tuple[ScaleUp, Sequence[str]]],
) -> dict[str, object]:
    """Return which of the nodes of ``starts`` get no spot machines, for the details of the
    decision. Empty if there are none. ``queue``: what the policies count of the waiting ``jobs``.
    """
    nodes_of: defaultdict[str, list[str]] = defaultdict(list)
    for start, nodes in starts:
        if may_buy_other(site.pools[start.pool]):
            nodes_of[start.pool] += nodes
    if not nodes_of:
        return {}
    numbers = {row.id for row in queue}
    waiting = [job for job in jobs if "PENDING" in job.states and job.id in numbers]
    rows = [
        OffSpotStart(nodes=tuple(nodes), jobs=found)
        for pool, nodes in nodes_of.items()
        if (found := tuple(islice(_jobs_off_spot(site, pool, nodes, queue, waiting), MAX_JOBS)))
    ]
    return {DETAIL: msgspec.to_builtins(rows)} if rows else {}


def _jobs_off_spot(
    site: Site,
    pool_name: str,
    nodes: Sequence[str],
    queue: Sequence[PendingJob],
    waiting: Sequence[SlurmJob],
) -> Iterator[int]:
    """Yield the jobs that may get one of the nodes, and must stay off spot machines."""
    pool = site.pools[pool_name]
    may_be_spot = set(pool.spot_nodes).intersection(nodes)
    off_spot = {job.id for job in find_off_spot(site, pool.cloud, waiting)}
    may_get = (
        row.id
        for row in queue
        if row.id in off_spot
        and pool_name in row.pools
        and not may_be_spot.issubset(expand(row.avoids) if row.avoids else ())
    )
    # A job with nodes of several kinds has a row for each kind.
    yield from dict.fromkeys(may_get)


def split(site: Site, request: NodeRequest) -> Sequence[NodeRequest]:
    """Split off the nodes that a growth policy started while a job waited for them that must stay
    off spot machines.
    """
    if request.no_spot is not None or not may_buy_other(request.pool):
        return (request,)
    of_jobs = {node for nodes in request.job_nodes.values() for node in nodes}
    if of_jobs.issuperset(request.nodes):
        return (request,)
    cause_of = _recorded(site, request)
    by_cause = group_by(request.nodes, lambda node: None if node in of_jobs else cause_of.get(node))
    return [
        replace(part_of(request, nodes), no_spot=cause) if cause else part_of(request, nodes)
        for cause, nodes in by_cause.items()
    ]


def _recorded(site: Site, request: NodeRequest) -> Mapping[str, WaitsOffSpot | None]:
    """Return by node that a growth policy started lately why it gets no spot machine, or None."""
    cause_of: dict[str, WaitsOffSpot | None] = {}
    for decision in recent_decisions(site, request):
        cause_of |= dict.fromkeys(decision.subjects)
        for row in _rows_of(decision):
            cause_of |= dict.fromkeys(row.nodes, WaitsOffSpot(jobs=row.jobs))
    return cause_of


def _rows_of(decision: Decision) -> Sequence[OffSpotStart]:
    rows = (decision.detail or {}).get(DETAIL, ())
    try:
        return msgspec.convert(rows, tuple[OffSpotStart, ...])
    except msgspec.ValidationError:
        # Another release wrote the decision. Without an answer the machine may be any.
        return ()
