"""The next launch for nodes that Slurm waits for. Pure.

One decision is one launch on one offer. Its outcome (machines, a refusal, an offer that cools down)
is part of what the next decision is made from, until all nodes have machines, the rest may wait for
their turn to boot, or no offer is left. The daemon and the simulator both decide by it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model import NodeRequest, Offer, Placement, Ranked
from slurm_elastic.policies.boots import turn
from slurm_elastic.policies.ranking import DEFAULT_KEYS, Scope, rank, serving

WORTH_A_CALL = 20
"""Machines for which a launch waits, where the cloud lets few start at a time and more are wanted.
"""
_NO_BOUND = (sys.maxsize, "")


class NextLaunch(Struct, frozen=True, kw_only=True):
    """The next launch: ``nodes``, for these ``jobs``, on the first of ``offers``; the others are
    those of the same market that the cloud may use instead, as each could serve all ``nodes``
    within every bound, best first. No nodes where no offer can serve, or where ``waiting`` nodes
    could be had but so many machines boot already that they wait for their turn (``cap`` says at
    which bound). ``spare`` more nodes could be had, but not for these, which are of use together
    only.
    """

    placement: Placement
    nodes: tuple[str, ...] = ()
    jobs: tuple[int, ...] = ()
    offers: tuple[Offer, ...] = ()
    spare: int = 0
    waiting: tuple[str, ...] = ()
    cap: str = ""


def part_of(request: NodeRequest, nodes: Sequence[str]) -> NodeRequest:
    """The request for some of its nodes, with the jobs that wait for them."""
    wanted = set(nodes)
    shares = {j: tuple(n for n in of if n in wanted) for j, of in request.job_nodes.items()}
    shares = {job: share for job, share in shares.items() if share}
    return replace(request, nodes=tuple(nodes), jobs=tuple(shares), job_nodes=shares)


def next_launch(
    request: NodeRequest,
    todo: Sequence[Gang],
    had: Collection[str],
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    *,
    caps: Sequence[tuple[str, int | None]] = (),
    startable: int | None = None,
    keys: Sequence[str] = DEFAULT_KEYS,
    choices: int = 0,
) -> NextLaunch:
    """Decide the next launch of ``request``, of whose nodes ``had`` have machines already.

    ``todo`` are its gangs (``gang.gangs``), ``caps`` how many machines may boot at once by scope
    (None: any number), ``startable`` how many the cloud's API would start now (None: any number),
    and among ``choices`` further offers the cloud can choose in one launch.
    """
    left = tuple(n for n in request.nodes if n not in had)
    first = rank(part_of(request, left), offers, scope, now, keys)
    room = sum(r.room for r in serving(first.request, offers, scope, now, keys, first=first))
    nodes = select(todo, had, room)
    bounds = (turn(caps, scope.booting), _api_bound(request.pool.cloud, startable, len(nodes)))
    allowed, cap = min(bounds)
    if nodes and not allowed:
        return NextLaunch(placement=first, spare=room - len(nodes), waiting=nodes, cap=cap)
    if not nodes:
        return NextLaunch(placement=first, spare=room)
    whole = tuple(nodes) == left
    placement = first if whole else rank(part_of(request, nodes), offers, scope, now, keys)
    nodes = nodes[: min(placement.ranked[0].room, allowed)]
    return NextLaunch(
        placement=placement,
        nodes=nodes,
        jobs=part_of(request, nodes).jobs,
        offers=_offers(placement.ranked, len(nodes), choices),
    )


def _offers(ranked: Sequence[Ranked], count: int, choices: int) -> tuple[Offer, ...]:
    """The best, and up to so many ``choices`` more of its market with room for as many nodes."""
    best, *others = ranked
    market = best.offer.market
    fitting = (r.offer for r in others if r.offer.market is market and r.room >= count)
    return (best.offer, *islice(fitting, choices))


def _api_bound(cloud: str, startable: int | None, count: int) -> tuple[int, str]:
    """How many of ``count`` machines the cloud's API starts now, and that bound in words."""
    if startable is None or startable >= count:
        return _NO_BOUND
    words = f"the API of cloud {cloud} starts only so many machines a second"
    return (startable if startable >= WORTH_A_CALL else 0), words


# Nodes of use together only: a multi-node job starts on all of its nodes or on none. Pure.
#
# Without this a job of eight nodes of which seven can be had keeps seven machines booting for
# nobody: Slurm requeues the job as soon as the eighth is given up. ParallelCluster calls it job-
# level scaling with an all-or-nothing launch.


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
    """The nodes to ask for, at most ``room``: unit by unit, those that fit whole.

    In this order, so that a cloud that gives fewer breaks the last unit only.
    """
    chosen: dict[str, None] = {}
    for unit in todo:
        lacks = [n for n in unit.nodes if n not in had and n not in chosen]
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
