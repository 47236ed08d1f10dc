"""The next launch for nodes that Slurm waits for. Pure.

One decision is one launch on one offer. Its outcome (machines, a refusal, an offer that cools down)
is part of what the next decision is made from, until all nodes have machines, the rest may wait for
their turn to boot, or no offer is left. The daemon and the simulator both decide by it.

The cloud is chosen before: Slurm's partitions and node weights (``slurm/conf/fragment.py``) say on
nodes of which cloud a job waits, and a pool's nodes are machines of one cloud.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from itertools import islice

from msgspec import Struct

from slurm_elastic.model.causes.limits import BootCap, StartsLimited
from slurm_elastic.model.cluster import NodeRequest, Offer, Placement
from slurm_elastic.policies.launch.boots import turn
from slurm_elastic.policies.launch.gang import Gang, part_of, select
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS, Scope, rank, serving

WORTH_A_CALL = 20
"""Machines for which a launch waits, where the cloud lets few start at a time and more are wanted.
"""


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
    cap: BootCap | None = None


def next_launch(
    request: NodeRequest,
    todo: Sequence[Gang],
    had: Collection[str],
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    *,
    caps: Sequence[tuple[str, int]] = (),
    startable: int | None = None,
    keys: Sequence[str] = DEFAULT_KEYS,
    choices: int = 0,
) -> NextLaunch:
    """Decide the next launch of ``request``, of whose nodes ``had`` have machines already.

    ``todo`` are its gangs (``gang.gangs``), ``caps`` how many machines may boot at once by
    scope, ``startable`` how many the cloud's API would start now (None: any number),
    and among ``choices`` further offers the cloud can choose in one launch.
    """
    left = tuple(n for n in request.nodes if n not in had)
    first = rank(part_of(request, left), offers, scope, now, keys)
    room = sum(r.room for r in serving(first.request, offers, scope, now, keys, first=first))
    nodes = select(todo, had, room)
    allowed: int = sys.maxsize
    cap: BootCap | None = None
    if caps:
        allowed, cap = turn(caps, scope.booting)
    if startable is not None and startable < len(nodes):
        at_once = startable if startable >= WORTH_A_CALL else 0
        if at_once < allowed:
            allowed, cap = at_once, StartsLimited(cloud=request.pool.cloud)
    if nodes and not allowed:
        return NextLaunch(placement=first, spare=room - len(nodes), waiting=nodes, cap=cap)
    if not nodes:
        return NextLaunch(placement=first, spare=room)
    whole = tuple(nodes) == left
    placement = first if whole else rank(part_of(request, nodes), offers, scope, now, keys)
    best, *others = placement.ranked
    nodes = nodes[: min(best.room, allowed)]
    market = best.offer.market
    # The cloud may put all nodes on any of these, so each must hold all of them within every bound.
    fitting = (r.offer for r in others if r.offer.market is market and r.room >= len(nodes))
    return NextLaunch(
        placement=placement,
        nodes=nodes,
        jobs=part_of(request, nodes).jobs,
        offers=(best.offer, *islice(fitting, choices)),
    )
