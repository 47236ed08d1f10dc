"""Sets nodes DOWN whose machine no longer exists, and nodes that Slurm shows as allocated although
no job has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.machine_losers import LOST, hold_machine_losers
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies import actions
from slurm_elastic.policies.nodes.node_reasons import ASAP, OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_anothers_address,
    is_busy,
    is_drained,
    phase,
)
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


def set_lost_down(
    site: Site, batch: Sequence[actions.OnNode], *, cloud_ended_it: bool = False
) -> None:
    """Set nodes DOWN whose machine no longer exists, so that Slurm requeues their jobs now and not
    only at SlurmdTimeout. ``cloud_ended_it``: the cloud has reported the end of the machines.
    """
    view = site.slurm.nodes()
    machines = [machine.instance for machine in site.ledger.machines.live()]
    lost: dict[tuple[str, str | None], list[str]] = {}
    for name in (a.node for a in batch):
        node = view.get(name)
        if node is None:
            continue
        admins = is_drained(node) and not has_mark(node, (OUR_MARK, ASAP))
        # We never clear an admin's reason. A node that an admin has drained stays as it is if it
        # runs no job. If it does, it goes DOWN with the admin's reason.
        if phase(node) is Phase.UP and (is_busy(node) or not admins):
            reason = node.reason if admins else f"{OUR_MARK}lost: the machine is gone"
            # slurmctld tells a node that goes DOWN to kill its jobs. Another machine that has the
            # address now must not get that order. The node's own machine, if it runs, must get it.
            nowhere = cloud_ended_it or is_anothers_address(node, machines, view.values())
            lost.setdefault((reason, NOWHERE if nowhere else None), []).append(name)
    nodes = {name for names in lost.values() for name in names}
    if not nodes:
        return
    # Read the jobs before the nodes go DOWN: a requeued job no longer lists its nodes.
    jobs = [j for j in site.slurm.jobs() if not nodes.isdisjoint(j.nodes)]
    for (reason, address), names in lost.items():
        node_updates.set_down(site.slurm, names, reason, address=address)
    log.warning("machines lost nodes=%s jobs=%s", compress(nodes), [j.id for j in jobs])
    for job in jobs:
        site.requeues.expect(job, site.monotonic(), nodes)
    for cause, names in group_by_cause([a for a in batch if a.node in nodes]).items():
        hit = [job_subject(j.id) for j in jobs if not set(names).isdisjoint(j.nodes)]
        site.record(CORRELATION, LOST, [*names, *hit], cause)
    for job in hold_machine_losers(site, jobs, CORRELATION):
        # It must still wait when the settler holds it.
        site.requeues.expect(job, site.monotonic(), nodes, hurry=False)


def set_unused_down(site: Site, batch: Sequence[actions.OnNode]) -> None:
    """Set nodes DOWN that Slurm shows as allocated although no job has them. slurmctld then powers
    them down and can use them again.
    """
    # Read the jobs now: a job may wait for its node, which slurmctld powers up only when its
    # ResumeRate allows it.
    held = {node for job in site.slurm.jobs() if not job.has_ended for node in job.nodes}
    unused = [a for a in batch if a.node not in held]
    if unused:
        nodes = [a.node for a in unused]
        node_updates.set_down(site.slurm, nodes, f"{OUR_MARK}allocated, and no job has it")
    for cause, names in group_by_cause(unused).items():
        site.record(CORRELATION, batch[0].kind, names, cause)


def group_by_cause(batch: Iterable[actions.OnNode]) -> dict[AnyCause, list[str]]:
    """Group the nodes of these actions by cause, so that each node is recorded with its own
    cause.
    """
    nodes: dict[AnyCause, list[str]] = {}
    for action in batch:
        nodes.setdefault(action.cause, []).append(action.node)
    return nodes
