"""Nodes that Slurm took out of service (``policies.nodes.out_of_service``): told, counted,
recycled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.boots import record_boot_failures
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.model.causes.composed import NodeFailed
from slurm_elastic.model.causes.machine_ends import OutOfService
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.model.slurm_words.node_causes import Strike
from slurm_elastic.policies import actions
from slurm_elastic.policies.nodes.node_state import is_busy, is_down
from slurm_elastic.policies.nodes.out_of_service import Ill, ill
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.audit_trail import job_subject, pool_subject
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


NODE_FAILED = "node-failed"
"""A decision on a node that Slurm took out of service."""


def recycle(site: Site, cloud: str, some: Sequence[actions.Recycle], correlation: str) -> None:
    """Give the nodes other machines: count what the pool is to blame for, end the machines, and
    power the nodes down, which returns them to service. SlurmError passes; the next round goes on,
    and counts no machine twice.
    """
    view = site.slurm.nodes([a.node for a in some])
    ails = {name: found for name, node in view.items() if (found := _ill(site, node))}
    serving = [m for m in site.serving() if m.instance.cloud == cloud and m.instance.node in ails]
    by_words: dict[str, list[Machine]] = {}
    for machine in serving:
        by_words.setdefault(ails[machine.instance.node].words, []).append(machine)
    for machines in by_words.values():
        _count_ill(site, machines, ails[machines[0].instance.node], correlation)
    node_updates.power_down(site.slurm, list(ails))
    for words, machines in by_words.items():
        terminate(site, cloud, machines, OutOfService(node_reason=words), correlation)
    alone = [name for name in ails if name not in {m.instance.node for m in serving}]
    for name in alone:
        site.record(correlation, NODE_FAILED, (name,), ails[name].cause)


def _ill(site: Site, node: SlurmNode) -> Ill | None:
    """None also where a job runs there by now: it ends first, unless Slurm has killed it."""
    if is_busy(node) and not is_down(node):
        return None
    return ill(node, site.config.slurm.drain_terms)


def _count_ill(site: Site, machines: Sequence[Machine], ails: Ill, correlation: str) -> None:
    """Tell it, and count each machine once, also where the round that counted it got no further."""
    news = [m for m in machines if not _is_told(site, m)]
    if not news:
        return
    nodes = [m.instance.node for m in news]
    log.warning("node failed nodes=%s reason=%s", compress(nodes), ails)
    for m in news:
        jobs = (job_subject(job) for job in m.jobs)
        subjects = (m.instance.node, pool_subject(m.pool), *jobs)
        site.record(
            correlation,
            NODE_FAILED,
            subjects,
            NodeFailed(machine=m.instance.id, explanation=ails.cause),
        )
    if ails.strike is Strike.POOL:
        waiting = dict.fromkeys(job for m in news for job in m.jobs)
        how = BootsFailed(node_reason=ails.words, remedy=ails.remedy)
        record_boot_failures(site, news, correlation, jobs=waiting, taken_out=how)


def _is_told(site: Site, machine: Machine) -> bool:
    return any(
        isinstance(made.cause, NodeFailed) and made.cause.machine == machine.instance.id
        for made in site.ledger.decisions.about(machine.instance.node)
    )
