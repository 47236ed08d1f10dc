"""When a prolog that waits for its job's nodes may return, so that slurmctld can start the job.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.model.slurm import SlurmJob, SlurmNode

# In the spelling of sinfo(1), NODE STATE CODES, and of `sinfo --json`.
FAILED = frozenset({"DOWN", "DRAIN", "POWER_DOWN", "POWERING_DOWN", "FAIL", "ERROR"})
NOT_UP = frozenset(
    {"POWERING_UP", "POWER_UP", "POWERED_DOWN", "NOT_RESPONDING", "REBOOT_ISSUED", "UNKNOWN"}
)


def ready_reason(
    job: SlurmJob | None, nodes: Mapping[str, SlurmNode], node_names: Sequence[str]
) -> str | None:
    """Return why the job need not wait any longer, or None while it must wait.

    ``node_names``: names of the job's nodes; ``nodes`` may lack some of them.
    """
    if job is None:
        return "job is gone"
    # A prolog must not outlast its job: a requeued job stays PENDING (Cleaning) until its prolog
    # returns.
    if "CONFIGURING" not in job.states:
        return f"job is {'+'.join(sorted(job.states)) or 'without a state'}"
    for name in node_names:
        if name in nodes and (failed_states := nodes[name].states & FAILED):
            return f"node {name} is {'+'.join(sorted(failed_states))}"
    # An unlisted node counts as not up, because 22.05 hides powered-down cloud nodes unless
    # PrivateData has `cloud`.
    if all(name in nodes and not nodes[name].states & NOT_UP for name in node_names):
        return "nodes are up"
    return None
