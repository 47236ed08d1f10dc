"""Nodes kept from Slurm while nothing can serve them: DRAIN with our reason.

The order is measured (Slurm 22.05.8 to 26.05.5): DRAIN lasts on a node that is POWERED_DOWN or
POWERING_DOWN, while a DRAIN sent to one that only has POWER_DOWN set is wiped when its suspend
starts. So a hold is a row in the ledger first, and ``settle`` puts it on the node when it can last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic import requeue_setting
from slurm_elastic.controller.context import Site
from slurm_elastic.faults import reach
from slurm_elastic.hostlist import compress
from slurm_elastic.model import CAPACITY, POLICY, Exclusion, NodeRequest, Pool
from slurm_elastic.model_slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.policies.reconcile_rules import HOLD_MARK, OUR_MARK
from slurm_elastic.policies.scaling import holds_back
from slurm_elastic.slurm import node_updates

log = logging.getLogger(__name__)


BY_POLICY = "the growth policy starts it when it is needed"
MAX_REASON = 200
CORRELATION = "holds"


def hold_reason(why: str) -> str:
    """The node reason of a hold: our mark and one short line."""
    text = HOLD_MARK + " ".join(why.replace('"', "'").split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."


def hold(site: Site, pool: Pool, nodes: Sequence[str], why: str) -> None:
    """Remember that these nodes are to be held; ``settle`` carries it out."""
    now = site.now()
    until = ends_at(site, pool)
    words = hold_reason(why).removeprefix(HOLD_MARK)  # each node's row repeats it
    site.ledger.exclude(
        *(
            Exclusion(kind=CAPACITY, scope=n, pool=pool.name, cause=words, since=now, until=until)
            for n in nodes
        )
    )


def hold_back(site: Site, nodes: Sequence[str], why: str, kind: str = POLICY) -> None:
    """Remember that the site's policies, or an operator (``kind``), keep these nodes from Slurm;
    ``settle`` carries it out.
    """
    now = site.now()
    site.ledger.exclude(
        *(
            Exclusion(
                kind=kind, scope=n, pool=site.pool_of[n].name, cause=why, since=now, until=now
            )
            for n in nodes
        )
    )


def ends_at(site: Site, pool: Pool) -> float:
    """When the cloud's first cool-down ends; soon, where a limit is what is in the way. A pause of
    the pool is waited out.
    """
    now = site.now()
    for breaker in site.ledger.breakers():
        if breaker.scope == pool.name and breaker.until > now:
            return breaker.until
    cooling = [
        c.until for c in site.ledger.cool_downs(now) if c.scope.split("/")[0] in (pool.cloud, "*")
    ]
    return min(cooling, default=now + site.config.timings.capacity_cooldown)


def can_drain(node: SlurmNode) -> bool:
    """Whether a DRAIN sent now would last, hurts nobody and overwrites no admin's own."""
    if is_drained(node) or is_down(node) or is_busy(node):
        return False
    where = phase(node)
    return where is Phase.POWERED_DOWN or "POWERING_DOWN" in node.states


def settle(site: Site) -> bool:
    """Put due holds on their nodes; True while some still wait for their node to power down."""
    with site.holding:
        return _settle(site, site.slurm.nodes())


def _settle(site: Site, view: Mapping[str, SlurmNode]) -> bool:
    due: dict[str, list[str]] = {}
    renamed: dict[str, list[str]] = {}
    waiting = False
    reasons = {row.scope: hold_reason(row.cause) for row in site.ledger.holds()}
    for name, reason in reasons.items():
        node = view.get(name)
        if node is None:
            continue
        if is_drained(node):
            waiting = waiting or "POWER_DOWN" in node.states  # which will end the drain
            if node.reason.startswith(HOLD_MARK) and node.reason != reason:
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


def release(site: Site, nodes: Sequence[str], why: str, kind: str = CAPACITY) -> None:
    """Undo holds of one kind: only DRAIN with our own reason is lifted, an admin's stays, and so
    does that of a node which is held for another cause, too. The nodes are read once more: an admin
    may have drained one while a cloud was asked what it has.
    """
    with site.holding:
        _release(site, nodes, why, kind)


def _release(site: Site, nodes: Sequence[str], why: str, kind: str) -> None:
    if kind != POLICY:
        _keep_back(site, nodes)
    still = {row.scope for row in site.ledger.holds() if row.kind != kind}
    free = [n for n in nodes if n not in still]
    view = site.slurm.nodes(free) if free else {}
    ours = [n for n in free if n in view and is_held(view[n])]
    reach("release.before-resume")
    if ours:
        node_updates.return_to_service(site.slurm, ours)
    reach("release.after-resume")
    site.ledger.readmit(kind, *nodes)
    reach("release.after-forget")
    log.info("released nodes=%s reason=%s", compress(nodes), why)
    site.record(CORRELATION, "released", nodes, why)


