"""No offer is left for nodes that Slurm is powering up: they are given back, and the jobs move on.

Measured recipe, the same on 22.05, 24.11 and 26.05: drain the other powered-down nodes of the pool,
``power_down_force`` the failing ones (their jobs are requeued within 0.1 s) with an address to
which nothing can be sent, lift the requeue hold of those jobs (121 s otherwise), and hold the
failing nodes once they are POWERING_DOWN.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.faults import reach
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.holds import can_drain, hold, hold_reason
from slurm_elastic.controller.launch import assign_addresses
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import NodesUnavailable
from slurm_elastic.model.cluster import NodeRequest, Pool
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.model.slurm import NOWHERE, SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.slurm.client import node_updates, requeue_setting

log = logging.getLogger(__name__)


def reject_nodes(
    site: Site, request: NodeRequest, nodes: Sequence[str], why: AnyCause, *, spare: int
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
    why: AnyCause,
    spare: int,
) -> list[str]:
    """Hold ``nodes`` as soon as they can be, and now the pool's nodes that are off, but for
    ``spare`` of them. Returns those.
    """
    refused = set(nodes)
    siblings = [n for n in pool.nodes if n not in refused and n in view and can_drain(view[n])]
    siblings = siblings[spare:]
    # Nodes that a policy keeps back are drained already; none of them can be had either.
    back = {row.scope for row in site.ledger.exclusions.holds() if row.kind == POLICY} - refused
    drained = [] if spare else [n for n in pool.nodes if n in back]
    hold(site, pool, [*nodes, *siblings, *drained], why)
    reach("refuse.after-hold")
    if siblings:
        # First of all, or the job walks into these one by one.
        node_updates.drain(site.slurm, siblings, hold_reason(why))
    reach("refuse.after-drain")
    return siblings


def power_down_and_requeue(
    site: Site,
    nodes: Sequence[str],
    view: Mapping[str, SlurmNode],
    why: AnyCause | Mapping[str, AnyCause],
    correlation: str,
    *,
    hurry: bool = True,
) -> set[str]:
    """Power nodes down by force, with the reason of all or of each; the jobs that wait for them are
    requeued and start elsewhere, at once where ``hurry``.

    A node that an admin has drained is left out because power_down would undo the drain; it runs
    into its ResumeTimeout. A node that is not powering up is left out, too. Returns the nodes that
    were powered down.
    """
    ours = [n for n in nodes if n in view and may_force(view[n])]
    if not ours:
        return set()
    waiting = _expect_and_allow_requeues(site, ours, hurry=hurry)
    # slurmctld may have taken its time over that, and some may have come up meanwhile.
    found = site.slurm.nodes(ours)
    ours = [n for n in ours if n in found and may_force(found[n])]
    causes = {n: why[n] if isinstance(why, Mapping) else why for n in ours}
    reach("refuse.before-force")
    if ours:
        _address_mates(site, ours, waiting)
    for cause in dict.fromkeys(causes.values()):
        nodes = [n for n in ours if causes[n] == cause]
        node_updates.power_down_by_force(site.slurm, nodes, hold_reason(cause))
    reach("refuse.after-force")
    for job in waiting:
        if lost := [n for n in job.nodes if n in causes]:
            cause = NodesUnavailable(cause=causes[lost[0]])
            site.record(correlation, "requeued", (f"job:{job.id}",), cause)
    return set(causes)


def _address_mates(site: Site, nodes: Sequence[str], jobs: Sequence[SlurmJob]) -> None:
    """Give the other nodes of these jobs an address, if they boot and have none but their name.

    slurmctld tells all nodes of a job that is requeued to end it. It looks up the name of a node
    without an address for 10 s, with its configuration locked: no command is answered meanwhile.
    """
    mates = {n for job in jobs for n in job.nodes if n in site.pool_of} - {*nodes}
    view = site.slurm.nodes(sorted(mates)) if mates else {}
    nameless = [
        n.name for n in view.values() if phase(n) is Phase.POWERING_UP and n.address == n.name
    ]
    if not nameless:
        return
    known = {m.instance.node: m.instance.address for m in site.ledger.machines.live()}
    # Its own, where it is known: the node may register in this very moment.
    assign_addresses(site, {n: known.get(n) or NOWHERE for n in nameless})


def _expect_and_allow_requeues(site: Site, nodes: Sequence[str], *, hurry: bool) -> list[SlurmJob]:
    """The jobs that wait for these nodes; they may be requeued now. Each is expected before its
    setting is changed, because only for a job that is expected ``Requeues`` puts the setting back.
    """
    waiting = _expect_requeues(site, nodes, hurry=hurry)
    for job in waiting:
        # A SlurmError passes: without that leave the power-down would kill the job.
        _allow_requeue(site, job)
    return waiting


def _expect_requeues(site: Site, nodes: Sequence[str], *, hurry: bool) -> list[SlurmJob]:
    """Expect the requeue of the jobs that wait for these nodes, each with the requeue setting that
    it has now. Returns the jobs.
    """
    lifted = {number for number, _ in site.ledger.requeues.lifted()}

    def expect() -> list[SlurmJob]:
        jobs = [j for j in site.slurm.jobs() if not set(nodes).isdisjoint(j.nodes)]
        for job in jobs:
            # ckptman may have lifted it while we were away. It leaves a job that waits to us.
            own = replace(job, requeue=job.requeue and job.id not in lifted)
            site.requeues.expect(own, site.monotonic(), set(nodes), hurry=hurry)
        return jobs

    jobs = expect()
    # A setting may have been put back after Slurm had listed the job and before it was expected.
    return expect() if any(job.id in lifted for job in jobs) else jobs


def may_force(node: SlurmNode) -> bool:
    """Whether ``power_down_and_requeue`` would power the node down."""
    return phase(node) is Phase.POWERING_UP and (not is_drained(node) or has_mark(node, OUR_MARK))


def _allow_requeue(site: Site, job: SlurmJob) -> None:
    """A ``--no-requeue`` job that never started loses nothing by waiting again; Slurm would fail it
    with NODE_FAIL. ``Requeues`` puts its own setting back. One that has started (a node of its may
    be powering up once more) keeps its user's word.
    """
    if job.requeue or "CONFIGURING" not in job.states:
        return
    requeue_setting.lift_until_it_runs(site.slurm, site.ledger, job, site.now())
