"""What a pending job waits for, by the table of Slurm's reasons. Pure."""

from __future__ import annotations

from slurm_elastic.model.slurm import SlurmJob


def is_counted(job: SlurmJob, at: float) -> bool:
    """Whether a new machine may start the pending job: growth policies and forecasts count it."""
    reason = job.wait_reason
    # Slurm leaves the reason of a begin time there when the time has come.
    if reason.is_begin_time and job.start > at:
        return False
    return reason.row.is_counted and not job.is_held


def sentence(job: SlurmJob) -> str:
    """Slurm's reason for which the job is pending, with what it means."""
    reason = job.wait_reason
    if job.is_held_by_slurm:
        return (
            f"Slurm holds it since its script ended with {job.exit_code or 'an error'}"
            " (--requeue=expedite or RequeueExitHold); scontrol release starts it again"
        )
    if reason.is_unseen:
        return reason.row.meaning
    text = f"{job.reason}: {reason.row.meaning}"
    return f"{text} ({job.description})" if job.description else text
