"""Machines of the past: their node was up, has powered down and powers up again.

slurmctld waits for a slurmd that has booted since it asked (22.05 to 26.05: ``boot_req_time``), so
such a machine never registers again, and its node's jobs would wait until ResumeTimeout, or be lost
there. It stands in the way where its suspend request was lost (a full disk: Slurm asks once), and
where a slurmctld that was killed has forgotten that the node had registered (measured on 22.05).
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.controller.context import Site
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.slurm import ON_NODES, SlurmJob
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Machine


def _is_there(job: SlurmJob) -> bool:
    """Whether a job may have processes on its nodes: not one that waits for them, nor one that has
    ended, which Slurm lists for a while.
    """
    return bool(job.states & ON_NODES) and "CONFIGURING" not in job.states


def stale_instances(site: Site, machines: Iterable[Machine]) -> list[Machine]:
    """The machines (as the ledger has them) that have registered, whose node Slurm does
    not have up, and on whose node no job is but those that wait for it.
    """
    were_up = [m for m in machines if isinstance(m.life, Serving)]
    if not were_up:
        return []
    # After the ledger: a view from before may show the very power-up that a machine came for.
    view = site.slurm.nodes([m.instance.node for m in were_up])
    off = {name for name, node in view.items() if phase(node) is not Phase.UP}
    found = [m for m in were_up if m.instance.node in off]
    if not found:
        return []
    busy = {n for job in site.slurm.jobs() if _is_there(job) for n in job.nodes}
    return [m for m in found if m.instance.node not in busy]
