"""Checkpoint methods of other packages are asked here: they may raise, answer and take anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from slurm_elastic.base.errors import CheckpointError, bounded, of_stranger
from slurm_elastic.checkpointers.hanging_directories import InTime
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Checkpointer

PATIENCE = 60.0
"""Seconds for a call without a deadline."""
GRACE = 10.0
"""Seconds beyond its deadline in which a save may end."""

T = TypeVar("T")


class GuardedCheckpointer:
    """``model.protocols.Checkpointer`` around one of another package: whatever goes wrong in it
    is a CheckpointError of one line, in time.

    A run that such a save may have stopped is let go on.
    """

    def __init__(self, name: str, theirs: Checkpointer) -> None:
        self.name = name
        self._theirs = theirs
        self._calls = InTime()
        self._newest: dict[int, object] = {}

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        mine = self._newest[run.job] = object()

        def save() -> Image:
            try:
                image = self._theirs.checkpoint(run, deadline=deadline, stop=stop)
                self._require(image, run)
                if time.time() > deadline + GRACE:  # nobody may wait for it any more
                    _fail("it ended after its deadline")
            except CheckpointError:
                raise
            except (Exception, SystemExit):
                if stop and self._newest.get(run.job) is mine:  # else a later save may hold it
                    self._theirs.release(run)
                raise
            return image

        return self._asked(run, save, max(deadline - time.time(), 0.0) + 2 * GRACE)

    def release(self, run: JobRun) -> None:
        self._asked(run, lambda: self._theirs.release(run))

    def images(self, run: JobRun) -> Sequence[Image]:
        def listed() -> tuple[Image, ...]:
            images = tuple(self._theirs.images(run))
            for image in images:
                self._require(image, run)
            return images

        return self._asked(run, listed)

    def origin(self, run: JobRun) -> Origin | None:
        """None also where it cannot be told."""
        try:
            found: object = self._asked(run, lambda: self._theirs.origin(run))
        except CheckpointError:
            return None
        return found if isinstance(found, Origin) else None

    def hindered(self, run: JobRun) -> str:
        """Empty also where it cannot be told."""
        try:
            found: object = self._asked(run, lambda: self._theirs.hindered(run))
        except CheckpointError:
            return ""
        return bounded(found) if isinstance(found, str) else ""

    def verify(self, image: Image) -> None:
        self._asked(image, lambda: self._theirs.verify(image))

    def remove(self, job: int) -> None:
        self._newest.pop(job, None)
        self._asked(job, lambda: self._theirs.remove(job))

    def _asked(self, what: object, call: Callable[[], T], seconds: float = PATIENCE) -> T:
        job = getattr(what, "job", what)
        try:
            return self._calls.do(job, call, seconds)
        except CheckpointError as error:
            raise CheckpointError(bounded(" ".join(str(error).split()))) from error
        except (Exception, SystemExit) as error:
            why = of_stranger(error)
            raise CheckpointError(f"job {job}: method {self.name} fails: {why}") from error

    def _require(self, image: object, run: JobRun) -> None:
        if not isinstance(image, Image):
            _fail(f"found {of_stranger(image)}, expected an Image")
        elif (image.job, image.method) != (run.job, self.name):
            _fail(f"found an image of job {image.job} by {image.method}")


def _fail(why: str) -> NoReturn:
    raise ValueError(why)
