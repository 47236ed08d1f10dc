"""The begin of the wait of a job that slurm-elasticd has requeued. Pure.

slurmctld changes SubmitTime when it requeues a job. If we counted from SubmitTime, a job that
clouds refuse all night would always have waited for less than a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.slurm import SlurmJob

WAITS_SINCE = "waits_since"
"""The key in the details of a decision that requeues a job."""
SAME_REQUEUE_S = 60.0
"""Maximum difference (s) between our requeue of a job and the SubmitTime that it sets."""


class RequeuedJob(Struct, frozen=True, kw_only=True):
    """The last requeue of a job by slurm-elasticd, at ``requeued_at``. ``waits_since``: since when
    the job had waited (both Unix time).
    """

    requeued_at: float
    waits_since: float


def waits_since(job: SlurmJob, requeued: Mapping[int, RequeuedJob]) -> float:
    """Return since when the job waits (Unix time); 0 if it is unknown."""
    requeue = requeued.get(job.id)
    # Another time is of another job with this number, or the job has run since our requeue.
    if requeue is None or not job.submit or abs(job.submit - requeue.requeued_at) > SAME_REQUEUE_S:
        return job.submit
    return min(requeue.waits_since, job.submit)


def with_waits(jobs: Iterable[SlurmJob], requeued: Mapping[int, RequeuedJob]) -> list[SlurmJob]:
    """Return the jobs; jobs that wait have since when they wait in place of their SubmitTime."""
    return [
        replace(job, submit=waits_since(job, requeued)) if "PENDING" in job.states else job
        for job in jobs
    ]
