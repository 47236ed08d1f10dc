"""While slurm-elasticd is away, jobs that must not be requeued are not lost to machines that it
would have launched.

slurmctld fails a job whose nodes do not come up until ResumeTimeout, unless it may be requeued.
slurm-elasticd gives nodes up before that, and lifts ``--no-requeue`` of jobs that never started;
while it is away nobody does. So this service, which dies apart from it, lifts it once the heartbeat
is stale, or, whatever that says, once a job has waited for its nodes for so long that a daemon
would have given them up. It puts it back once the job runs, and never while the job waits: then
slurm-elasticd may be giving the job's nodes back at this moment, and needs the leave for that. Each
lift is in the ledger first, and slurm-elasticd puts back what is left.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import brief
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.slurm.client import requeue_setting
from slurm_elastic.state.heartbeat import DAEMON, latest, read_mark

log = logging.getLogger(__name__)

CORRELATION = "stand-in"


class RequeueFailover:
    """Remembers which jobs it has lifted it for: a daemon that only hung looks for them late."""

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._mine: set[int] = set()
        self._reports = ReportOnce[str]()
        self._troubles: set[str] = set()

    def protect(self, jobs: Mapping[int, SlurmJob]) -> None:
        """One look. A job that Slurm or the ledger does not let us change is tried again with the
        next one; what is wrong is said once, until it is over.
        """
        self._troubles = set()
        with self._spared("what it has lifted"):
            self._look(jobs)
        self._reports.forget_unless(self._troubles.__contains__)

    def _look(self, jobs: Mapping[int, SlurmJob]) -> None:
        site = self._site
        away = self._away()
        stale = away > site.config.timings.heartbeat_stale
        danger = self._in_danger(jobs.values(), away if stale else None)
        if not (stale or danger or self._mine):
            return
        lifted = {job for job, _ in site.ledger.requeues.lifted()}
        self._mine &= lifted  # slurm-elasticd has put the others back
        for number in self._mine - jobs.keys():
            with self._spared(str(number)):
                requeue_setting.put_back(site.slurm, site.ledger, number, None)
        for job in jobs.values():
            if job.id in danger:
                with self._spared(job.label):
                    self._mine.add(job.id)
                    _lift(site, job, danger[job.id])
        # A daemon that lives puts back by itself.
        known = lifted if stale else self._mine
        self._put_back(
            [n for n, job in jobs.items() if n in known - danger.keys() and _is_running(job)]
        )

    def _put_back(self, numbers: Collection[int]) -> None:
        """Give these jobs their own setting back, if they run."""
        if not numbers:
            return
        with self._spared("of jobs that run"):
            # A job may have been requeued since the look, and may wait for its next nodes.
            now = self._site.jobs.read(refresh=True)
            for job in (now[number] for number in numbers if number in now):
                with self._spared(job.label):
                    if _is_running(job):
                        _put_back(self._site, job)

    def _away(self) -> float:
        """Seconds since slurm-elasticd's last sign of life: the ledger's one is only asked for
        where the mark beside it is old.
        """
        site = self._site
        mark = read_mark(site.config.state)
        if mark and site.now() - mark.at <= site.config.timings.heartbeat_stale:
            return site.now() - mark.at
        beat = latest(site.ledger.health.heartbeat(DAEMON), mark.beat if mark else None)
        return 0.0 if beat is None else site.now() - beat[0]

    @contextmanager
    def _spared(self, job: str) -> Iterator[None]:
        """Other jobs, and what else a look does, go on where this fails."""
        try:
            yield
        except (SlurmError, sqlite3.Error) as error:
            kind = type(error).__name__
            self._troubles.add(kind)
            if self._reports.is_news(kind):
                log.warning("its requeue setting stays as it is job=%s error=%s", job, error)

    def _in_danger(self, jobs: Collection[SlurmJob], away: float | None) -> dict[int, str]:
        """Jobs that slurmctld would fail, and why nobody else prevents it; slurm-elasticd is away
        for ``away`` seconds, if so.
        """
        exposed = [job for job in jobs if not job.requeue and _is_booting(job)]
        asked = _awaited_since(filter(_is_booting, jobs)) if exposed else {}
        found = {}
        for job in exposed:
            ours = [node for node in job.nodes if node in self._site.pool_of]
            if not ours:
                continue
            if away is not None:
                found[job.id] = f"slurm-elasticd is away for {brief(away)}"
            elif late := [n for n in ours if n in asked and self._is_late(n, asked[n])]:
                waits = self._site.now() - asked[late[0]]
                found[job.id] = f"{late[0]} does not come up for {brief(waits)}, nor is it given up"
        return found

    def _is_late(self, node: str, asked: float) -> bool:
        """Whether a living daemon gives the node up about now: the rest of ResumeTimeout is what is
        left. Where both lift it, who is first puts it back.
        """
        config = self._site.config
        longest = config.resume_timeout(config.cloud(self._site.pool_of[node].cloud))
        # The next look comes a period later.
        due = given_up_after(longest) - config.checkpoint.period
        return self._site.now() - asked >= due


def _is_booting(job: SlurmJob) -> bool:
    """Whether it waits for its nodes: newer Slurms have it RUNNING, too, by then."""
    return "CONFIGURING" in job.states


def _awaited_since(waiting: Iterable[SlurmJob]) -> dict[str, float]:
    """Since when (Unix time) each node is waited for: the first of its jobs had it powered up, and
    until all nodes of a job are up its start is when it got them.
    """
    asked: dict[str, float] = {}
    for job in waiting:
        for node in job.nodes if job.start else ():
            asked[node] = min(job.start, asked.get(node, job.start))
    return asked


def _is_running(job: SlurmJob) -> bool:
    return "RUNNING" in job.states and not _is_booting(job)


def _lift(site: CheckpointSite, job: SlurmJob, danger: str) -> None:
    requeue_setting.lift_until_it_runs(site.slurm, site.ledger, job, site.now())
    why = (
        f"{danger}: should the nodes not come up, slurmctld requeues the job, which has not"
        " started, and does not fail it"
    )
    site.recorder.record(CORRELATION, "requeue-lifted", (f"job:{job.id}",), why)


def _put_back(site: CheckpointSite, job: SlurmJob) -> None:
    requeue_setting.put_back(site.slurm, site.ledger, job.id, job)
    site.recorder.record(CORRELATION, "requeue-put-back", (f"job:{job.id}",), "it runs")
