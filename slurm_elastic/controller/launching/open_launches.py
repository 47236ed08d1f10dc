"""Settles open launches, whose call may or may not have taken effect: by the cloud's list, which
shows their machines, or by repeating the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launching.launch import Launched, LaunchOutcome, launch, rebuild_spec
from slurm_elastic.controller.launching.provision import provision
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.controller.whole_jobs import find_jobs_of_nodes
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import RepetitionFailed
from slurm_elastic.model.cluster import Instance, NodeRequest
from slurm_elastic.model.exclusion import COOL_DOWN
from slurm_elastic.model.memory import generation_order
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.launch.ranking import shortfall
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.audit_trail import job_subject
from slurm_elastic.state.ledger import Launch
from slurm_elastic.state.spool import received_at


def confirm_launches(
    site: Site, batch: Sequence[actions.Confirm | actions.Retry], listed: Sequence[Instance]
) -> None:
    """Close open launches with the machines that the cloud's list shows for them."""
    for action in batch:
        launched = [i for i in listed if i.generation == action.generation]
        row = site.ledger.launches.require(action.generation)
        for on_answer in site.extensions.on_answer:
            on_answer(row.generation, row.pool)
        site.ledger.machines.record_launch(
            action.generation, launched, site.now(), site.terms_of(row.pool)
        )
        site.record(CORRELATION, "confirmed", [i.node for i in launched], action.cause)


def retry_launches(site: Site, batch: Sequence[actions.Retry], listed: Sequence[Instance]) -> None:
    """Repeat the calls under the same tokens. If the cloud refuses one now, launch on other offers
    for the nodes that Slurm still waits for. In the first round after a start, other offers wait
    until all lists are read (NotLearntError); the nodes then get machines as lost requests.

    A call whose launch would be forbidden now is not repeated, because it may be the first one that
    reaches the cloud. The cloud's list settles the launch.
    """
    for action in batch:
        row = site.ledger.launches.get(action.generation)
        # The repeated call may buy machines that the first one did not. The ledger must be able to
        # record them.
        if row is None or site.ledger.end_only:
            continue
        # A waiting request would end the machines at once. Slurm may want them again after it.
        if _is_suspended(site, row):
            continue
        # The pool has left the configuration, so the call cannot be repeated. Take the machines
        # that the list shows.
        if row.pool not in site.pools:
            confirm_launches(site, [action], listed)
            continue
        if any(i.generation == row.generation for i in listed) and find_stop(site, row):
            confirm_launches(site, [action], listed)
            continue
        result = _repeat(site, row, action)
        cause: AnyCause = action.cause
        if result.reason:
            cause = RepetitionFailed(cause=cause, error=result.reason)
        kind = f"retry-{result.outcome.value}"
        jobs = [job_subject(job) for job in row.jobs]
        site.recorder.record_if_changed(CORRELATION, kind, row.nodes, cause, jobs=jobs)
        if result.outcome is LaunchOutcome.IN_DOUBT:
            continue
        # This is all: a provider that refuses a repetition for capacity or quota has no machines of
        # the first call (``protocols.Provider.launch``).
        started = {i.node for i in result.instances}
        unserved = [n for n in row.nodes if n not in started]
        view = site.slurm.nodes(unserved) if unserved else {}
        unserved = [n for n in unserved if waits_for(view, n)]
        if unserved:
            jobs_of_nodes = find_jobs_of_nodes(site, unserved)
            asked_at = received_at(row.request)
            provision(site, row.cloud, row.request, unserved, jobs_of_nodes, asked_at)


def _repeat(site: Site, row: Launch, action: actions.Retry) -> Launched:
    """Repeat the call, or refuse to. A launch that must not be repeated stays in doubt until the
    cloud's list would have shown its machines.
    """
    stop = find_stop(site, row)
    if stop is None:
        return launch(site, rebuild_spec(site, row), row.request, is_repetition=True)
    if action.lapse is None:
        return Launched(outcome=LaunchOutcome.IN_DOUBT, reason=str(stop))
    site.ledger.launches.record_failure(row.generation, str(action.lapse), site.now())
    return Launched(outcome=LaunchOutcome.REFUSED, reason=str(stop))


def find_stop(site: Site, row: Launch) -> AnyCause | None:
    """Return why this launch or start, which was decided earlier, would be forbidden now: an
    order, a limit, a budget, or a cloud that is shut. None if it would be allowed.
    """
    pool, state = site.pools[row.pool], site.ledger.state()
    # The launch itself counts in all bounds since its intent, so its call adds nothing to them.
    before = replace(
        state,
        launches=tuple(r for r in state.launches if r.generation != row.generation),
        machines=tuple(m for m in state.machines if m.instance.generation != row.generation),
        # A cool-down only saves useless calls, and the refusal of this very call may have set it.
        exclusions=tuple(x for x in state.exclusions if x.kind is not COOL_DOWN),
    )
    request = NodeRequest(id=row.request, pool=pool, nodes=row.nodes, jobs=row.jobs)
    scope, now = site.scope(pool, before), site.now()
    # The cloud may use any of the offers. Their free counts are from before the launch.
    stops = (shortfall(request, [replace(o, free=None)], scope, now) for o in row.offers)
    return next((stop for stop in stops if stop is not None), None)


def _is_suspended(site: Site, row: Launch) -> bool:
    """Whether a waiting suspend request would end the machines of this launch."""
    decided = generation_order(row.generation)
    return any(
        decided <= request.received and not set(row.nodes).isdisjoint(request.nodes)
        for request in site.suspends.snapshot().values()
    )


def waits_for(view: Mapping[str, SlurmNode], node: str) -> bool:
    """Whether Slurm waits for the node to come up."""
    return node in view and phase(view[node]) is Phase.POWERING_UP
