"""Machines of the past: their node was up, has powered down and powers up again.

slurmctld waits for a slurmd that has booted since it asked (22.05 to 26.05: ``boot_req_time``), so
such a machine never registers again, and its node's jobs would wait until ResumeTimeout, or be lost
there. It stands in the way where its suspend request was lost (a full disk: Slurm asks once), and
where a slurmctld that was killed has forgotten that the node had registered (measured on 22.05).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from math import inf

from slurm_elastic.controller.context import Site
from slurm_elastic.model.memory import decided_at
from slurm_elastic.model.slurm import ON_NODES, SlurmJob
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import LedgerState, Machine

log = logging.getLogger(__name__)


def instances_of_other_clouds(
    machines: Iterable[Machine], cloud: str, nodes: Collection[str]
) -> list[Machine]:
    """The nodes of these that were up on machines of other clouds, as after a pool was given to
    this one: only those can end them, if they can be read, or are configured at all.
    """
    return [
        m
        for m in machines
        if m.instance.node in nodes
        and m.instance.cloud != cloud
        and m.registered is not None
        and m.suspending is None
    ]


def boots_still(site: Site, machine: Machine) -> bool:
    """Whether a node that powers up may wait for this machine of another cloud: it has not
    registered, and its ResumeTimeout is not over.
    """
    one = machine.instance
    return machine.registered is None and decided_at(one) > oldest_boot(site)


def oldest_boot(site: Site) -> float:
    """The Unix time before which every launch has come up by now, or never will."""
    return site.now() - site.config.timings.resume_timeout


def nodes_with_capacity(
    site: Site,
    cloud: str,
    nodes: Collection[str],
    state: LedgerState | None = None,
    *,
    long_ago: float = inf,
    request: str = "",
) -> set[str]:
    """The nodes of ``cloud`` that power up and have a machine, or an open launch that may
    have made one. Other clouds' machines count only if they may still boot, where the cloud has
    left the configuration only for this very ``request``; and what registered after ``long_ago`` or
    has jobs on it, which is left to the repair. ``state``: the ledger's, where it was read before.
    """
    state = state or site.ledger.state()
    foreign = instances_of_other_clouds(state.machines, cloud, nodes)
    past = stale_instances(site, [m for m in foreign if (m.registered or 0.0) <= long_ago])

    def serves(machine: Machine) -> bool:
        one = machine.instance
        if machine.suspending is not None or machine in past:
            return False
        if one.cloud == cloud or machine.registered is not None:
            return True
        row = None if one.cloud in site.providers else site.ledger.launch(one.generation)
        known = one.cloud in site.providers or (row is not None and row.request == request)
        return known and boots_still(site, machine)

    has = {m.instance.node for m in state.machines if m.instance.node in nodes and serves(m)}
    for row in state.launches:
        others = row.cloud in site.providers and row.created > oldest_boot(site)
        if row.cloud == cloud or others or row.request == request:
            has.update(row.nodes)
    return has.intersection(nodes)


def _is_there(job: SlurmJob) -> bool:
    """Whether a job may have processes on its nodes: not one that waits for them, nor one that has
    ended, which Slurm lists for a while.
    """
    return bool(job.states & ON_NODES) and "CONFIGURING" not in job.states


def stale_instances(site: Site, machines: Iterable[Machine]) -> list[Machine]:
    """The machines (as the ledger has them) that have registered, whose node Slurm does
    not have up, and on whose node no job is but those that wait for it.

    Slurm is asked here, after the ledger: a view from before may show the very power-up that a
    machine came for.
    """
    were_up = [m for m in machines if m.registered is not None and m.suspending is None]
    if not were_up:
        return []
    view = site.slurm.nodes([m.instance.node for m in were_up])
    off = {name for name, node in view.items() if phase(node) is not Phase.UP}
    found = [m for m in were_up if m.instance.node in off]
    if not found:
        return []
    busy = {n for job in site.slurm.jobs() if _is_there(job) for n in job.nodes}
    return [m for m in found if m.instance.node not in busy]
