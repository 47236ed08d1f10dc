"""Checkpoint methods of other packages are asked here: they may raise, answer and take anything."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from slurm_elastic.base.errors import CheckpointError, bounded, of_stranger
from slurm_elastic.base.in_time import InTime
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Checkpointer

PATIENCE = 60.0
"""Seconds for a call without a deadline."""
GRACE = 10.0
"""Seconds beyond its deadline in which a save may end."""
MOST = 2**63 - 1
"""What an image may have as a number, at most."""

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
        mine = object()
        if stop:
            self._newest[run.job] = mine

        def save() -> Image:
            try:
                image = self._theirs.checkpoint(run, deadline=deadline, stop=stop)
                self._require(image, run)
                if time.time() > deadline + GRACE:  # nobody may wait for it any more
                    _fail("it ended after its deadline")
            except CheckpointError:
                raise
            except BaseException:  # in a thread of its own
                if stop and self._newest.get(run.job) is mine:  # else a later save may hold it
                    self._theirs.release(run)
                raise
            return image

        try:
            return self._asked(run, save, max(deadline - time.time(), 0.0) + 2 * GRACE)
        except CheckpointError as error:
            if stop and isinstance(error.__cause__, TimeoutError):  # it may have stopped the run
                with contextlib.suppress(CheckpointError):
                    self.release(run)
            raise

    def release(self, run: JobRun) -> None:
        self._asked(run, lambda: self._theirs.release(run))

    def images(self, run: JobRun) -> Sequence[Image]:
        def listed() -> tuple[Image, ...]:
            images = tuple(self._theirs.images(run))
            for image in images:
                self._require(image, run)
            return images

        return self._asked(run, listed)

    def origin(self, run: JobRun) -> Origin | None:  # noqa: ARG002
        """Not told: only jobs of a launcher of ours tell it."""
        return None

    def hindered(self, run: JobRun) -> str:  # noqa: ARG002
        """Not told: only jobs of a launcher of ours are looked at before a save."""
        return ""

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
        except BaseException as error:  # from a thread of its own
            why = of_stranger(error)
            raise CheckpointError(f"job {job}: method {self.name} fails: {why}") from error

    def _require(self, image: object, run: JobRun) -> None:
        if not isinstance(image, Image):
            _fail(f"found {of_stranger(image)}, expected an Image")
        elif (image.job, image.method) != (run.job, self.name):
            _fail(f"found an image of job {image.job} by {image.method}")
        else:  # the journal keeps it, and has to find the same again
            msgspec.json.decode(msgspec.json.encode(image), type=Image)
            if not all(0 <= number <= MOST for number in (image.attempt, image.number, image.size)):
                _fail(f"found {of_stranger(image)}, whose numbers are not from 0 to {MOST}")


def _fail(why: str) -> NoReturn:
    raise ValueError(why)
