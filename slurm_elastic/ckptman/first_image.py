"""The verification of a new image of a job that may not be requeued yet (``--no-requeue``).

A job with an image may be requeued, because it continues from there. But a large image takes
minutes to verify, and if the node is lost in that time, Slurm ends the job although its image is
whole. So we lift the setting before the verification and put it back if the image is not whole.
Until then the ledger has a row, so that slurm-elasticd puts the setting back after a crash.
"""

from __future__ import annotations

import logging
import sqlite3

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.protocols import Checkpointer
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.commands import requeue_setting

log = logging.getLogger(__name__)

VERIFICATION_S = 1800.0
"""Seconds for which slurm-elasticd leaves the lift alone: more than the largest image takes."""


def verify_new(site: CheckpointSite, method: Checkpointer, image: Image) -> bool:
    """Verify an image that the method made just now. Returns whether ``--no-requeue`` was lifted.

    Raises what the method raises if the image is not whole. The user's setting is back then.
    """
    job = site.jobs.last.get(image.job)
    if job is None or job.requeue or _is_lifted_by_another(site, job):
        method.verify(image)
        return False
    site.verified[job.id] = True
    try:
        return _verify_lifted(site, method, image, job)
    finally:
        site.verified.pop(job.id)


def _verify_lifted(site: CheckpointSite, method: Checkpointer, image: Image, job: SlurmJob) -> bool:
    is_lifted = _lift(site, job)
    try:
        method.verify(image)
    except Exception:
        _put_back(site, job)
        raise
    try:
        # Also if Slurm refused the lift: it is tried again for good, and a row would delay that.
        site.ledger.requeues.forget(job.id)
    except sqlite3.Error as error:
        log.warning("a lifted --no-requeue comes back job=%s error=%s", job.label, error)
    return is_lifted


def _is_lifted_by_another(site: CheckpointSite, job: SlurmJob) -> bool:
    """Whether a row of another lift exists, which the service that wrote it puts back. True also if
    the ledger cannot be read: without a row we may not lift.
    """
    try:
        return any(number == job.id for number, _ in site.ledger.requeues.lifted())
    except sqlite3.Error:
        return True


def _lift(site: CheckpointSite, job: SlurmJob) -> bool:
    try:
        counted_from = site.now() + VERIFICATION_S
        requeue_setting.lift_until_it_runs(
            site.slurm, site.ledger, job.id, job.restarts, counted_from
        )
    except (SlurmError, sqlite3.Error) as error:
        log.info("--no-requeue is not lifted yet job=%s error=%s", job.label, error)
        return False
    return True


def _put_back(site: CheckpointSite, job: SlurmJob) -> None:
    try:
        lifted = site.jobs.read_new(job.id)
        requeue_setting.put_back(site.slurm, site.ledger, job.id, lifted)
    except (SlurmError, sqlite3.Error) as error:
        # The row stays, so slurm-elasticd puts it back.
        log.warning("--no-requeue is not put back yet job=%s error=%s", job.label, error)
