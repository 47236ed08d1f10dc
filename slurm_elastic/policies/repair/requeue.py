"""When a requeued job may start again, which Slurm itself delays by two minutes. Pure."""

from __future__ import annotations

from collections.abc import Collection

SETTLING = 2.0
"""Seconds after a requeue in which a job must not start on a node that it had before.

slurmctld tells each node of a requeued job to kill the job, and slurmd refuses a launch whose
credential is not younger than that order. Both times are whole seconds of the head's clock ("Job
already killed, do not launch batch job", 22.05: slurm_cred_revoked). The job would FAIL.
"""


def may_hurry(
    nodes: Collection[str], gone_nodes: Collection[str], since: float, now: float
) -> bool:
    """Whether a job that was requeued at ``since`` (Unix s), or a little earlier, may start again.

    It may start at once if all ``nodes`` that it had are in ``gone_nodes``: drained, down or
    powered down by force.
    """
    # If `nodes` is empty, the nodes of the job are unknown, and it might get an old node back.
    return now - since >= SETTLING or (bool(nodes) and set(nodes) <= set(gone_nodes))
