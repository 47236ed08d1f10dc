"""When a job that waits for its nodes is let go, so that slurmctld can start it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.model.slurm import SlurmJob, SlurmNode

# In the spelling of sinfo(1), NODE STATE CODES, and of `sinfo --json`.
FAILED = frozenset({"DOWN", "DRAIN", "POWER_DOWN", "POWERING_DOWN", "FAIL", "ERROR"})
NOT_UP = frozenset(
    {"POWERING_UP", "POWER_UP", "POWERED_DOWN", "NOT_RESPONDING", "REBOOT_ISSUED", "UNKNOWN"}
)


def ready_reason(
    job: SlurmJob | None, nodes: Mapping[str, SlurmNode], wanted: Sequence[str]
) -> str | None:
    """Why the job need not wait any longer, or None while it should.

    ``wanted`` are the job's nodes; ``nodes`` may lack some.
    """
    if job is None:
        return "job is gone"
    # A prolog must not outlast its job: a requeued one hangs as PENDING (Cleaning) until it
    # returns.
    if "CONFIGURING" not in job.states:
        return f"job is {'+'.join(sorted(job.states)) or 'without a state'}"
    for name in wanted:
        if name in nodes and (failed := nodes[name].states & FAILED):
            return f"node {name} is {'+'.join(sorted(failed))}"
    # One that is not listed counts as not up: 22.05 hides powered-down cloud nodes where
    # PrivateData has no `cloud`.
    if all(name in nodes and not nodes[name].states & NOT_UP for name in wanted):
        return "nodes are up"
    return None
