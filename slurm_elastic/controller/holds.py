"""Holds: nodes that Slurm may not use while nothing can serve them. They are DRAIN with our reason.

A hold begins as a row of the ledger. ``drain_when_powered_down`` drains the node as soon as
slurmctld will keep the DRAIN flag.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.base.faults import reach
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.stops import AddressTaken, StoppedByOrder
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.directive import Directive, stopped_nodes
from slurm_elastic.model.exclusion import (
    ANY,
    CAPACITY,
    OPERATOR,
    POLICY,
    Exclusion,
    ExclusionKind,
    offer_scope,
)
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.growth.scaling import holds_back
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.policies.repair.peers import taken_addresses
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)


BY_POLICY = GrowthStartsIt()
MAX_REASON = 200
CORRELATION = "holds"


def hold_reason(cause: AnyCause) -> str:
    """The node reason of a hold: our mark and one short line."""
    text = HOLD_MARK + " ".join(str(cause).replace('"', "'").split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."


def hold(
    site: Site, pool: Pool, nodes: Sequence[str], cause: AnyCause, *, until: float | None = None
) -> None:
    """Record that these nodes must be held. ``drain_when_powered_down`` drains them. ``until``:
    when to review the holds (Unix time); None: at the end by ``find_end_of_hold``.
    """
    now = site.now()
    end = find_end_of_hold(site, pool) if until is None else until
    held = {row.scope: row for row in site.ledger.exclusions.holds() if row.kind == CAPACITY}
    site.ledger.exclusions.add(
        *(
            # Keep the start of an existing hold and prolong it. A review never shortens it.
            Exclusion(kind=CAPACITY, scope=n, pool=pool.name, cause=cause,
                      since=held[n].since if n in held else now,
                      until=max(end, held[n].until) if until is None and n in held else end)
            for n in nodes
        )
    )  # fmt: skip


def hold_back(
    site: Site, nodes: Sequence[str], cause: AnyCause, kind: ExclusionKind = POLICY
) -> None:
    """Record that a policy of the site or an operator (``kind``) keeps these nodes from Slurm.
    ``drain_when_powered_down`` drains them. Nodes that have left the configuration are not held: we
    start no machine for them.
    """
    now = site.now()
    site.ledger.exclusions.add(
        *(
            Exclusion(
                kind=kind,
                scope=n,
                pool=site.pool_of[n].name,
                cause=cause,
                since=now,
                until=now,
            )
            for n in nodes
            if n in site.pool_of
        )
    )


def find_end_of_hold(site: Site, pool: Pool) -> float:
    """Return when a hold of the pool ends (Unix time): at the end of the pool's pause, otherwise
    when the first cool-down of its cloud ends. If nothing cools down, a limit is the cause, and the
    hold ends after ``timings.capacity_cooldown``.
    """
    now = site.now()
    for breaker in site.ledger.exclusions.breakers():
        if breaker.scope == pool.name and breaker.until > now:
            return breaker.until
    cooling = [
        c.until
        for c in site.ledger.exclusions.cool_downs(now)
        if offer_scope(c.scope).cloud in (pool.cloud, ANY)
    ]
    return min(cooling, default=now + site.config.timings.capacity_cooldown)


def find_closed(
    site: Site, directives: Iterable[Directive]
) -> dict[str, StoppedByOrder | AddressTaken]:
    """By node of ours: why no machine may start for it, although its pool may have some."""
    orders = stopped_nodes(directives, site.now())
    closed: dict[str, StoppedByOrder | AddressTaken] = {**_find_taken(site)}
    closed |= {node: StoppedByOrder.of(order) for node, order in orders.items()}
    return {node: cause for node, cause in closed.items() if node in site.pool_of}


def _find_taken(site: Site) -> dict[str, AddressTaken]:
    """By node without a machine: the other node's machine that has its address in the tunnel. The
    ledger would refuse the key of a new machine, which would boot and be paid for nothing.
    """
    tunnels = site.ledger.tunnels.all() if site.tunnel_addresses else ()
    holders = taken_addresses(site.tunnel_addresses, tunnels)
    served = site.served_nodes() if holders else ()
    return {
        node: AddressTaken(address=tunnel.address, node=tunnel.node)
        for node, tunnel in holders.items()
        if node not in served
    }


def find_closed_nodes(site: Site, state: LedgerState) -> frozenset[str]:
    """Our nodes on which no machine may start: the nodes of ``find_closed``, and nodes that are
    still held for a cause that has ended.
    """
    # An order closes its nodes at once. Its holds follow seconds later, also at its end.
    held = {row.scope for row in state.exclusions if row.kind == OPERATOR}
    closed = held | find_closed(site, state.directives).keys()
    return frozenset(closed & site.pool_of.keys())


def can_drain(node: SlurmNode) -> bool:
    """Whether a DRAIN sent now lasts, disturbs no job and does not replace an admin's DRAIN."""
    if is_drained(node) or is_down(node) or is_busy(node):
        return False
    # A DRAIN sent to a node that only has POWER_DOWN set is wiped when its suspend starts (measured
    # on Slurm 22.05.8 to 26.05.5).
    where = phase(node)
    return where is Phase.POWERED_DOWN or "POWERING_DOWN" in node.states