def _keep_back(site: Site, nodes: Sequence[str]) -> None:
    """Nodes that a growth policy starts are not for Slurm to start, also when they can be had."""
    back = [n for n in nodes if n in site.pool_of and holds_back(site.rules_of(n).growth)]
    known = {row.scope for row in site.ledger.holds() if row.kind == POLICY} if back else set()
    if set(back) - known:
        hold_back(site, [n for n in back if n not in known], BY_POLICY)


def is_held(node: SlurmNode) -> bool:
    """Whether a node with a hold of ours is drained by us. slurmctld drops a node's reason when it
    powers it up (22.05), and demands one of an admin.
    """
    return is_drained(node) and (node.reason.startswith(HOLD_MARK) or not node.reason)


# No offer is left for nodes that Slurm is powering up: give them back, the jobs move on.
#
# Measured recipe, the same on 22.05, 24.11 and 26.05: drain the pool's other powered-down nodes (or
# the job walks into them one by one), ``power_down_force`` the failing ones (their jobs are
# requeued within 0.1 s) with an address to which nothing can be sent, lift the requeue hold of
# those jobs (121 s otherwise), and hold the failing nodes once they are POWERING_DOWN.


def reject_nodes(
    site: Site, request: NodeRequest, nodes: Sequence[str], why: str, *, spare: int
) -> set[str]:
    """Give ``nodes`` back to Slurm with ``why``, and hold the rest of the pool, but for ``spare``
    nodes that could be had. Returns those that are powered down.
    """
    reach("refuse.before-hold")
    view = site.slurm.nodes(request.pool.nodes)
    held = quarantine_pool(site, request.pool, nodes, view, why, spare)
    log.warning(
        "no offer left request=%s pool=%s nodes=%s held=%s reason=%s",
        request.id, request.pool.name, compress(nodes), compress(held), why,
    )  # fmt: skip
    site.record(request.id, "refused", (*nodes, *(f"job:{j}" for j in request.jobs)), why)
    return power_down_and_requeue(site, nodes, view, why, request.id)


def quarantine_pool(
    site: Site,
    pool: Pool,
    nodes: Sequence[str],
    view: Mapping[str, SlurmNode],
    why: str,
    spare: int,
) -> list[str]:
    """Hold ``nodes`` as soon as they can be, and now the pool's nodes that are off, but for
    ``spare`` of them. Returns those.
    """
    refused = set(nodes)
    siblings = [n for n in pool.nodes if n not in refused and n in view and can_drain(view[n])]
    siblings = siblings[spare:]
    # Nodes that a policy keeps back are drained already; none of them can be had either.
    back = {row.scope for row in site.ledger.holds() if row.kind == POLICY} - refused
    drained = [] if spare else [n for n in pool.nodes if n in back]
    hold(site, pool, [*nodes, *siblings, *drained], why)
    reach("refuse.after-hold")
    if siblings:
        node_updates.drain(site.slurm, siblings, hold_reason(why))
    reach("refuse.after-drain")
    return siblings


def power_down_and_requeue(
    site: Site,
    nodes: Sequence[str],
    view: Mapping[str, SlurmNode],
    why: str,
    correlation: str,
    *,
    hurry: bool = True,
) -> set[str]:
    """Power nodes down by force; the jobs that wait for them are requeued and start elsewhere, at
    once where ``hurry``.

    Not a node that an admin has drained, as power_down would undo that: it runs into its
    ResumeTimeout. Nor one that is not powering up by now. Returns those that were.
    """
    ours = [n for n in nodes if n in view and may_force(view[n])]
    if not ours:
        return set()
    waiting = [j for j in site.slurm.jobs() if not set(ours).isdisjoint(j.nodes)]
    for job in waiting:
        # Before anything is changed: it also puts the job's own requeue setting back in the end.
        site.requeues.expect(job, site.monotonic(), set(ours), hurry=hurry)
        _allow_requeue(site, job)
    # slurmctld may have taken its time over that, and some may have come up meanwhile.
    found = site.slurm.nodes(ours)
    ours = [n for n in ours if n in found and may_force(found[n])]
    given = set(ours)
    reach("refuse.before-force")
    if ours:
        node_updates.power_down_by_force(site.slurm, ours, hold_reason(why))
    reach("refuse.after-force")
    for job in waiting:
        if not given.isdisjoint(job.nodes):
            told = f"its nodes cannot be had: {why}"
            site.record(correlation, "requeued", (f"job:{job.id}",), told)
    return given


def may_force(node: SlurmNode) -> bool:
    """Whether ``power_down_and_requeue`` would power the node down."""
    return phase(node) is Phase.POWERING_UP and (
        not is_drained(node) or node.reason.startswith(OUR_MARK)
    )


def _allow_requeue(site: Site, job: SlurmJob) -> None:
    """A ``--no-requeue`` job that never started loses nothing by waiting again; Slurm would fail
    it with NODE_FAIL. ``Requeues`` puts its own setting back. One that has started (a node of its
    may be powering up once more) keeps its user's word. SlurmError passes: powering its node down
    without that leave would kill it.
    """
    if job.requeue or "CONFIGURING" not in job.states:
        return
    requeue_setting.lift_until_it_runs(site.slurm, site.ledger, job, site.now())
