"""Nodes useful only together: a multi-node job starts on all of its nodes or on none. Pure.

Without this rule a job that needs eight nodes and gets seven would keep seven machines booting for
nothing: Slurm requeues the job as soon as the eighth node is given up. ParallelCluster calls this
job-level scaling with an all-or-nothing launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.causes.refusals import NoSpot
from slurm_elastic.model.cluster import NodeRequest, Pool


def part_of(request: NodeRequest, nodes: Sequence[str]) -> NodeRequest:
    """Return the request limited to ``nodes``, with the jobs that wait for them."""
    names = set(nodes)
    shares = {
        j: tuple(n for n in job_nodes if n in names) for j, job_nodes in request.job_nodes.items()
    }
    shares = {job: share for job, share in shares.items() if share}
    needs = {job: need for job, need in request.job_needs_s.items() if job in shares}
    return replace(
        request, nodes=tuple(nodes), jobs=tuple(shares), job_nodes=shares, job_needs_s=needs
    )


def request_for(
    correlation: str,
    pool: Pool,
    nodes: Sequence[str],
    jobs: Mapping[int, Sequence[str]],
    owners: Mapping[int, Mapping[str, str]] | None = None,
    no_spot: NoSpot | None = None,
) -> NodeRequest:
    """Return a request for ``nodes``, with the ``jobs`` (and their nodes) that wait for any of
    them. ``no_spot``: why no spot machine is bought for the nodes.
    """
    whole = NodeRequest(
        id=correlation,
        pool=pool,
        nodes=tuple(nodes),
        job_nodes={j: tuple(names) for j, names in jobs.items()},
        owners=owners or {},
        no_spot=no_spot,
    )
    return part_of(whole, nodes)


class Gang(Struct, frozen=True, kw_only=True):
    """Nodes that serve ``job`` together. A node that no multi-node job waits for is a gang of its
    own.
    """

    nodes: tuple[str, ...]
    job: int | None = None


class GangResult(Struct, frozen=True, kw_only=True):
    """The outcome for the nodes of a round.

    ``serving``: nodes that serve whole gangs. ``reassigned``: nodes that stay up for another job of
    the round, which is requeued and starts on them. ``ended``: nodes that serve no job. All three
    have machines. ``refused``: nodes that go back to Slurm: the nodes without a machine, and the
    ended ones. ``failed``: jobs that did not get all their nodes.
    """

    serving: tuple[str, ...]
    reassigned: tuple[str, ...]
    ended: tuple[str, ...]
    refused: tuple[str, ...]
    failed: tuple[int, ...] = ()


def gangs(
    nodes: Sequence[str],
    job_nodes: Mapping[int, Sequence[str]],
    single_nodes: Collection[str] = frozenset(),
) -> tuple[Gang, ...]:
    """Return ``nodes`` grouped by the jobs that wait for them.

    Multi-node jobs come first, in their order. Single nodes follow: nodes of single-node jobs,
    nodes without a known job, and ``single_nodes`` (of pools that may serve a job in part).
    """
    names = frozenset(nodes)
    whole: list[Gang] = []
    single: dict[str, int | None] = dict.fromkeys(nodes)
    covered: set[str] = set()
    for job, nodes_of_job in job_nodes.items():
        share = tuple(
            dict.fromkeys(n for n in nodes_of_job if n in names and n not in single_nodes)
        )
        if len(share) > 1:
            whole.append(Gang(job=job, nodes=share))
            covered.update(share)
        # A share of one node needs no other node, so it is a single node here.
        for node in (
            nodes_of_job if len(share) == 1 else [n for n in nodes_of_job if n in single_nodes]
        ):
            if node in names and single[node] is None:
                single[node] = job
    single_gangs = [
        Gang(job=j, nodes=(n,)) for n, j in single.items() if j is not None or n not in covered
    ]
    return (*whole, *single_gangs)


def select(todo: Iterable[Gang], nodes_with_machine: Collection[str], room: int) -> tuple[str, ...]:
    """Return the nodes to ask for, at most ``room``: gang by gang, only gangs that fit as a whole,
    without nodes that have a machine.
    """
    chosen: dict[str, None] = {}
    for unit in todo:
        lacking = [n for n in unit.nodes if n not in nodes_with_machine and n not in chosen]
        # Keep the gangs' order: if the cloud gives fewer machines, only the last gang is
        # incomplete.
        if lacking and len(chosen) + len(lacking) <= room:
            chosen.update(dict.fromkeys(lacking))
    return tuple(chosen)


def resolve(
    todo: Sequence[Gang], nodes_with_machine: Collection[str], pool_of: Mapping[str, str]
) -> GangResult:
    """Sort the nodes after the last machine was obtained. A node may serve another job of its own
    pool only.
    """
    served = frozenset(nodes_with_machine)
    failed = [unit for unit in todo if not served.issuperset(unit.nodes)]
    kept = {n for unit in todo if served.issuperset(unit.nodes) for n in unit.nodes}
    names = list(dict.fromkeys(n for unit in todo for n in unit.nodes))
    spare_nodes: dict[str, list[str]] = {}
    for name in names:
        if name in served and name not in kept:
            spare_nodes.setdefault(pool_of[name], []).append(name)
    # Paid machines serve another whole job of this round before any of them is ended.
    reassigned = frozenset(_reassigned(failed, spare_nodes, pool_of))
    ended = [n for n in names if n in served and n not in kept and n not in reassigned]
    ended_nodes = frozenset(ended)
    return GangResult(
        serving=tuple(n for n in names if n in kept),
        reassigned=tuple(n for n in names if n in reassigned),
        ended=tuple(ended),
        refused=tuple(n for n in names if n not in served or n in ended_nodes),
        failed=tuple(dict.fromkeys(u.job for u in failed if u.job is not None)),
    )


def _reassigned(
    failed: Iterable[Gang], spare_nodes: Mapping[str, list[str]], pool_of: Mapping[str, str]
) -> Iterable[str]:
    """Yield spare nodes of a pool for its failed jobs, job by job, as long as they suffice for the
    whole job.
    """
    for unit in failed:
        pools = {pool_of[n] for n in unit.nodes}
        # A job over several pools would need spare nodes of each of them.
        if unit.job is None or len(pools) != 1:
            continue
        spare = spare_nodes.get(pools.pop(), [])
        if len(unit.nodes) <= len(spare):
            yield from spare[: len(unit.nodes)]
            del spare[: len(unit.nodes)]
