"""A method that keeps everything in memory, for tests, rehearsals and benchmarks."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief
from slurm_elastic.model.checkpoint import Image, JobRun, Origin


class FakeCheckpointer:
    """``model.protocols.Checkpointer`` over values that a test sets. Thread-safe.

    A checkpoint takes ``seconds`` by ``sleep``. Each save raises the next error of ``fail_next``;
    while ``broken`` is not None, each save raises ``broken``. Images in ``spoilt`` (job, number)
    fail ``verify``. ``origins``: per job the image from which it was restarted, if that is not the
    newest. ``hindrances``: per job why it cannot be saved now. ``held``: the stopped runs (job,
    attempt), each with the time at which it continues by itself, ``hold_s`` after its save.
    ``calls``: all calls, each as (method, job).
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_images", "_number", "calls", "held")}

    name = "fake"

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        *,
        seconds: float = 0.0,
        keep: int = 2,
        hold_s: float = 600.0,
    ) -> None:
        self._clock, self._sleep, self._keep = clock, sleep, keep
        self._lock = threading.Lock()
        self._images: dict[int, list[Image]] = defaultdict(list)
        self._number = 0
        self.seconds, self.hold_s = seconds, hold_s
        self.fail_next: deque[Exception] = deque()
        self.broken: Exception | None = None
        self.origins: dict[int, Origin | None] = {}
        self.silent: set[int] = set()
        self.hindrances: dict[int, str] = {}
        self.spoilt: set[tuple[int, int]] = set()
        self.held: dict[tuple[int, int], float] = {}
        self.calls: list[tuple[str, int]] = []

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Return an image after ``seconds``. Raises CheckpointError if the deadline is earlier."""
        started_at = self._clock()
        with self._lock:
            self.calls.append(("checkpoint", run.job))
            if self.fail_next:
                raise self.fail_next.popleft()
            if self.broken is not None:
                raise self.broken
        if self.seconds:
            self._sleep(min(self.seconds, max(deadline - started_at, 0.0)))
        if started_at + self.seconds > deadline:
            raise CheckpointError(
                f"job {run.label}: no image within {brief(deadline - started_at)}"
            )
        return self._add_image(run, started_at, stop=stop)

    def _add_image(self, run: JobRun, started_at: float, *, stop: bool) -> Image:
        now = self._clock()
        with self._lock:
            self._number += 1
            image = Image(
                job=run.job, label=run.label, attempt=run.attempt, number=self._number,
                method=self.name, node=run.nodes[0], taken=now, seconds=now - started_at, size=1024,
                uid=run.uid, submitted=run.submitted,
            )  # fmt: skip
            images = self._images[run.job]
            images.insert(0, image)
            del images[self._keep :]
            if stop:
                self.held[run.job, run.attempt] = now + self.hold_s
            return image

    def release(self, run: JobRun) -> None:
        """Continue the run."""
        with self._lock:
            self.calls.append(("release", run.job))
            self.held.pop((run.job, run.attempt), None)

    def images(self, run: JobRun) -> Sequence[Image]:
        with self._lock:
            return tuple(i for i in self._images[run.job] if run.key.may_follow(i.key))

    def origin(self, run: JobRun) -> Origin | None:
        """Return the job's entry in ``origins``, otherwise its newest image."""
        with self._lock:
            if run.job in self.origins:
                return self.origins[run.job]
            return Origin(image=next((i.number for i in self._images[run.job]), 0))

    def is_silent(self, run: JobRun) -> bool:
        """Return whether the job is in ``silent``."""
        return run.job in self.silent

    def hindered(self, run: JobRun) -> str:
        return self.hindrances.get(run.job, "")

    def is_at_work(self, run: JobRun) -> bool:
        """Return False for stopped runs, and for runs without an image."""
        with self._lock:
            # As of a launcher: the next run of the job replaces the report about this one.
            newest_image = next(iter(self._images[run.job]), None)
            if newest_image is None or newest_image.attempt != run.attempt:
                return False
            if self.held.get((run.job, run.attempt), 0.0) <= self._clock():
                self.held.pop((run.job, run.attempt), None)
            return (run.job, run.attempt) not in self.held

    def verify(self, image: Image) -> None:
        """Raise CheckpointError for spoilt and unknown images."""
        with self._lock:
            self.calls.append(("verify", image.job))
            if (image.job, image.number) in self.spoilt or image not in self._images[image.job]:
                raise CheckpointError(f"image {image.number} of job {image.label} is not whole")

    def forget(self, run: JobRun, attempt: int, reason: str) -> None:
        """Forget the images of that attempt. ``reason`` is for the launcher, which is none here."""
        del reason
        with self._lock:
            self.calls.append(("forget", run.job))
            images = self._images[run.job]
            images[:] = [image for image in images if image.attempt != attempt]

    def remove(self, job: int) -> None:
        with self._lock:
            self.calls.append(("remove", job))
            self._images.pop(job, None)
