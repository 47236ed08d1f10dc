"""Requeues runs that died of the signal of a save in place, which should not have ended them.

It looks at the jobs that Slurm shows as ended, and not at the saves under way. So it also finds a
run whose signal was sent just before a crash of this service.
"""

from __future__ import annotations

import logging

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot, choose_method
from slurm_elastic.model.causes.threats import EndedBySave
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

log = logging.getLogger(__name__)
METHOD = "signal"
"""The method whose saves may end a run."""


def requeue_ended_runs(site: CheckpointSite, snapshot: Snapshot, crew: KeyedExecutor) -> None:
    """Begin a move, at its requeue, of each run that the signal of a save in place has ended.
    ``snapshot.jobs`` must be from this tick.
    """
    for job in snapshot.jobs.values():
        # While its save is under way, its thread still writes down how the save failed.
        if not (job.batch and job.died_of and job.has_ended) or crew.is_busy(job.id):
            continue
        choice = choose_method(site, job)
        if choice.method != METHOD or _is_moved(site, job):
            continue
        run = run_of(job, choice)
        try:
            ended_by_save = bool(site.checkpointers[METHOD].hindered(run))
            images = site.checkpointers[METHOD].images(run) if ended_by_save else ()
        except (CheckpointError, SlurmError) as error:
            log.warning("how a job ended is not known yet job=%s error=%s", run.label, error)
            continue
        if ended_by_save:
            _begin_requeue(site, run, next(iter(images), None))


def _is_moved(site: CheckpointSite, job: SlurmJob) -> bool:
    """Whether a move of this run exists, which then answers for its end."""
    return any(move.run.attempt == job.restarts for move in site.state.migrations_of(job.id))


def _begin_requeue(site: CheckpointSite, run: JobRun, image: Image | None) -> None:
    now = site.now()
    cause = EndedBySave()
    move = Migration(
        run=run, method=METHOD, threatened=(), reason=cause, cause=ThreatCause.SAVE,
        step=MigrationStep.REQUEUEING, began=now, changed=now, saves=False, image=image,
        newest=0 if image is None else image.number,
        reached={str(MigrationStep.PLANNED): now, str(MigrationStep.REQUEUEING): now},
    )  # fmt: skip
    site.state.put(move)
    site.recorder.record_run(run, "ckpt-ended", cause, level=logging.WARNING)