def drain_when_powered_down(site: Site) -> bool:
    """Drain the powered-down held nodes. Returns whether some must power down first."""
    with site.hold_lock:
        return _drain_when_powered_down(site, site.slurm.nodes())


def _drain_when_powered_down(site: Site, view: Mapping[str, SlurmNode]) -> bool:
    to_drain: dict[str, list[str]] = {}
    renamed: dict[str, list[str]] = {}
    waiting = False
    reasons = {row.scope: hold_reason(row.cause) for row in site.ledger.exclusions.holds()}
    for name, reason in reasons.items():
        node = view.get(name)
        if node is None:
            continue
        if is_drained(node):
            # slurmctld removes the DRAIN flag when the power-down starts, so look again after it.
            waiting = waiting or "POWER_DOWN" in node.states
            if has_mark(node, HOLD_MARK) and node.reason != reason:
                renamed.setdefault(reason, []).append(name)
        elif can_drain(node):
            to_drain.setdefault(reason, []).append(name)
        elif phase(node) is not Phase.UP:
            waiting = True
    for reason, nodes in to_drain.items():
        node_updates.drain(site.slurm, nodes, reason)
        reach("refuse.after-settle")
        log.info("held nodes=%s reason=%s", compress(nodes), reason)
    for reason, nodes in renamed.items():
        node_updates.set_reason(site.slurm, nodes, reason)
    return waiting


def release(
    site: Site, nodes: Sequence[str], cause: AnyCause, kind: ExclusionKind = CAPACITY
) -> None:
    """Release holds of one kind. Only a DRAIN with our reason is lifted. The DRAIN of an admin
    stays, and so does the DRAIN of a node that has a hold of another kind, too.
    """
    with site.hold_lock:
        _release(site, nodes, cause, kind)


def _release(site: Site, nodes: Sequence[str], cause: AnyCause, kind: ExclusionKind) -> None:
    # First: if a growth policy must hold a node from now on, the node must not be free for Slurm
    # between the two holds.
    if kind != POLICY:
        _hold_back_for_growth(site, nodes)
    otherwise_held = {row.scope for row in site.ledger.exclusions.holds() if row.kind != kind}
    free = [n for n in nodes if n not in otherwise_held]
    # Read the nodes again: an admin may have drained one while the round waited for a cloud.
    view = site.slurm.nodes(free) if free else {}
    drained = [n for n in free if n in view and is_held(view[n])]
    reach("release.before-resume")
    if drained:
        node_updates.return_to_service(site.slurm, [view[name] for name in drained])
    reach("release.after-resume")
    # The row last: if the daemon dies before this line, the next round finds the row and releases
    # the node. Without the row the node would stay drained for ever.
    site.ledger.exclusions.readmit(kind, *nodes)
    reach("release.after-forget")
    log.info("released nodes=%s reason=%s", compress(nodes), cause)
    site.record(CORRELATION, "released", nodes, cause)


def _hold_back_for_growth(site: Site, nodes: Sequence[str]) -> None:
    """Hold the nodes that only a growth policy may start, so that Slurm does not start them."""
    back = [n for n in nodes if n in site.pool_of and holds_back(site.rules_of(n).growth)]
    policy_held = (
        {row.scope for row in site.ledger.exclusions.holds() if row.kind == POLICY}
        if back
        else set()
    )
    if set(back) - policy_held:
        hold_back(site, [n for n in back if n not in policy_held], BY_POLICY)


def is_held(node: SlurmNode) -> bool:
    """Whether we have drained this node, which has a hold of ours."""
    # A drained node without a reason is ours, too: Slurm 22.05 drops the reason when it powers a
    # node up, and an admin cannot drain a node without giving one.
    return is_drained(node) and (has_mark(node, HOLD_MARK) or not node.reason)
