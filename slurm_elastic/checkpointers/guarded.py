"""Calls checkpoint methods of other packages, which may hang, raise any error, or answer
nonsense.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from slurm_elastic.base.errors import CheckpointError, bounded, describe_foreign
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Checkpointer

CALL_TIMEOUT_S = 60.0
"""Seconds for a call without a deadline."""
GRACE_S = 10.0
"""Seconds after its deadline in which a save may still end."""
MAX_NUMBER = 2**63 - 1
"""The largest number in an image: the journal stores signed 64-bit integers."""

T = TypeVar("T")


class GuardedCheckpointer:
    """``model.protocols.Checkpointer`` around a checkpointer of another package.

    Every failure of the other package becomes a CheckpointError of one line, raised in time. If a
    failed save may have stopped the run, the run is released.
    """

    def __init__(self, name: str, plugin: Checkpointer) -> None:
        self.name = name
        self._plugin = plugin
        self._calls = InTime()
        self._newest: dict[int, object] = {}

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        token = object()  # identifies this save among the job's saves, some of which may hang
        if stop:
            self._newest[run.job] = token

        def save() -> Image:
            try:
                image = self._plugin.checkpoint(run, deadline=deadline, stop=stop)
                self._check_image(image, run)
                # The caller may have timed out, so a run that this save stopped must be released.
                if time.time() > deadline + GRACE_S:
                    _fail("it ended after its deadline")
            except CheckpointError:
                raise
            # In a thread of ``InTime``, so KeyboardInterrupt cannot be meant for us.
            except BaseException:
                # If the token differs, a later save may hold the run, and needs it stopped.
                if stop and self._newest.get(run.job) is token:
                    self._plugin.release(run)
                raise
            return image

        try:
            return self._call(run, save, max(deadline - time.time(), 0.0) + 2 * GRACE_S)
        except CheckpointError as error:
            # A save that timed out may have stopped the run.
            if stop and isinstance(error.__cause__, TimeoutError):
                with contextlib.suppress(CheckpointError):
                    self.release(run)
            raise

    def release(self, run: JobRun) -> None:
        self._call(run, lambda: self._plugin.release(run))

    def images(self, run: JobRun) -> Sequence[Image]:
        def listed() -> tuple[Image, ...]:
            images = tuple(self._plugin.images(run))
            for image in images:
                self._check_image(image, run)
            return images

        return self._call(run, listed)

    def origin(self, run: JobRun) -> Origin | None:  # noqa: ARG002
        """Return None: only our own launcher records from which image a job was restarted."""
        return None

    def hindered(self, run: JobRun) -> str:  # noqa: ARG002
        """Return "": only our own launcher checks a job before its save."""
        return ""

    def is_at_work(self, run: JobRun) -> bool:  # noqa: ARG002
        """Return False: only our own launcher reports this."""
        return False

    def is_silent(self, run: JobRun) -> bool:  # noqa: ARG002
        """Return False: only our own launcher reports a run."""
        return False

    def verify(self, image: Image) -> None:
        self._call(image, lambda: self._plugin.verify(image))

    def remove(self, job: int) -> None:
        self._newest.pop(job, None)
        self._call(job, lambda: self._plugin.remove(job))

    def _call(self, subject: object, call: Callable[[], T], seconds: float = CALL_TIMEOUT_S) -> T:
        job = getattr(subject, "job", subject)
        try:
            return self._calls.call(job, call, seconds)
        except CheckpointError as error:
            raise CheckpointError(bounded(" ".join(str(error).split()))) from error
        except BaseException as error:  # the plug-in ran in another thread and may raise anything
            reason = describe_foreign(error)
            raise CheckpointError(f"job {job}: method {self.name} fails: {reason}") from error

    def _check_image(self, image: object, run: JobRun) -> None:
        if not isinstance(image, Image):
            _fail(f"found {describe_foreign(image)}, expected an Image")
        elif (image.job, image.method) != (run.job, self.name):
            _fail(f"found an image of job {image.job} by {image.method}")
        else:  # the journal stores the image, so it must survive encoding and decoding
            msgspec.json.decode(msgspec.json.encode(image), type=Image)
            if not all(
                0 <= number <= MAX_NUMBER for number in (image.attempt, image.number, image.size)
            ):
                _fail(
                    f"found {describe_foreign(image)}, whose numbers are not from 0 to {MAX_NUMBER}"
                )


def _fail(reason: str) -> NoReturn:
    raise ValueError(reason)
