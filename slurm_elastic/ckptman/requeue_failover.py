"""While slurm-elasticd is away, protects ``--no-requeue`` jobs whose machines it would have
launched.

slurmctld fails a job whose nodes do not come up within ResumeTimeout, unless the job may be
requeued. slurm-elasticd gives nodes up before that, and lifts ``--no-requeue`` of jobs that never
started. While it is away nobody does. So this service lifts ``--no-requeue`` if the heartbeat of
slurm-elasticd is stale. It does so also if a job has waited so long for its nodes that a healthy
slurm-elasticd would have given them up.

This service restores ``--no-requeue`` once the job runs, but never while it waits: at that moment
slurm-elasticd may be giving the job's nodes back, and needs the permission. Each lift is in the
ledger before its effect. slurm-elasticd restores the lifts that this service leaves behind.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.causes.checkpoints import (
    DaemonAway,
    JobStarted,
    MayBeRequeued,
    NodeNotGivenUp,
    StartDanger,
)
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.state.heartbeat import DAEMON, latest, read_mark

log = logging.getLogger(__name__)

CORRELATION = "stand-in"


class RequeueFailover:
    """Protects jobs, and remembers for which jobs it lifted ``--no-requeue``, because a
    slurm-elasticd that only hung restores them late.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._lifted_jobs: set[int] = set()
        self._reports = ReportOnce[str]()
        self._current_troubles: set[str] = set()

    def protect(self, jobs: Mapping[int, SlurmJob]) -> None:
        """Lift and restore ``--no-requeue``. If Slurm or the ledger refuses, the next tick tries
        again. A trouble is logged once until it is over.
        """
        self._current_troubles = set()
        with self._log_errors("what it has lifted"):
            self._protect(jobs)
        self._reports.forget_unless(self._current_troubles.__contains__)

    def _protect(self, jobs: Mapping[int, SlurmJob]) -> None:
        site = self._site
        # Measured once, so that both decisions below see the same age.
        away_s = self._seconds_away()
        is_stale = away_s > site.config.timings.daemon_timeout
        danger = self._find_endangered(jobs.values(), away_s if is_stale else None)
        if not (is_stale or danger or self._lifted_jobs):
            return
        lifted = {job for job, _ in site.ledger.requeues.lifted()}
        self._lifted_jobs &= lifted  # slurm-elasticd has restored the others
        for number in self._lifted_jobs - jobs.keys():
            with self._log_errors(str(number)):
                requeue_setting.put_back(site.slurm, site.ledger, number, None)
        for job in jobs.values():
            if job.id in danger:
                with self._log_errors(job.label):
                    # First remember the job: if the lift fails after its ledger row was written, we
                    # restore the setting later.
                    self._lifted_jobs.add(job.id)
                    _lift(site, job, danger[job.id])
        # If slurm-elasticd is alive, it restores its own lifts itself.
        lifted_jobs = (lifted if is_stale else self._lifted_jobs) - site.verified.snapshot().keys()
        self._restore(
            [
                number
                for number, job in jobs.items()
                if number in lifted_jobs - danger.keys() and _is_running(job)
            ]
        )

    def _restore(self, numbers: Collection[int]) -> None:
        """Restore ``--no-requeue`` of these jobs, if they run."""
        if not numbers:
            return
        with self._log_errors("of jobs that run"):
            # Read a new list: a job may have been requeued since, and may wait for its next nodes.
            jobs = self._site.jobs.read(refresh=True)
            for job in (jobs[number] for number in numbers if number in jobs):
                with self._log_errors(job.label):
                    if _is_running(job):
                        _restore(self._site, job)

    def _seconds_away(self) -> float:
        """Seconds since the last sign of life of slurm-elasticd. The ledger is only read if the
        mark file beside it is old.
        """
        site = self._site
        # The mark file is written even if the ledger cannot be (end-only), so it comes first.
        mark = read_mark(site.config.state)
        if mark and site.now() - mark.at <= site.config.timings.daemon_timeout:
            return site.now() - mark.at
        beat = latest(site.ledger.health.heartbeat(DAEMON), mark.beat if mark else None)
        return 0.0 if beat is None else site.now() - beat[0]

    @contextmanager
    def _log_errors(self, job: str) -> Iterator[None]:
        """Log an error and continue with the other jobs and the rest of the tick."""
        try:
            yield
        except (SlurmError, sqlite3.Error) as error:
            kind = type(error).__name__
            self._current_troubles.add(kind)
            if self._reports.is_news(kind):
                log.warning(
                    "the requeue setting cannot be changed now, it is retried job=%s error=%s",
                    job,
                    error,
                )

    def _find_endangered(
        self, jobs: Collection[SlurmJob], away_s: float | None
    ) -> dict[int, StartDanger]:
        """The jobs that slurmctld would fail, with the cause why slurm-elasticd does not prevent
        that. ``away_s``: seconds that slurm-elasticd has been away; None if it is alive.
        """
        exposed = [job for job in jobs if not job.requeue and _is_booting(job)]
        awaited_since = _awaited_since(filter(_is_booting, jobs)) if exposed else {}
        danger: dict[int, StartDanger] = {}
        for job in exposed:
            pool_nodes = [node for node in job.nodes if node in self._site.pool_of]
            if not pool_nodes:
                continue
            if away_s is not None:
                danger[job.id] = DaemonAway(away_s=away_s)
            elif late_nodes := [
                node
                for node in pool_nodes
                if node in awaited_since and self._is_late(node, awaited_since[node])
            ]:
                waits_s = self._site.now() - awaited_since[late_nodes[0]]
                danger[job.id] = NodeNotGivenUp(node=late_nodes[0], waits_s=waits_s)
        return danger

    def _is_late(self, node: str, awaited_since: float) -> bool:
        """Whether a healthy slurm-elasticd would have given the node up by this tick. Only a small
        rest of ResumeTimeout is left then. If both services lift the setting, the first one
        restores it.
        """
        config = self._site.config
        resume_timeout_s = config.resume_timeout(config.cloud(self._site.pool_of[node].cloud))
        # One period earlier, because the next tick comes a period later.
        give_up_after_s = given_up_after(resume_timeout_s) - config.checkpoint.poll_interval
        return self._site.now() - awaited_since >= give_up_after_s


def _is_booting(job: SlurmJob) -> bool:
    """Whether the job waits for its nodes. Newer Slurm versions then list it as RUNNING too."""
    return "CONFIGURING" in job.states


def _awaited_since(booting_jobs: Iterable[SlurmJob]) -> dict[str, float]:
    """Since when (Unix time) each node is awaited. The node's first job powered it up, and until
    all nodes of a job are up, the job's start is the time when it got them.
    """
    awaited_since: dict[str, float] = {}
    for job in booting_jobs:
        for node in job.nodes if job.start else ():
            awaited_since[node] = min(job.start, awaited_since.get(node, job.start))
    return awaited_since


def _is_running(job: SlurmJob) -> bool:
    return "RUNNING" in job.states and not _is_booting(job)


def _lift(site: CheckpointSite, job: SlurmJob, danger: StartDanger) -> None:
    requeue_setting.lift_until_it_runs(site.slurm, site.ledger, job.id, job.restarts, site.now())
    cause = MayBeRequeued(danger=danger)
    site.recorder.record(CORRELATION, "requeue-lifted", (f"job:{job.id}",), cause)


def _restore(site: CheckpointSite, job: SlurmJob) -> None:
    requeue_setting.put_back(site.slurm, site.ledger, job.id, job)
    site.recorder.record(CORRELATION, "requeue-put-back", (f"job:{job.id}",), JobStarted())
