"""The next launch for nodes that Slurm waits for. Pure.

One decision is one launch on one offer. The next decision takes its outcome (machines, a refusal,
an offer that cools down) into account, until all nodes have machines, the others may wait for their
turn to boot, or no offer is left. The daemon and the simulator both use it.

The cloud is chosen earlier: Slurm's partitions and node weights (``slurm/conf/fragment.py``) decide
on which cloud's nodes a job waits, and a pool's nodes are machines of one cloud.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from itertools import islice

from msgspec import Struct

from slurm_elastic.model.causes.limits import BootCap, StartsLimited
from slurm_elastic.model.cluster import NodeRequest, Offer
from slurm_elastic.model.placement import Placement
from slurm_elastic.policies.launch.boots import turn
from slurm_elastic.policies.launch.gang import Gang, part_of, select
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS, Scope, rank, serving

WORTH_A_CALL = 20
"""If a cloud lets only a few machines start at a time and more are wanted, a launch waits until
this many may start.
"""


class NextLaunch(Struct, frozen=True, kw_only=True):
    """The next launch: ``nodes``, for ``jobs``, on the first of ``offers``.

    The other offers are alternatives of the same market, best first; each could serve all ``nodes``
    within every bound. ``nodes`` is empty if no offer can serve, or if ``delayed_nodes`` nodes are
    available but must wait for their turn to boot; ``cap`` is the bound then. ``spare_nodes``: how
    many more nodes are available, but useless to this request because gangs need all their nodes.
    ``least``: fewer machines of this launch are of no use.
    """

    placement: Placement
    nodes: tuple[str, ...] = ()
    jobs: tuple[int, ...] = ()
    offers: tuple[Offer, ...] = ()
    spare_nodes: int = 0
    delayed_nodes: tuple[str, ...] = ()
    cap: BootCap | None = None
    least: int = 1


def next_launch(
    request: NodeRequest,
    todo: Sequence[Gang],
    nodes_with_machine: Collection[str],
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    *,
    caps: Sequence[tuple[str, int]] = (),
    startable: int | None = None,
    keys: Sequence[str] = DEFAULT_KEYS,
    choices: int = 0,
) -> NextLaunch:
    """Decide the next launch of ``request`` for the nodes outside ``nodes_with_machine``.

    ``todo``: the request's gangs (``gang.gangs``). ``caps``: how many machines may boot at once, by
    scope. ``startable``: how many machines the cloud's API would start now (None: any number).
    ``choices``: how many alternative offers the cloud can take in one launch. ``now`` (Unix s).
    """
    lacking_nodes = tuple(n for n in request.nodes if n not in nodes_with_machine)
    full_placement = rank(part_of(request, lacking_nodes), offers, scope, now, keys)
    room = sum(
        r.room
        for r in serving(
            full_placement.request, offers, scope, now, keys, full_ranking=full_placement
        )
    )
    # Whole gangs by the room of all offers together; the boot caps only delay a part of them.
    nodes = select(todo, nodes_with_machine, room)
    allowed: int = sys.maxsize
    cap: BootCap | None = None
    if caps:
        allowed, cap = turn(caps, scope.booting)
    if startable is not None and startable < len(nodes):
        # A launch of fewer machines is not worth a call, because the cloud limits calls.
        at_once = startable if startable >= WORTH_A_CALL else 0
        if at_once < allowed:
            allowed, cap = at_once, StartsLimited(cloud=request.pool.cloud)
    if nodes and not allowed:
        return NextLaunch(
            placement=full_placement, spare_nodes=room - len(nodes), delayed_nodes=nodes, cap=cap
        )
    if not nodes:
        return NextLaunch(placement=full_placement, spare_nodes=room)
    whole = tuple(nodes) == lacking_nodes
    # Fewer nodes wait for fewer jobs, so other rooms and other exclusions of spot may apply.
    placement = full_placement if whole else rank(part_of(request, nodes), offers, scope, now, keys)
    best, *alternatives = placement.ranked
    # A gang may be split over launches: the next decision asks for its other nodes.
    nodes = nodes[: min(best.room, allowed)]
    market = best.offer.market
    # The cloud may start all nodes on any of these offers, so each offer must hold all nodes within
    # every bound.
    fitting = (r.offer for r in alternatives if r.offer.market is market and r.room >= len(nodes))
    return NextLaunch(
        placement=placement,
        nodes=nodes,
        jobs=part_of(request, nodes).jobs,
        # A machine must be known to be on its reservation, so a reservation has no alternative.
        offers=(best.offer, *islice(fitting, choices if best.offer.held is None else 0)),
        # As long as other offers remain, they may give the machines that this one lacks.
        least=1 if alternatives else _smallest_part(request, todo, nodes),
    )


def _smallest_part(request: NodeRequest, todo: Sequence[Gang], nodes: Sequence[str]) -> int:
    """Return how many of the ``nodes`` the gang with the fewest of them needs. Slurm tells no job
    of a node that a growth policy has started, but the policy knows how many it has started for a
    job.
    """
    names = frozenset(nodes)
    needs = (
        sum(node in names for node in gang.nodes)
        if gang.job is not None
        else min(request.least_by_node.get(gang.nodes[0], 1), len(nodes))
        for gang in todo
        if not names.isdisjoint(gang.nodes)
    )
    return min(needs, default=1)
