"""Nodes that are set DOWN, as their machine is gone or no job has what Slurm has allocated."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies import actions
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_anothers_address,
    is_busy,
    is_drained,
    phase,
)
from slurm_elastic.slurm.client import node_updates

log = logging.getLogger(__name__)


def fail_nodes(site: Site, some: Sequence[actions.OnNode], *, told: bool = False) -> None:
    """Set nodes DOWN whose machine is gone: that has Slurm requeue the jobs now, not at
    SlurmdTimeout. ``told``: by the cloud's word that it has ended.
    """
    view = site.slurm.nodes()
    machines = [machine.instance for machine in site.ledger.machines.live()]
    lost: dict[tuple[str, str | None], list[str]] = {}
    for name in (a.node for a in some):
        node = view.get(name)
        if node is None:
            continue
        admins = is_drained(node) and not has_mark(node, OUR_MARK)
        # One that an admin has drained stays drained: with no job on it there is nothing to do,
        # and else it goes down for the admin's reason, which we never clear.
        if phase(node) is Phase.UP and (is_busy(node) or not admins):
            why = node.reason if admins else f"{OUR_MARK}lost: the machine is gone"
            # slurmctld tells a node that goes DOWN to kill its jobs. Another machine that has the
            # address now must not get that order. The node's own machine, if it runs, must get it.
            nowhere = told or is_anothers_address(node, machines, view.values())
            lost.setdefault((why, NOWHERE if nowhere else None), []).append(name)
    nodes = {name for names in lost.values() for name in names}
    if not nodes:
        return
    # Read the jobs before the nodes go DOWN: a requeued job no longer lists its nodes.
    jobs = [j for j in site.slurm.jobs() if not nodes.isdisjoint(j.nodes)]
    for (why, address), names in lost.items():
        node_updates.set_down(site.slurm, names, why, address=address)
    log.warning("machines lost nodes=%s jobs=%s", compress(nodes), [j.id for j in jobs])
    for job in jobs:
        site.requeues.expect(job, site.monotonic(), nodes)
    for cause, names in by_cause([a for a in some if a.node in nodes]).items():
        hit = [f"job:{j.id}" for j in jobs if not set(names).isdisjoint(j.nodes)]
        site.record(CORRELATION, "node-lost", [*names, *hit], cause)


def disclaim(site: Site, some: Sequence[actions.OnNode]) -> None:
    """By a list of jobs of this moment: one may wait for its node, which slurmctld powers up when
    its ResumeRate allows. From DOWN the node goes back to the powered-down ones.
    """
    held = {node for job in site.slurm.jobs() if not job.has_ended for node in job.nodes}
    unused = [a for a in some if a.node not in held]
    if unused:
        nodes = [a.node for a in unused]
        node_updates.set_down(site.slurm, nodes, f"{OUR_MARK}allocated, and no job has it")
    for cause, names in by_cause(unused).items():
        site.record(CORRELATION, some[0].kind, names, cause)


def by_cause(some: Iterable[actions.OnNode]) -> dict[AnyCause, list[str]]:
    """The nodes of these actions by cause: people read of each node why it was done to it."""
    nodes: dict[AnyCause, list[str]] = {}
    for action in some:
        nodes.setdefault(action.cause, []).append(action.node)
    return nodes
