"""Replaces the machines of nodes that Slurm took out of service
(``policies.nodes.out_of_service``), and counts the failures against their pools.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.launching.boots import record_boot_failures
from slurm_elastic.model.causes.composed import NodeFailed
from slurm_elastic.model.causes.machine_ends import OutOfService
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.model.slurm_words.node_causes import Strike
from slurm_elastic.policies import actions
from slurm_elastic.policies.nodes.node_state import is_busy, is_down
from slurm_elastic.policies.nodes.out_of_service import Ill, ill
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.audit_trail import job_subject, pool_subject
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


NODE_FAILED = "node-failed"
"""The kind of a decision about a node that Slurm took out of service."""


def recycle(site: Site, cloud: str, batch: Sequence[actions.Recycle], correlation: str) -> None:
    """Replace the machines of these nodes: count the failures that the pool has caused, power the
    nodes down, which returns them to service, and end the machines.

    SlurmError passes. The next round continues and counts no machine twice.
    """
    view = site.slurm.nodes([a.node for a in batch])
    illness_by_node = {
        name: illness for name, node in view.items() if (illness := _find_illness(site, node))
    }
    serving = [
        m
        for m in site.serving_machines()
        if m.instance.cloud == cloud and m.instance.node in illness_by_node
    ]
    machines_by_reason: dict[str, list[Machine]] = {}
    for machine in serving:
        machines_by_reason.setdefault(
            illness_by_node[machine.instance.node].slurm_reason, []
        ).append(machine)
    # Before the power-down, after which Slurm no longer shows why the node was out of service.
    for machines in machines_by_reason.values():
        _count_illness(site, machines, illness_by_node[machines[0].instance.node], correlation)
    node_updates.power_down(site.slurm, list(illness_by_node))
    for node_reason, machines in machines_by_reason.items():
        terminate(site, cloud, machines, OutOfService(node_reason=node_reason), correlation)
    unserved = [name for name in illness_by_node if name not in {m.instance.node for m in serving}]
    for name in unserved:
        site.record(correlation, NODE_FAILED, (name,), illness_by_node[name].cause)


def _find_illness(site: Site, node: SlurmNode) -> Ill | None:
    """Return why the node is out of service. None if it is in service, or if a job still runs on
    it: the job may finish first, unless the node is DOWN and Slurm has killed it.
    """
    if is_busy(node) and not is_down(node):
        return None
    return ill(node, site.config.slurm.drain_terms)


def _count_illness(site: Site, machines: Sequence[Machine], illness: Ill, correlation: str) -> None:
    """Record the failures and count them. Leave out machines that are recorded already, because an
    earlier round may have stopped after this step.
    """
    news = [m for m in machines if not _is_recorded(site, m)]
    if not news:
        return
    nodes = [m.instance.node for m in news]
    log.warning("node failed nodes=%s reason=%s", compress(nodes), illness)
    for m in news:
        jobs = (job_subject(job) for job in m.jobs)
        subjects = (m.instance.node, pool_subject(m.pool), *jobs)
        site.record(
            correlation,
            NODE_FAILED,
            subjects,
            NodeFailed(machine=m.instance.id, cause=illness.cause),
        )
    if illness.strike is Strike.POOL:
        waiting = dict.fromkeys(job for m in news for job in m.jobs)
        how = BootsFailed(node_reason=illness.slurm_reason, remedy=illness.remedy)
        record_boot_failures(site, news, correlation, jobs=waiting, taken_out=how)


def _is_recorded(site: Site, machine: Machine) -> bool:
    return any(
        isinstance(decision.cause, NodeFailed) and decision.cause.machine == machine.instance.id
        for decision in site.ledger.decisions.about(machine.instance.node)
    )
