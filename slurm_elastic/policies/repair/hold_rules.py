"""Held nodes: when they are let go, and which of a pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_elastic.model.causes.repairs import HoldNotInLedger, NodeOfNoPool, OfferAvailable
from slurm_elastic.model.cluster import NodeRequest, Pool
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import Action, Hold, Release
from slurm_elastic.policies.launch.ranking import serving
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot


def due_holds(snapshot: ClusterSnapshot) -> dict[str, list[Exclusion]]:
    """By pool of the cloud, the holds for want of an offer, of pools that are to be looked at."""
    found: dict[str, list[Exclusion]] = {}
    for one in snapshot.exclusions:
        pool = snapshot.terms.pool_of.get(one.scope)
        if one.kind == CAPACITY and pool is not None and pool.cloud == snapshot.terms.cloud:
            found.setdefault(pool.name, []).append(one)
    return {
        name: some for name, some in found.items() if min(s.until for s in some) <= snapshot.now
    }


def holds(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Let go what can be served again, keep longer what cannot, forget what nobody else would."""
    for name, some in due_holds(snapshot).items():
        yield from _pool_holds(snapshot, snapshot.terms.pools[name], some)
    held = (POLICY, CAPACITY, OPERATOR)
    known = {one.scope for one in snapshot.exclusions if one.kind in held}
    # A ledger that cannot be written may lack rows that its file has.
    for pool in snapshot.own_pools if snapshot.writable else ():
        for n in pool.nodes:
            if n not in known and n in snapshot.nodes and is_marked(snapshot.nodes[n]):
                yield Release(node=n, hold=CAPACITY, cause=HoldNotInLedger())
    # No cloud has these nodes: once a round is enough, by the pass of the first one.
    for one in snapshot.exclusions if snapshot.terms.first else ():
        if one.kind in held and one.scope not in snapshot.terms.pool_of:
            yield Release(node=one.scope, hold=one.kind, cause=NodeOfNoPool())


def is_marked(node: SlurmNode) -> bool:
    """Whether it is drained by a hold of ours."""
    return has_mark(node, HOLD_MARK) and is_drained(node)


def _pool_holds(
    snapshot: ClusterSnapshot, pool: Pool, some: Sequence[Exclusion]
) -> Iterable[Action]:
    """Release as many nodes as offers have room for; the others are looked at again later."""
    nodes = tuple(one.scope for one in some)
    request = NodeRequest(id="holds", pool=pool, nodes=nodes)
    launches = serving(
        request, snapshot.offers.get(pool.name, ()), snapshot.scopes[pool.name], snapshot.now,
        snapshot.terms.keys,
    )  # fmt: skip
    room = sum(launch.room for launch in launches)
    machines = {m.instance.node for m in snapshot.mine if m.is_wanted}
    free = [n for n in nodes if _may_start(snapshot.nodes.get(n), machines)][:room]
    for node in free:
        cause = OfferAvailable(offer=launches[0].offer.key)
        yield Release(node=node, hold=CAPACITY, cause=cause)
    kept = [one for one in some if one.scope not in free]
    for one in kept:
        yield Hold(node=one.scope, pool=pool.name, cause=one.cause)


def _may_start(node: SlurmNode | None, machines: set[str]) -> bool:
    """Whether the node's hold may end now."""
    if node is None:
        return True
    where = phase(node)
    # Its machine booted before Slurm would ask for the node, and never registers: repair ends it
    # first.
    off_with_machine = where is Phase.POWERED_DOWN and node.name in machines
    # On its way down it keeps its row: to lift the hold now would race with its suspend.
    return where is not Phase.POWERING_DOWN and not off_with_machine
