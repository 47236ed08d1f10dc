"""For how long the machines must stay that growth policies start, from the decision to the launch.

slurmctld asks for such a machine without a job, so the launch reads in the journal for which jobs
the policy has started it. The journal also has the answer after a restart of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from slurm_elastic.controller.context import Site
from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.policies.growth.scaling import GroupSnapshot, ScalingPlan, demand_of
from slurm_elastic.policies.growth.stays import stays
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision

DETAIL = "stays_s"
"""The key in the details of a growth policy's decision."""
MAX_READ_DECISIONS = 100
"""At most this many past decisions about a pool are read for a request."""


def detail_of(
    site: Site, now: GroupSnapshot, plan: ScalingPlan, nodes: Sequence[str]
) -> dict[str, object]:
    """Return how long the machines of ``nodes`` must stay, for the details of the decision. Empty
    if no reservation ends its machines. ``nodes``: the nodes that the plan starts, in its order.
    """
    held = (row for cloud in site.clouds.values() for row in cloud.held)
    if not any(row.machines_end_at is not None and now.now < row.ends_at for row in held):
        return {}
    needs = stays(count_for_jobs(plan), now.growth, demand_of(now))
    return {DETAIL: dict(zip(nodes, needs, strict=False))}


def count_for_jobs(plan: ScalingPlan) -> int:
    """Return how many of the nodes that the plan starts are for jobs. The machines that keep a pool
    warm come last, and are for no job.
    """
    return sum(start.machines for start in plan.starts if not start.is_warm)


def recorded(site: Site, request: NodeRequest) -> Mapping[str, float]:
    """Return by node for how long (s) its machine must stay, for the nodes that a growth policy
    started lately.
    """
    needs: dict[str, float] = {}
    for decision in recent_decisions(site, request):
        # A node of a later decision without an answer was not started for a job then.
        needs |= dict.fromkeys(decision.subjects, 0.0)
        needs |= _needs_of(decision)
    return needs


def recent_decisions(site: Site, request: NodeRequest) -> Iterator[Decision]:
    """Yield the decisions that may have started nodes of the request, oldest first."""
    # A node that Slurm could not start in this time was powered up for another reason since.
    since = site.now() - site.config.resume_timeout(site.clouds[request.pool.cloud])
    pool = pool_subject(request.pool.name)
    decisions = site.ledger.decisions.about(pool, MAX_READ_DECISIONS)
    yield from (decision for decision in decisions if decision.at >= since)


def _needs_of(decision: Decision) -> Mapping[str, float]:
    needs = (decision.detail or {}).get(DETAIL, {})
    try:
        return msgspec.convert(needs, dict[str, float])
    except msgspec.ValidationError:
        # Another release wrote the decision. Without an answer the machine may be any.
        return {}
