"""While slurm-elasticd is away, jobs that must not be requeued are not lost to machines that it
would have launched.

slurmctld fails a job whose nodes do not come up until ResumeTimeout, unless it may be requeued.
slurm-elasticd gives nodes up before that, and lifts ``--no-requeue`` of jobs that never started;
while its heartbeat is stale nobody does. So this service, which dies apart from it, lifts it then,
and puts it back once the job runs. What it lifts is in the ledger first, and slurm-elasticd, when
it is back, puts back what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slurm_elastic.ckptman.site import Site
from slurm_elastic.errors import SlurmError
from slurm_elastic.heartbeat import DAEMON
from slurm_elastic.model_slurm import SlurmJob

log = logging.getLogger(__name__)

CORRELATION = "stand-in"


class StandIn:
    """Remembers which jobs it has lifted it for: a daemon that only hung does not look for them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._mine: set[int] = set()

    def look(self, jobs: Mapping[int, SlurmJob]) -> None:
        """One look. A job that Slurm does not let us change is tried again with the next one."""
        site = self._site
        beat = site.ledger.heartbeat(DAEMON)
        away = 0.0 if beat is None else site.now() - beat[0]
        stale = away > site.config.timings.heartbeat_stale
        if not stale and not self._mine:
            return
        lifted = {job for job, _ in site.ledger.lifted_requeues()}
        self._mine &= lifted  # slurm-elasticd has put the others back
        for number in self._mine - jobs.keys():
            site.ledger.requeue_put_back(number)
        for job in jobs.values():
            known = job.id in lifted if stale else job.id in self._mine
            try:
                if stale and self._is_in_danger(job):
                    self._mine.add(job.id)
                    _lift(site, job, away)
                elif known and _is_safe(job, stale=stale):
                    _put_back(site, job)
            except SlurmError as error:
                log.warning("its requeue setting stays as it is job=%s error=%s", job.label, error)

    def _is_in_danger(self, job: SlurmJob) -> bool:
        ours = any(node in self._site.pool_of for node in job.nodes)
        return ours and not job.requeue and _boots(job)


def _boots(job: SlurmJob) -> bool:
    """Whether it waits for its nodes: newer Slurms have it RUNNING, too, by then."""
    return "CONFIGURING" in job.states


def _is_safe(job: SlurmJob, *, stale: bool) -> bool:
    """Once it runs. Of one that waits for nodes a daemon that is back may be giving these back at
    this moment, but of one that has none it may not.
    """
    waits = "PENDING" in job.states and "COMPLETING" not in job.states
    return ("RUNNING" in job.states and not _boots(job)) or (waits and not stale)


def _lift(site: Site, job: SlurmJob, away: float) -> None:
    site.ledger.lift_requeue(job.id, job.restarts, site.now())
    site.slurm.set_requeue(job.id, requeue=True)
    why = (
        f"slurm-elasticd is away for {away:.0f} s: should the nodes not come up, slurmctld requeues"
        " the job, which has not started, and does not fail it"
    )
    site.journal.note(CORRELATION, "requeue-lifted", (f"job:{job.id}",), why)


def _put_back(site: Site, job: SlurmJob) -> None:
    if job.requeue:
        site.slurm.set_requeue(job.id, requeue=False)
    site.ledger.requeue_put_back(job.id)
    site.journal.note(CORRELATION, "requeue-put-back", (f"job:{job.id}",), "it runs")
