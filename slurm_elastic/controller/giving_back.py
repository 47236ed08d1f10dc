"""Gives powering-up nodes without a machine back to Slurm, so that their jobs can start elsewhere.

The steps and their order were measured on Slurm 22.05, 24.11 and 26.05:

1. Drain the other powered-down nodes of the pool, or the requeued jobs get these next.
2. Power the failing nodes down by force, with an address that leads nowhere. slurmctld requeues
   their jobs within 0.1 s.
3. Lift the requeue hold of those jobs, which is 121 s otherwise.
4. Hold the failing nodes as soon as they are POWERING_DOWN.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.faults import reach
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.holds import can_drain, find_end_of_hold, hold, hold_reason
from slurm_elastic.controller.launching.launch import assign_addresses
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import NodesUnavailable
from slurm_elastic.model.causes.limits import RequestTooLate
from slurm_elastic.model.causes.refusals import NotRequeued
from slurm_elastic.model.cluster import NodeRequest, Pool
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.model.requeued_jobs import WAITS_SINCE, waits_since
from slurm_elastic.model.slurm import NOWHERE, SlurmJob, SlurmNode
from slurm_elastic.policies.launch.spot_use import find_affected
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.slurm.client.commands import node_updates, requeue_setting
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


def reject_nodes(
    site: Site, request: NodeRequest, nodes: Sequence[str], cause: AnyCause, *, spare: int
) -> set[str]:
    """Give ``nodes`` back to Slurm with ``cause``, and hold the pool's other nodes that get no
    machine either, except ``spare`` nodes that we could still buy. Returns the nodes that were
    powered down.
    """
    reach("refuse.before-hold")
    view = site.slurm.nodes(request.pool.nodes)
    affected = find_affected(request.pool, request.no_spot)
    held = quarantine_pool(site, request.pool, nodes, view, cause, spare, affected)
    log.warning(
        "no offer left request=%s pool=%s nodes=%s held=%s reason=%s",
        request.id, request.pool.name, compress(nodes), compress(held), cause,
    )  # fmt: skip
    site.record(request.id, "refused", (*nodes, *(job_subject(j) for j in request.jobs)), cause)
    # A job kept off spot machines may get another node of the pool, which has none for it either.
    hurry = not isinstance(request.no_spot, NotRequeued)
    return power_down_and_requeue(site, nodes, view, cause, request.id, hurry=hurry)


def quarantine_pool(
    site: Site,
    pool: Pool,
    nodes: Sequence[str],
    view: Mapping[str, SlurmNode],
    cause: AnyCause,
    spare: int,
    affected: Sequence[str] | None = None,
) -> list[str]:
    """Hold ``nodes`` as soon as Slurm allows it, and now the pool's other nodes that are off,
    except ``spare`` of them. Returns these other nodes. ``affected``: hold only other nodes of
    these; None: of the whole pool.
    """
    refused = set(nodes)
    others = pool.nodes if affected is None else affected
    siblings = [n for n in others if n not in refused and n in view and can_drain(view[n])]
    siblings = siblings[spare:]
    # Nodes that a policy holds are drained already. Hold them for this cause, too: when the policy
    # releases one, nothing could serve it.
    policy_held = {
        row.scope for row in site.ledger.exclusions.holds() if row.kind == POLICY
    } - refused
    drained = [] if spare else [n for n in others if n in policy_held]
    until = _find_early_review(site, pool) if isinstance(cause, RequestTooLate) else None
    hold(site, pool, [*nodes, *siblings, *drained], cause, until=until)
    reach("refuse.after-hold")
    if siblings:
        # Before the failing nodes are powered down. Otherwise slurmctld gives the requeued job
        # these nodes one after the other.
        node_updates.drain(site.slurm, siblings, hold_reason(cause))
    reach("refuse.after-drain")
    return siblings


def find_review(site: Site, pool: Pool, cause: AnyCause) -> float:
    """Return when a request that was refused for this cause may be tried again (Unix time)."""
    if isinstance(cause, RequestTooLate):
        return _find_early_review(site, pool)
    return find_end_of_hold(site, pool)


def _find_early_review(site: Site, pool: Pool) -> float:
    """Return when to review the holds of a request that was too late: when the nodes are powered
    down. Offers that the request did not reach may have room. At the end of the first cool-down the
    next request would only try the same offers again.
    """
    suspend_s = site.config.suspend_timeout(site.clouds[pool.cloud])
    return site.now() + suspend_s + site.config.timings.reconcile_interval


def power_down_and_requeue(
    site: Site,
    nodes: Sequence[str],
    view: Mapping[str, SlurmNode],
    cause: AnyCause | Mapping[str, AnyCause],
    correlation: str,
    *,
    hurry: bool = True,
) -> set[str]:
    """Power nodes down by force, so that slurmctld requeues the jobs that wait for them. With
    ``hurry`` the jobs may start elsewhere at once. ``cause``: one for all nodes, or one by node.

    A node that an admin has drained is left out because power_down would undo the drain; it runs
    into its ResumeTimeout. A node that does not power up is left out, too. Returns the nodes that
    were powered down. SlurmError passes.
    """
    forced = [n for n in nodes if n in view and may_force(view[n])]
    if not forced:
        return set()
    waiting = _expect_and_allow_requeues(site, forced, hurry=hurry)
    # Read the nodes again: those calls may have taken slurmctld a while, and a node that has come
    # up in the meantime may run a job.
    fresh_view = site.slurm.nodes(forced)
    forced = [n for n in forced if n in fresh_view and may_force(fresh_view[n])]
    causes = {n: cause[n] if isinstance(cause, Mapping) else cause for n in forced}
    reach("refuse.before-force")
    if forced:
        _address_mates(site, forced, waiting)
    for node_cause, nodes in group_by(forced, causes.__getitem__).items():
        node_updates.power_down_by_force(site.slurm, nodes, hold_reason(node_cause))
    reach("refuse.after-force")
    _record_requeues(site, waiting, causes, correlation)
    return set(causes)


def _record_requeues(
    site: Site, jobs: Sequence[SlurmJob], causes: Mapping[str, AnyCause], correlation: str
) -> None:
    """Record that the jobs with nodes in ``causes`` were requeued, and since when they wait,
    because Slurm forgets it.
    """
    lost_nodes = {job.id: [n for n in job.nodes if n in causes] for job in jobs}
    requeued = site.ledger.decisions.requeued() if any(lost_nodes.values()) else {}
    for job in jobs:
        if lost := lost_nodes[job.id]:
            node_cause, since = NodesUnavailable(cause=causes[lost[0]]), waits_since(job, requeued)
            detail: dict[str, object] | None = {WAITS_SINCE: since} if since else None
            site.record(correlation, "requeued", (job_subject(job.id),), node_cause, detail)


def _address_mates(site: Site, nodes: Sequence[str], jobs: Sequence[SlurmJob]) -> None:
    """Give the other nodes of these jobs an address, if they boot and have none but their name.

    slurmctld tells all nodes of a requeued job to end it. It looks up the name of a node without an
    address for 10 s, with its configuration locked, and answers no command in that time.
    """
    mates = {n for job in jobs for n in job.nodes if n in site.pool_of} - {*nodes}
    view = site.slurm.nodes(sorted(mates)) if mates else {}
    nameless = [
        n.name for n in view.values() if phase(n) is Phase.POWERING_UP and n.address == n.name
    ]
    if not nameless:
        return
    address_by_node = {m.instance.node: m.instance.address for m in site.ledger.machines.live()}
    # The machine's own address if we know it, because the node may register at this moment.
    assign_addresses(site, {n: address_by_node.get(n) or NOWHERE for n in nameless})


def _expect_and_allow_requeues(site: Site, nodes: Sequence[str], *, hurry: bool) -> list[SlurmJob]:
    """Expect the requeue of the jobs that wait for these nodes, and allow it. Returns the jobs."""
    # Expect first, then change the setting: ``ExpectedRequeues`` puts it back for expected jobs
    # alone.
    waiting = _expect_requeues(site, nodes, hurry=hurry)
    for job in waiting:
        # Let a SlurmError pass: if the job may not be requeued, the power-down would kill it.
        _allow_requeue(site, job)
    return waiting


def _expect_requeues(site: Site, nodes: Sequence[str], *, hurry: bool) -> list[SlurmJob]:
    """Expect the requeue of the jobs that wait for these nodes, each with its user's requeue
    setting. Returns the jobs.
    """
    lifted = {number for number, _ in site.ledger.requeues.lifted()}

    def expect() -> list[SlurmJob]:
        jobs = [j for j in site.slurm.jobs() if not set(nodes).isdisjoint(j.nodes)]
        for job in jobs:
            # ckptman may have lifted the user's --no-requeue while this daemon was down. It leaves
            # it to us to put the setting back for a job that waits.
            original = replace(job, requeue=job.requeue and job.id not in lifted)
            site.requeues.expect(original, site.monotonic(), set(nodes), hurry=hurry)
        return jobs

    jobs = expect()
    # Read once more: another thread may have put a setting back after Slurm listed the job and
    # before we expected it. The first listing then shows the lifted setting as the user's.
    return expect() if any(job.id in lifted for job in jobs) else jobs


def may_force(node: SlurmNode) -> bool:
    """Whether ``power_down_and_requeue`` would power the node down."""
    return phase(node) is Phase.POWERING_UP and (not is_drained(node) or has_mark(node, OUR_MARK))


def _allow_requeue(site: Site, job: SlurmJob) -> None:
    """Lift ``--no-requeue`` of a job not started yet. Otherwise Slurm fails it with NODE_FAIL,
    although it loses nothing by waiting again. ``ExpectedRequeues`` puts the setting back.

    A started job keeps its user's setting, also if a node of it powers up again.
    """
    if job.requeue or "CONFIGURING" not in job.states:
        return
    requeue_setting.lift_until_it_runs(site.slurm, site.ledger, job.id, job.restarts, site.now())
