"""Holds jobs that lose one machine after another: such a job may itself be what ends them.

Slurm requeues a job whose node is lost, and each time a new machine is bought for it. No machine
helps a job that brings each of them down, by its use of memory or a fault of a driver. So after
``MAX_LOSSES`` losses in a row the job is held like a job that its user has held (``scontrol
uhold``). A person who has looked at it releases it. The count then begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_elastic.controller.context import KeptOutJob, Site
from slurm_elastic.controller.oversized import REQUEUE_TIMEOUT_S
from slurm_elastic.model.causes.requeues import MachinesLost
from slurm_elastic.model.job_holds import MACHINES_LOST
from slurm_elastic.model.memory import Decision
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

LOST = "node-lost"
"""The kind of the decision about a loss."""
MAX_LOSSES = 6
"""After how many losses in a row a job is held. Clouds take spot machines away, too, but seldom so
many from one job in such a short time.
"""
IN_A_ROW_S = 3600.0
"""If this time (s) lies between two losses, the job has worked, and the count begins again."""


def hold_machine_losers(
    site: Site, jobs: Sequence[SlurmJob], correlation: str
) -> Sequence[SlurmJob]:
    """Find the jobs with too many losses in a row and remember to hold them. Returns the jobs."""
    losses = {job.id: _losses_in_a_row(site, job) for job in jobs}
    # Jobs on one machine lose it together. The job that ends machines has lost the most.
    most_losses = max((len(times) for times in losses.values()), default=0)
    losers = [job for job in jobs if len(losses[job.id]) >= max(most_losses, MAX_LOSSES)]
    for job in losers:
        times = losses[job.id]
        log.warning("job loses machine after machine job=%s losses=%d", job.label, len(times))
        cause = MachinesLost(count=len(times), first_at=times[0])
        deadline = site.monotonic() + REQUEUE_TIMEOUT_S
        site.oversized[job.id] = KeptOutJob(cause=cause, correlation=correlation, deadline=deadline)
    return losers


def _losses_in_a_row(site: Site, job: SlurmJob) -> list[float]:
    """Return the times of the last losses of the job between which it hardly worked."""
    times: list[float] = []
    for decision in site.ledger.decisions.about(job_subject(job.id)):
        if decision.kind == MACHINES_LOST or _begins_again(decision, times):
            times = []
        # The nodes of one run may be lost by several causes, with a decision for each.
        if decision.kind == LOST and decision.at not in times:
            times.append(decision.at)
    return times


def _begins_again(decision: Decision, times: list[float]) -> bool:
    return decision.kind == LOST and bool(times) and decision.at - times[-1] > IN_A_ROW_S
