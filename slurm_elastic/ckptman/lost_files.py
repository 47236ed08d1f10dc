"""Forgets the images of runs whose files are lost (``data: copy``). Such an image expects the files
that its run wrote on the lost machine. The job's next run continues from an earlier image, or it
starts over. slurm-elasticd does not let it begin before (``features.files.unfit_images``).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.origins import STAYING
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot, choose_method
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.model.causes.moves import ImageNotUsed
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.copying import JobCopy, find_lost_run
from slurm_elastic.model.protocols import Forgets
from slurm_elastic.model.slurm import SlurmJob

log = logging.getLogger(__name__)

_NO_HURRY = (float("inf"), 0.0)


def forget_images(site: CheckpointSite, snapshot: Snapshot, crew: KeyedExecutor) -> None:
    """For each job that is about to begin another run, submit the removal of these images."""
    if not any(cloud.data is Data.COPY for cloud in site.config.clouds):
        return
    for number, images in snapshot.images.items():
        job = snapshot.jobs.get(number)
        if job is None or not job.restarts or not _is_about_to_begin(job):
            continue
        try:
            lost = find_lost_run(site.ledger.copies.of(number), job.uid, job.restarts)
        except sqlite3.Error as error:
            log.warning("the copies of jobs' files cannot be read: %s", error)
            return
        unfit: Sequence[Image] = (
            () if lost is None else [image for image in images if _is_of(image, lost)]
        )
        if lost is not None and unfit:
            run = run_of(job, choose_method(site, job))
            crew.submit(number, _NO_HURRY, partial(_forget, site, run, lost, unfit))


def _is_about_to_begin(job: SlurmJob) -> bool:
    # Its prolog has not ended while it is CONFIGURING, so no launcher has chosen an image yet.
    return bool(job.states & {"PENDING", "CONFIGURING"})


def _is_of(image: Image, lost: JobCopy) -> bool:
    is_same_run = (image.attempt, image.uid) == (lost.restarts, lost.uid)
    return is_same_run and image.method in STAYING


def _forget(site: CheckpointSite, run: JobRun, lost: JobCopy, images: Sequence[Image]) -> None:
    method = site.checkpointers.get(images[0].method)
    if not isinstance(method, Forgets):
        return
    try:
        # Before our own record: as soon as it is gone, slurm-elasticd lets the run begin.
        method.forget(run, lost.restarts, lost.cause_against_image)
    except CheckpointError as error:
        log.warning("an image without its files stays, it is retried job=%s error=%s",
                    run.label, error)  # fmt: skip
        return
    for image in images:
        site.state.forget_image(image)
        cause = ImageNotUsed(number=image.number, error=lost.cause_against_image)
        site.recorder.record_run(run, "ckpt-bad-image", cause, level=logging.WARNING)
