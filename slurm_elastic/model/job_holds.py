"""Why slurm-elasticd holds jobs. Pure.

Slurm shows the hold of such a job as its user's own, because the user may release it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.slurm import SlurmJob

NEVER, MACHINES_LOST = "never", "machines-lost"
"""The kinds of decisions with which slurm-elasticd may hold a job: no cloud can ever run the job,
and the job has lost machine after machine.
"""
HOLDING = (NEVER, MACHINES_LOST)


class JobHold(Struct, frozen=True, kw_only=True):
    """The last such decision about a job, at ``at`` (Unix time)."""

    at: float
    cause: AnyCause


def cause_of_hold(job: SlurmJob, holds: Mapping[int, JobHold]) -> AnyCause | None:
    """Return why slurm-elasticd holds the job; None if it does not."""
    hold = holds.get(job.id)
    # After a later submit or requeue the decision is of another job, or of an earlier hold.
    if hold is None or not job.is_held or job.is_held_by_slurm or job.submit > hold.at:
        return None
    return hold.cause
