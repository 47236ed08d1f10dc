"""Nodes kept from Slurm while nothing can serve them: DRAIN with our reason.

A hold is a row in the ledger first, and ``settle`` puts it on the node when it can last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.base.faults import reach
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import (
    ANY,
    CAPACITY,
    POLICY,
    Exclusion,
    ExclusionKind,
    offer_scope,
)
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.growth.scaling import holds_back
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.slurm.client import node_updates

log = logging.getLogger(__name__)


BY_POLICY = GrowthStartsIt()
MAX_REASON = 200
CORRELATION = "holds"


def hold_reason(cause: AnyCause) -> str:
    """The node reason of a hold: our mark and one short line."""
    text = HOLD_MARK + " ".join(str(cause).replace('"', "'").split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."


def hold(site: Site, pool: Pool, nodes: Sequence[str], cause: AnyCause) -> None:
    """Remember that these nodes are to be held; ``settle`` carries it out."""
    now = site.now()
    until = ends_at(site, pool)
    held = {row.scope: row.since for row in site.ledger.exclusions.holds() if row.kind == CAPACITY}
    site.ledger.exclusions.add(
        *(
            # A node that is held already is held for longer, but not only since now.
            Exclusion(kind=CAPACITY, scope=n, pool=pool.name, cause=cause,
                      since=held.get(n, now), until=until)
            for n in nodes
        )
    )  # fmt: skip


def hold_back(
    site: Site, nodes: Sequence[str], cause: AnyCause, kind: ExclusionKind = POLICY
) -> None:
    """Remember that the site's policies, or an operator (``kind``), keep these nodes from Slurm;
    ``settle`` carries it out.
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
        )
    )


def ends_at(site: Site, pool: Pool) -> float:
    """When the cloud's first cool-down ends; soon, where a limit is what is in the way. A pause of
    the pool is waited out.
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


def can_drain(node: SlurmNode) -> bool:
    """Whether a DRAIN sent now would last, hurts nobody and overwrites no admin's own."""
    if is_drained(node) or is_down(node) or is_busy(node):
        return False
    # A DRAIN sent to a node that only has POWER_DOWN set is wiped when its suspend starts (measured
    # on Slurm 22.05.8 to 26.05.5).
    where = phase(node)
    return where is Phase.POWERED_DOWN or "POWERING_DOWN" in node.states


def settle(site: Site) -> bool:
    """Put due holds on their nodes; True while some still wait for their node to power down."""
    with site.hold_lock:
        return _settle(site, site.slurm.nodes())


def _settle(site: Site, view: Mapping[str, SlurmNode]) -> bool:
    due: dict[str, list[str]] = {}
    renamed: dict[str, list[str]] = {}
    waiting = False
    reasons = {row.scope: hold_reason(row.cause) for row in site.ledger.exclusions.holds()}
    for name, reason in reasons.items():
        node = view.get(name)
        if node is None:
            continue
        if is_drained(node):
            waiting = waiting or "POWER_DOWN" in node.states  # which will end the drain
            if has_mark(node, HOLD_MARK) and node.reason != reason:
                renamed.setdefault(reason, []).append(name)
        elif can_drain(node):
            due.setdefault(reason, []).append(name)
        elif phase(node) is not Phase.UP:
            waiting = True
    for reason, nodes in due.items():
        node_updates.drain(site.slurm, nodes, reason)
        reach("refuse.after-settle")
        log.info("held nodes=%s reason=%s", compress(nodes), reason)
    for reason, nodes in renamed.items():
        node_updates.set_reason(site.slurm, nodes, reason)
    return waiting


def release(
    site: Site, nodes: Sequence[str], why: AnyCause, kind: ExclusionKind = CAPACITY
) -> None:
    """Undo holds of one kind: only DRAIN with our own reason is lifted, an admin's stays, and so
    does that of a node which is held for another cause, too.
    """
    with site.hold_lock:
        _release(site, nodes, why, kind)


def _release(site: Site, nodes: Sequence[str], why: AnyCause, kind: ExclusionKind) -> None:
    # First: what a policy is to hold from now on is not free when this hold ends.
    if kind != POLICY:
        _keep_back(site, nodes)
    still = {row.scope for row in site.ledger.exclusions.holds() if row.kind != kind}
    free = [n for n in nodes if n not in still]
    # Read once more: an admin may have drained one while a cloud was asked what it has.
    view = site.slurm.nodes(free) if free else {}
    ours = [n for n in free if n in view and is_held(view[n])]
    reach("release.before-resume")
    if ours:
        node_updates.return_to_service(site.slurm, [view[name] for name in ours])
    reach("release.after-resume")
    # The row last: as long as it is there, a round releases what a crash has left drained.
    site.ledger.exclusions.readmit(kind, *nodes)
    reach("release.after-forget")
    log.info("released nodes=%s reason=%s", compress(nodes), why)
    site.record(CORRELATION, "released", nodes, why)


def _keep_back(site: Site, nodes: Sequence[str]) -> None:
    """Nodes that a growth policy starts are not for Slurm to start, also when they can be had."""
    back = [n for n in nodes if n in site.pool_of and holds_back(site.rules_of(n).growth)]
    known = (
        {row.scope for row in site.ledger.exclusions.holds() if row.kind == POLICY}
        if back
        else set()
    )
    if set(back) - known:
        hold_back(site, [n for n in back if n not in known], BY_POLICY)


def is_held(node: SlurmNode) -> bool:
    """Whether a node with a hold of ours is drained by us."""
    # Slurm 22.05 drops a node's reason when it powers it up, and demands one of an admin.
    return is_drained(node) and (has_mark(node, HOLD_MARK) or not node.reason)
