"""Nodes of use together only: a multi-node job starts on all of its nodes or on none. Pure.

Without this a job of eight nodes of which seven can be had keeps seven machines booting for nobody:
Slurm requeues the job as soon as the eighth is given up. ParallelCluster calls it job-level scaling
with an all-or-nothing launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.cluster import NodeRequest, Pool


def part_of(request: NodeRequest, nodes: Sequence[str]) -> NodeRequest:
    """The request for some of its nodes, with the jobs that wait for them."""
    wanted = set(nodes)
    shares = {j: tuple(n for n in of if n in wanted) for j, of in request.job_nodes.items()}
    shares = {job: share for job, share in shares.items() if share}
    return replace(request, nodes=tuple(nodes), jobs=tuple(shares), job_nodes=shares)


def request_for(
    correlation: str,
    pool: Pool,
    nodes: Sequence[str],
    jobs: Mapping[int, Sequence[str]],
    owners: Mapping[int, Mapping[str, str]] | None = None,
) -> NodeRequest:
    """A request for these nodes; of ``jobs`` (with their nodes) those that wait for any."""
    whole = NodeRequest(
        id=correlation,
        pool=pool,
        nodes=tuple(nodes),
        job_nodes={j: tuple(of) for j, of in jobs.items()},
        owners=owners or {},
    )
    return part_of(whole, nodes)


class Gang(Struct, frozen=True, kw_only=True):
    """Nodes that serve ``job`` together; one node alone where it is of no multi-node job."""

    nodes: tuple[str, ...]
    job: int | None = None


class GangResult(Struct, frozen=True, kw_only=True):
    """The outcome for the nodes of a round. ``had`` is ``kept``, ``reassigned`` and ``ended``.

    ``kept`` serve whole gangs. ``reassigned`` stay up for another job of the round, which is
    requeued and starts on them; ``ended`` serve nobody. ``refused`` go back to Slurm: the nodes
    that could not be had, and the ended ones. ``failed`` are the jobs that did not get all.
    """

    kept: tuple[str, ...]
    reassigned: tuple[str, ...]
    ended: tuple[str, ...]
    refused: tuple[str, ...]
    failed: tuple[int, ...] = ()


def gangs(
    nodes: Sequence[str],
    job_nodes: Mapping[int, Sequence[str]],
    alone: Collection[str] = frozenset(),
) -> tuple[Gang, ...]:
    """``nodes`` by the jobs that wait for them: multi-node jobs first, in their order, then what
    goes node by node: single-node jobs, nodes that no job is known to wait for, and those
    ``alone`` (of pools that may serve a job in part).
    """
    wanted = frozenset(nodes)
    whole: list[Gang] = []
    single: dict[str, int | None] = dict.fromkeys(nodes)
    covered: set[str] = set()
    for job, of in job_nodes.items():
        share = tuple(dict.fromkeys(n for n in of if n in wanted and n not in alone))
        if len(share) > 1:
            whole.append(Gang(job=job, nodes=share))
            covered.update(share)
        for node in of if len(share) == 1 else [n for n in of if n in alone]:
            if node in wanted and single[node] is None:
                single[node] = job
    rest = [Gang(job=j, nodes=(n,)) for n, j in single.items() if j is not None or n not in covered]
    return (*whole, *rest)


def select(todo: Iterable[Gang], had: Collection[str], room: int) -> tuple[str, ...]:
    """The nodes to ask for, at most ``room``: unit by unit, those that fit whole."""
    chosen: dict[str, None] = {}
    for unit in todo:
        lacks = [n for n in unit.nodes if n not in had and n not in chosen]
        # In this order, so that a cloud that gives fewer breaks the last unit only.
        if lacks and len(chosen) + len(lacks) <= room:
            chosen.update(dict.fromkeys(lacks))
    return tuple(chosen)


def resolve(todo: Sequence[Gang], had: Collection[str], pool_of: Mapping[str, str]) -> GangResult:
    """Sort the nodes when no more can be had. A node serves another job of its own pool only."""
    served = frozenset(had)
    failed = [unit for unit in todo if not served.issuperset(unit.nodes)]
    kept = {n for unit in todo if served.issuperset(unit.nodes) for n in unit.nodes}
    names = list(dict.fromkeys(n for unit in todo for n in unit.nodes))
    left: dict[str, list[str]] = {}
    for name in names:
        if name in served and name not in kept:
            left.setdefault(pool_of[name], []).append(name)
    reassigned = frozenset(_reassigned(failed, left, pool_of))
    ended = [n for n in names if n in served and n not in kept and n not in reassigned]
    gone = frozenset(ended)
    return GangResult(
        kept=tuple(n for n in names if n in kept),
        reassigned=tuple(n for n in names if n in reassigned),
        ended=tuple(ended),
        refused=tuple(n for n in names if n not in served or n in gone),
        failed=tuple(dict.fromkeys(u.job for u in failed if u.job is not None)),
    )


def _reassigned(
    failed: Iterable[Gang], left: Mapping[str, list[str]], pool_of: Mapping[str, str]
) -> Iterable[str]:
    """As many of a pool's left-over nodes as its next failed jobs need, job by job."""
    for unit in failed:
        pools = {pool_of[n] for n in unit.nodes}
        if unit.job is None or len(pools) != 1:
            continue
        spare = left.get(pools.pop(), [])
        if len(unit.nodes) <= len(spare):
            yield from spare[: len(unit.nodes)]
            del spare[: len(unit.nodes)]
