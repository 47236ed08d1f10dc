"""What a pending job waits for, by the table of Slurm's reasons. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_elastic.model.slurm import SlurmJob


def is_counted(job: SlurmJob, now: float) -> bool:
    """Whether a new machine may start the pending job, so that growth policies and forecasts count
    it. ``now`` (Unix s).
    """
    reason = job.wait_reason
    # Slurm keeps the reason BeginTime after the begin time has come.
    if reason.is_begin_time and job.start > now:
        return False
    if job.is_held:
        return False
    # A refused name may be refused by our partition, too, and growth cannot judge that.
    return reason.row.is_counted or (is_unproven(job) and not reason.row.refuses)


def is_unproven(job: SlurmJob) -> bool:
    """Whether the job may start although its reason sounds final."""
    return _is_of_one_partition(job) or _may_be_shortened(job)


def _is_of_one_partition(job: SlurmJob) -> bool:
    """Whether Slurm's reason concerns one partition of several, so that it proves nothing about the
    job: another partition may start it. While the nodes of that other partition are drained, which
    is how we hold nodes, Slurm shows the reason for as long as the hold lasts (22.05, measured).
    """
    return job.wait_reason.row.is_of_partition and len(job.partitions) > 1


def _may_be_shortened(job: SlurmJob) -> bool:
    """Whether Slurm's backfill may lower the time limit for which the job waits (``--time-min``).
    Slurm's main scheduler judges by the whole limit until then (22.05, measured).
    """
    return job.wait_reason.is_over_time and job.min_limit > 0


def fixed_arrays(jobs: Iterable[SlurmJob]) -> frozenset[int]:
    """Return the arrays of which a task has started: Slurm has then fixed the time limit of the
    other tasks.
    """
    return frozenset(
        job.array for job in jobs if job.array and job.task is not None and job.start and job.nodes
    )


def is_limit_fixed(job: SlurmJob, arrays: Collection[int]) -> bool:
    """Whether the job is the remainder of an array in ``arrays``, of which a task has started."""
    # The remainder keeps the array's own number: Slurm gives each task that starts a new number
    # (measured).
    return bool(job.array) and job.task is None and job.array in arrays


def sentence(job: SlurmJob) -> str:
    """Return Slurm's reason why the job is pending, with its meaning."""
    reason = job.wait_reason
    if job.is_held_by_slurm:
        return (
            f"Slurm holds it since its script ended with {job.exit_code or 'an error'}"
            " (--requeue=expedite or RequeueExitHold); scontrol release starts it again"
        )
    if reason.is_unseen:
        return reason.row.meaning
    text = f"{job.reason}: {reason.row.meaning}"
    if _is_of_one_partition(job):
        text += " (in one partition of its list; another may start it)"
    elif _may_be_shortened(job):
        text += " (Slurm's backfill may lower it: --time-min)"
    return f"{text} ({job.description})" if job.description else text
