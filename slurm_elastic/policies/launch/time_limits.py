"""The time limit that Slurm gives a job without one, or shows for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slurm_elastic.model.slurm import SlurmJob


def default_limits(
    partitions: Sequence[str],
    default_times: Mapping[str, float | None],
    max_times: Mapping[str, float | None],
) -> dict[str, float | None]:
    """The limit (s; None: no limit) in each partition of a job that names none.

    Slurm sets DefaultTime of the FIRST partition at submission, and it then holds in all of them
    (22.05, job_mgr.c). If that partition has no DefaultTime, the partition in which the job starts
    decides.
    """
    first_partition = partitions[0] if partitions else ""
    if first_partition in default_times:
        return dict.fromkeys(partitions, default_times[first_partition])
    return {name: default_times.get(name, max_times.get(name)) for name in partitions}


def exceeding(
    partitions: Sequence[str],
    default_times: Mapping[str, float | None],
    max_times: Mapping[str, float | None],
) -> tuple[str, ...]:
    """Return the later partitions in which a job without a time limit could not run as long as in
    the first.

    The submit filter leaves these out, unless their own DefaultTime decides for such jobs.
    """
    if not partitions:
        return ()
    limits = default_limits(partitions, default_times, max_times)
    first_partition = partitions[0]
    return tuple(
        name
        for name in partitions[1:]
        if (first_partition in default_times or name not in default_times)
        and _minutes(limits[first_partition]) > _minutes(max_times.get(name))
    )


def is_admitted(job: SlurmJob) -> bool:
    """Whether Slurm admits the pending job's limits in its only partition. It does so in spite of
    MaxTime for a QOS with the flag PartitionTimeLimit, and for a limit that root has set (22.05,
    measured). Slurm compares the limits before it lets a job wait for nodes or for its turn.
    """
    return job.wait_reason.is_within_limits and len(job.partitions) == 1


def may_be_shown(job: SlurmJob, partition: str, max_times: Mapping[str, float | None]) -> bool:
    """Whether the pending job's limit may be MaxTime of another partition than ``partition``.

    Slurm shows MaxTime of the partition that it tried last for a job without a limit of its own
    (22.05, measured), and such a job gets the default of the partition that it starts in. A
    partition with an unknown MaxTime may be that partition.
    """
    if job.min_limit:
        return False  # its user has set limits
    other_partitions = (name for name in job.partitions if name != partition)
    return any(max_times.get(name, job.limit) == job.limit for name in other_partitions)


def _minutes(limit_s: float | None) -> float:
    # Slurm's time limits are whole minutes.
    return math.inf if limit_s is None else limit_s // 60
