"""When a requeued job may start again, which Slurm itself delays by two minutes. Pure."""

from __future__ import annotations

from collections.abc import Collection

SETTLING = 2.0
"""Seconds after a requeue in which a job must not start on a node that it had. slurmctld tells each
node of a requeued job to kill it, and slurmd refuses a launch whose credential is not younger than
that order, both in whole seconds of the head's clock ("Job already killed, do not launch batch
job", 22.05: slurm_cred_revoked): the job would FAIL.
"""


def may_hurry(nodes: Collection[str], gone: Collection[str], since: float, now: float) -> bool:
    """Whether a job that was requeued at ``since``, or a little before, may start again.

    At once where all ``nodes`` that it had are ``gone``: drained, down or powered down by force.
    """
    # Without `nodes` it is not known which ones the job had: any node may be one of them.
    return now - since >= SETTLING or (bool(nodes) and set(nodes) <= set(gone))
