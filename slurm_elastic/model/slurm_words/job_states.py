"""Every base state and flag of a job: releases 22.05 to 26.05. Pure.

Some names in Slurm's sources differ from squeue's words. A row contains both.
"""

from __future__ import annotations

from slurm_elastic.model.slurm_words.rows import JobStateRow

_BASE = (
    JobStateRow(name="PENDING", meaning="it waits"),
    JobStateRow(name="RUNNING", meaning="it runs", has_nodes=True),
    JobStateRow(name="SUSPENDED", meaning="its processes are stopped", has_nodes=True),
    JobStateRow(name="COMPLETE", shown="COMPLETED", meaning="it ended well", has_ended=True),
    JobStateRow(name="CANCELLED", meaning="it was cancelled", has_ended=True),
    JobStateRow(name="FAILED", meaning="its script ended with an error", has_ended=True),
    JobStateRow(name="TIMEOUT", meaning="it reached its time limit", has_ended=True),
    JobStateRow(name="NODE_FAIL", meaning="a node of it failed", has_ended=True),
    JobStateRow(name="PREEMPTED", meaning="it made room for another job", has_ended=True),
    JobStateRow(name="BOOT_FAIL", meaning="its nodes did not boot", has_ended=True),
    JobStateRow(name="DEADLINE", meaning="it could not end before its deadline", has_ended=True),
    JobStateRow(
        name="OOM", shown="OUT_OF_MEMORY", meaning="it was out of memory", has_ended=True
    ),
)  # fmt: skip
_FLAGS = (
    JobStateRow(name="CONFIGURING", meaning="its nodes boot", has_nodes=True),
    JobStateRow(name="COMPLETING", meaning="its processes are being ended", has_nodes=True),
    JobStateRow(name="STOPPED", meaning="scontrol stopped its processes", has_nodes=True),
    JobStateRow(name="REVOKED", meaning="another cluster runs it", has_ended=True),
    JobStateRow(name="REQUEUE", shown="REQUEUED", meaning="it goes back into the queue"),
    JobStateRow(name="REQUEUE_FED", meaning="it goes back to another cluster of the federation"),
    JobStateRow(
        name="REQUEUE_HOLD", meaning="Slurm put it back into the queue and holds it", is_hold=True
    ),
    JobStateRow(
        name="SPECIAL_EXIT", meaning="Slurm holds it for its script's exit code", is_hold=True
    ),
    JobStateRow(
        name="RESV_DEL_HOLD", meaning="Slurm holds it since its reservation is gone", is_hold=True
    ),
    JobStateRow(name="EXPEDITING", meaning="it goes back into the queue, before all other jobs"),
    JobStateRow(name="LAUNCH_FAILED", meaning="a node failed to start it"),
    JobStateRow(name="RECONFIG_FAIL", meaning="a node of it could not boot as asked for"),
    JobStateRow(name="GETENV_FAILED", meaning="a node could not read its user's environment"),
    JobStateRow(name="POWER_UP_NODE", meaning="its nodes are being powered up"),
    JobStateRow(name="RESIZING", meaning="its number of nodes changes"),
    JobStateRow(name="RESIZED", meaning="its number of nodes has changed"),
    JobStateRow(name="SIGNALING", meaning="it is sent a signal"),
    JobStateRow(name="STAGE_OUT", meaning="its files are copied from the burst buffer"),
    JobStateRow(name="UPDATE_DB", meaning="Slurm reports a change to slurmdbd"),
)  # fmt: skip
INTERNAL = frozenset(
    {"ACCRUE_OVER", "CPUS_SET", "DEPENDENT", "IMPLICIT_MAX_NODES", "KILL_HURRY", "MAGNETIC",
     "MEM_SET", "NTASKS_SET", "PART_ASSIGNED", "SEND_ENV", "SEND_SCRIPT", "WAS_RUNNING"}
)  # fmt: skip
"""Flags of a job's record that no command shows. They describe its submission and storage."""
JOB_STATES = (*_BASE, *_FLAGS)


def _shown(*, column: str) -> frozenset[str]:
    return frozenset(row.shown or row.name for row in JOB_STATES if getattr(row, column))


ON_NODES = _shown(column="has_nodes")
"""States of a job that has nodes."""
BOOTS = "CONFIGURING"
"""The state of a job whose nodes boot, beside RUNNING."""
ENDED = _shown(column="has_ended")
"""The final states of a job. A job that was requeued from such a state has PENDING as well."""
HOLDS = _shown(column="is_hold")
"""States that a job held by Slurm has in addition to PENDING."""
