"""Where the new run of a moved job began: its launcher tells. For Slurm a run is RUNNING before its
image is restored, and also where that cannot be.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate.facts import Migration

STAYING = frozenset({"criu", "dmtcp"})
"""Methods whose launcher, the batch script, stays while a saved job is stopped."""
ORIGIN_TIMEOUT_S = 420.0
"""Seconds in which a launcher tells where its run began: it may wait 300 of them for the lock that
the run before left behind, see docs/checkpoint-methods.md.
"""
READ_BYTES_PER_S = 16 << 20
"""Bytes a second besides, in which an image is verified and read back."""
_NO_ORIGIN = "that was the plan, its launcher has not told"


class StartedRun(Struct, frozen=True, kw_only=True):
    """A run that is at work: the ``image`` that it goes on from (None: it began from its start),
    and ``why`` that is not its newest one, or not known.
    """

    image: Image | None
    why: str = ""

    @property
    def source(self) -> str:
        """For a person."""
        return "its start" if self.image is None else f"save {self.image.number}"


def read_started_run(site: CheckpointSite, move: Migration, job: SlurmJob) -> StartedRun | None:
    """How the job's run that Slurm calls RUNNING began; None while its launcher may yet tell."""
    if move.method not in STAYING:
        return StartedRun(image=move.image)
    origin = _read_origin(site, move, job)
    if origin is None and move.image is not None and _may_come(site, move, move.image, job):
        return None
    if origin is None or origin.image is None:
        return StartedRun(image=move.image, why="" if move.image is None else _NO_ORIGIN)
    if origin.image == 0:
        return StartedRun(image=None, why=origin.why)
    return StartedRun(image=_image_by_number(site, move, origin.image), why=origin.why)


def has_started(site: CheckpointSite, method: str, run: JobRun) -> bool:
    """Whether a run is at work for all that is known, and not being brought back still."""
    known = site.checkpointers.get(method) if method in STAYING else None
    late = site.now() - run.started >= ORIGIN_TIMEOUT_S
    return known is None or late or known.origin(run) is not None


def _read_origin(site: CheckpointSite, move: Migration, job: SlurmJob) -> Origin | None:
    method = site.checkpointers.get(move.method)
    return None if method is None else method.origin(replace(move.run, attempt=job.restarts))


def _may_come(site: CheckpointSite, move: Migration, image: Image, job: SlurmJob) -> bool:
    began = max(job.start, move.changed)
    return site.now() - began < ORIGIN_TIMEOUT_S + image.size / READ_BYTES_PER_S


def _image_by_number(site: CheckpointSite, move: Migration, number: int) -> Image | None:
    """An image that is known here; of one that is not, the planned one says more than none."""
    known = (i for i in (move.image, *site.state.images(move.run.job)) if i is not None)
    return next((i for i in known if i.number == number), move.image)
