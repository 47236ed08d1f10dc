"""Held nodes: when their holds end, and for which nodes of a pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.base.grouping import group_by
from slurm_elastic.model.causes.refusals import NodeOnDemand
from slurm_elastic.model.causes.repairs import (
    AlreadyServed,
    HoldNotInLedger,
    NodeOfNoPool,
    OfferAvailable,
)
from slurm_elastic.model.cluster import NodeRequest, Pool
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import Action, Hold, Release
from slurm_elastic.policies.launch.ranking import serving
from slurm_elastic.policies.launch.spot_use import never_on_spot
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot


def due_holds(snapshot: ClusterSnapshot) -> dict[str, list[Exclusion]]:
    """Return, by pool of the cloud, the capacity holds of pools with at least one due hold."""
    holds_by_pool: dict[str, list[Exclusion]] = {}
    for exclusion in snapshot.exclusions:
        pool = snapshot.terms.pool_of.get(exclusion.scope)
        if exclusion.kind == CAPACITY and pool is not None and pool.cloud == snapshot.terms.cloud:
            holds_by_pool.setdefault(pool.name, []).append(exclusion)
    return {
        name: rows
        for name, rows in holds_by_pool.items()
        if min(row.until for row in rows) <= snapshot.now
    }


def holds(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Release nodes that can be served again, prolong the other holds, and release nodes whose hold
    has no ledger row or no pool.
    """
    for name, pool_exclusions in due_holds(snapshot).items():
        pool = snapshot.terms.pools[name]
        # Room for spot machines is of no use to nodes that never have one. So these nodes come
        # first, and what they take of the room for on-demand machines is taken from the others.
        parts = _by_market(pool, pool_exclusions)
        taken = 0
        for no_spot in sorted(parts, key=lambda reason: reason is None):
            actions = tuple(_pool_holds(snapshot, pool, parts[no_spot], no_spot, taken))
            taken += sum(_is_purchase(action) for action in actions)
            yield from actions
    hold_kinds = (POLICY, CAPACITY, OPERATOR)
    held_nodes = {
        exclusion.scope for exclusion in snapshot.exclusions if exclusion.kind in hold_kinds
    }
    # A ledger that cannot be written may lack rows that its file has, so a missing row proves
    # nothing.
    for pool in snapshot.own_pools if snapshot.writable else ():
        for node in pool.nodes:
            if (
                node not in held_nodes
                and node in snapshot.nodes
                and is_marked(snapshot.nodes[node])
            ):
                yield Release(node=node, hold=CAPACITY, cause=HoldNotInLedger())
    # No cloud has these nodes, so only the first cloud's pass releases them, once per round.
    for exclusion in snapshot.exclusions if snapshot.terms.is_first_cloud else ():
        if exclusion.kind in hold_kinds and exclusion.scope not in snapshot.terms.pool_of:
            yield Release(node=exclusion.scope, hold=exclusion.kind, cause=NodeOfNoPool())


def _by_market(
    pool: Pool, exclusions: Sequence[Exclusion]
) -> Mapping[NodeOnDemand | None, Sequence[Exclusion]]:
    """Return the holds of the pool by why their nodes never have spot machines."""
    return group_by(exclusions, lambda exclusion: never_on_spot(pool, exclusion.scope))


def is_marked(node: SlurmNode) -> bool:
    """Whether a hold of ours drains the node."""
    return has_mark(node, HOLD_MARK) and is_drained(node)


def _pool_holds(
    snapshot: ClusterSnapshot,
    pool: Pool,
    exclusions: Sequence[Exclusion],
    no_spot: NodeOnDemand | None,
    taken: int,
) -> Iterable[Action]:
    """Release as many nodes as the offers have room for, and prolong the holds of the others. A
    hold that is not due yet is only prolonged: its node may be the cause of a failed boot.
    ``no_spot``: why these nodes never have spot machines. ``taken``: how many machines of the room
    are promised to other nodes of the pool.
    """
    nodes = tuple(exclusion.scope for exclusion in exclusions)
    request = NodeRequest(id="holds", pool=pool, nodes=nodes, no_spot=no_spot)
    launches = serving(
        request, snapshot.offers.get(pool.name, ()), snapshot.scopes[pool.name], snapshot.now,
        snapshot.terms.offer_order,
    )  # fmt: skip
    room = max(0, sum(launch.room for launch in launches) - taken)
    machines = {m.instance.node for m in snapshot.own_machines if m.is_wanted}
    # Last the nodes that operators hold: Slurm cannot use them, so they must not take up the room
    # of other nodes.
    closed = {x.scope for x in snapshot.exclusions if x.kind == OPERATOR}
    by_use = sorted(nodes, key=closed.__contains__)
    due = {row.scope for row in exclusions if row.until <= snapshot.now}
    able = [n for n in by_use if _may_start(snapshot.nodes.get(n), machines)]
    served = [n for n in able if n in machines]
    # Only nodes that need a purchase take up room.
    bought = [n for n in able if n in due and n not in machines][:room]
    for node in served:
        yield Release(node=node, hold=CAPACITY, cause=AlreadyServed())
    for node in bought:
        cause = OfferAvailable(offer=launches[0].offer.key)
        yield Release(node=node, hold=CAPACITY, cause=cause)
    free = {*served, *bought}
    prolonged = [exclusion for exclusion in exclusions if exclusion.scope not in free]
    for exclusion in prolonged:
        yield Hold(node=exclusion.scope, pool=pool.name, cause=exclusion.cause)


def _is_purchase(action: Action) -> bool:
    """Whether the action releases a node for which a machine is then bought."""
    return isinstance(action, Release) and isinstance(action.cause, OfferAvailable)


def _may_start(node: SlurmNode | None, machines: set[str]) -> bool:
    """Whether the node's hold may end now."""
    if node is None:
        return True
    node_phase = phase(node)
    # Slurm would power the node up for a machine that booted earlier, and slurmctld refuses a
    # slurmd that booted before the power-up. Repair must end that machine first.
    is_off_with_machine = node_phase is Phase.POWERED_DOWN and node.name in machines
    # Keep the hold while the node powers down: to lift it now would race with the node's suspend
    # request.
    return node_phase is not Phase.POWERING_DOWN and not is_off_with_machine
