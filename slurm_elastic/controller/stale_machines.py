"""Finds stale machines: their node was up, has powered down, and powers up again.

slurmctld accepts only a slurmd that booted after the power-up request (``boot_req_time``, 22.05 to
26.05). A stale machine never registers again, and its node's jobs would wait until ResumeTimeout
or be lost then. Such machines exist after a suspend request was lost (on a full disk; Slurm asks
only once), and after a killed slurmctld forgot that the node had registered (measured on 22.05).
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.controller.context import Site
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.slurm import ON_NODES, SlurmJob
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Machine


def _may_run_on_nodes(job: SlurmJob) -> bool:
    """Whether a job may have processes on its nodes. A job that waits for its nodes has none, nor
    has an ended job, which Slurm lists for a while.
    """
    return bool(job.states & ON_NODES) and "CONFIGURING" not in job.states


def find_stale_machines(site: Site, machines: Iterable[Machine]) -> list[Machine]:
    """Return the machines that have registered, but whose node is neither up nor runs a job."""
    were_up = [m for m in machines if isinstance(m.life, Serving)]
    if not were_up:
        return []
    # Read Slurm now, after the ledger: an older reading may show the power-up for which the machine
    # was launched, from the time before it registered.
    view = site.slurm.nodes([m.instance.node for m in were_up])
    off = {name for name, node in view.items() if phase(node) is not Phase.UP}
    powered_down = [m for m in were_up if m.instance.node in off]
    if not powered_down:
        return []
    busy = {n for job in site.slurm.jobs() if _may_run_on_nodes(job) for n in job.nodes}
    return [m for m in powered_down if m.instance.node not in busy]
