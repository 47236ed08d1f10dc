"""From which image the new run of a moved job began. Its launcher reports that, because Slurm shows
a run as RUNNING before its image is restored, and also if the restore fails.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.causes.run_starts import StartDoubt, StartReported, StartUnconfirmed
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate.facts import Migration

STAYING = frozenset({"criu", "dmtcp"})
"""Methods whose launcher (the batch script) keeps running while a saved job is stopped."""
LAUNCHER_WAIT_S = 600.0
"""Seconds for which the launcher of a restarted run may wait before it reports: 300 s until the
node knows the user, and 300 s for the lock of the run before, see docs/checkpoint-methods.md.
"""
ORIGIN_TIMEOUT_S = LAUNCHER_WAIT_S + 120.0
"""Seconds in which a launcher reports where its run began."""
READ_BYTES_PER_S = 16 << 20
"""We add the time to verify and read back an image at this rate."""


class StartedRun(Struct, frozen=True, kw_only=True):
    """A running run of a job. ``image``: the image it continues from (None: it began from its
    start). ``doubt``: why this is not its newest image, or why the image is not known.
    """

    image: Image | None
    doubt: StartDoubt | None = None


def read_started_run(site: CheckpointSite, move: Migration, job: SlurmJob) -> StartedRun | None:
    """How the run began that Slurm shows as RUNNING; None while its launcher may report it."""
    if move.method not in STAYING:
        return StartedRun(image=move.image)
    origin = _read_origin(site, move, job)
    # Without an image there is nothing to restore, so no report is awaited.
    if origin is None and move.image is not None and _may_come(site, move, move.image, job):
        return None
    if origin is None or origin.image is None:
        doubt = None if move.image is None else StartUnconfirmed()
        return StartedRun(image=move.image, doubt=doubt)
    return StartedRun(
        image=_image_by_number(site, move, origin.image) if origin.image else None,
        doubt=StartReported(error=origin.why) if origin.why else None,
    )


def has_started(site: CheckpointSite, method: str, run: JobRun) -> bool:
    """Whether a run is at work as far as we know, and is no longer being restored."""
    method_client = site.checkpointers.get(method) if method in STAYING else None
    is_late = site.now() - run.started >= ORIGIN_TIMEOUT_S
    if method_client is None or is_late:
        return True
    origin = method_client.origin(run)
    return origin is not None and not origin.is_unfit


def _read_origin(site: CheckpointSite, move: Migration, job: SlurmJob) -> Origin | None:
    method = site.checkpointers.get(move.method)
    run = replace(move.run, attempt=job.restarts, submitted=job.submit)
    origin = None if method is None else method.origin(run)
    return None if origin is None or origin.is_unfit else origin


def _may_come(site: CheckpointSite, move: Migration, image: Image, job: SlurmJob) -> bool:
    # The later one: Slurm may show the start of the run before we have recorded the requeue.
    return may_report(site, image, max(job.start, move.changed))


def may_report(site: CheckpointSite, image: Image, began: float) -> bool:
    """Whether the launcher of a run that began then (Unix s) may still restore the image."""
    return site.now() - began < ORIGIN_TIMEOUT_S + image.size / READ_BYTES_PER_S


def _image_by_number(site: CheckpointSite, move: Migration, number: int) -> Image | None:
    """The image of that number. If we do not know it, return the planned image, which says more
    than none.
    """
    images = (
        image for image in (move.image, *site.state.images(move.run.job)) if image is not None
    )
    return next((image for image in images if image.number == number), move.image)
