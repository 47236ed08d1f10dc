"""Keeps idle machines from Slurm's SuspendTime.

We set the idle node of a machine IDLE again to keep the machine without a job. slurmctld then
counts SuspendTime from that moment on (measured on 22.05 and 25.11). It refuses this for a node
with a job, so the job is not disturbed. If slurm-elasticd stops, the machines end by Slurm's
SuspendTime.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import is_busy, may_take_jobs
from slurm_elastic.slurm.client.commands import node_updates

log = logging.getLogger(__name__)

MAX_TOUCH_S = 60.0
"""A kept machine is set IDLE again at least this often, or three times in SuspendTime."""


def keep_idle_machines(site: Site, nodes: Sequence[str], view: Mapping[str, SlurmNode]) -> None:
    """Keep Slurm from suspending these machines while they are idle. ``view``: by node, its state
    in Slurm.
    """
    idle = []
    for name in nodes:
        node = view.get(name)
        if node is None or name not in site.pool_of or not may_take_jobs(node):
            continue
        # Slurm powers a node down that has been idle for SuspendTime. At a third of it two
        # looks may fail before that.
        suspend_s = site.config.suspend_time(site.clouds[site.pool_of[name].cloud])
        since = max(node.last_busy, node.boot_time)
        if site.now() - since >= min(suspend_s / 3, MAX_TOUCH_S) and not is_busy(node):
            idle.append(name)
    # Read the nodes again just before the change: IDLE ends a DRAIN or a FAIL together with its
    # reason (22.05, measured), so nobody could see afterwards that a drain got lost.
    latest = site.slurm.nodes(idle) if idle else {}
    idle = [name for name in idle if name in latest and _is_untouched(latest[name])]
    if not idle:
        return
    try:
        node_updates.keep_idle(site.slurm, idle)
    except SlurmError as error:
        if error.unanswered:
            raise
        # Slurm has just started a job on a node of these. The next look leaves this node out.
        log.info("not all kept machines are idle nodes=%s error=%s", compress(idle), error)


def _is_untouched(node: SlurmNode) -> bool:
    """Whether the node is up without a job, and nobody has drained it or given it a reason."""
    return may_take_jobs(node) and not is_busy(node) and not node.reason
