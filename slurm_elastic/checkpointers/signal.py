"""Method ``signal``: the application saves itself when it is told to, and shows when it is done.

The sign that a save is complete is a file in the job's directory that appears or changes, a line of
its output, or the end of its batch script. A job that ends on our signal has not finished, and
Slurm can requeue ended batch jobs as well as running ones (measured on 22.05: ``scontrol requeue``
of a COMPLETED or FAILED job works as long as slurmctld knows the job, for MinJobAge). So we need
not prevent the end: the requeue comes after it, and counts.

A small file for each job notes everything that was asked for and saved.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.errors import CheckpointError, SlurmError, why
from slurm_elastic.base.units import brief
from slurm_elastic.checkpointers.save_signs import Completion, Ended, completion_of
from slurm_elastic.config.checkpoint import SignalSettings
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state import statedir

log = logging.getLogger(__name__)

POLL = 0.1
"""Seconds between two looks for the sign."""
SETTLE = 5.0
"""Seconds after a run's start before it is signalled, so that it has time to set its traps."""
AGAIN = 30.0
"""Seconds without the sign, or three times what the last save took, until we ask once more: a
signal that comes while a program starts may be lost.
"""
STOPPED = 5.0
"""Seconds that Slurm may take to show a job as stopped."""
_NOT_RUNNING = frozenset({"STOPPED", "SUSPENDED", "COMPLETED", "FAILED", "CANCELLED"})
OPTIONS = frozenset({"signal", "stop_signal", "scope", "saved"})
"""The options that a job may give this method: ``--comment=ckpt=signal,saved=file:state``."""


def settings_of(site: SignalSettings, run: JobRun) -> SignalSettings:
    """The site's settings, changed by what the job says itself."""
    return replace(site, **{k: v for k, v in run.options.items() if k in OPTIONS})


def save_signals(site: SignalSettings, run: JobRun) -> frozenset[int]:
    """The numbers of the signals that ask this run to save itself."""
    settings = settings_of(site, run)
    names = (settings.signal, settings.stop_signal or settings.signal)
    return frozenset(getattr(signal, f"SIG{name}", 0) for name in names) - {0}


class Save(Struct, frozen=True, kw_only=True):
    """A save that was asked for at ``asked``; ``mark`` is the state of the sign before."""

    attempt: int
    asked: float
    stop: bool
    sign: str
    mark: str


class Book(Struct, frozen=True, kw_only=True):
    """The contents of one job's file."""

    uid: int
    directory: str
    pending: Save | None = None
    images: tuple[Image, ...] = ()
    signs: dict[int, str] = {}
    number: int = 0


class SignalCheckpointer:
    """``model.protocols.Checkpointer`` by ``scancel --signal``. ``look`` asks for a job as Slurm
    has it.
    """

    name = "signal"

    def __init__(
        self,
        settings: SignalSettings,
        place: Path,
        slurm: Slurm,
        look: Callable[[int], SlurmJob | None],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._place, self._slurm, self._look = settings, place, slurm, look
        self._clock, self._sleep = clock, sleep

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Ask for a save and wait for the sign; with ``stop``, then stop what still runs by
        SIGSTOP.
        """
        settings = settings_of(self._settings, run)
        book = self._read(run.job) or Book(uid=run.uid, directory=run.directory)
        pending = book.pending
        if pending is None or (pending.attempt, pending.stop) != (run.attempt, stop):
            left = min(run.started + SETTLE, deadline - SETTLE) - self._clock()
            if left > 0:
                self._sleep(left)
            pending = self._ask(run, book, settings, stop=stop)
            book = replace(book, pending=pending)
        sign = completion_of(pending.sign, run, self._slurm)
        try:
            image = self._wait(run, sign, pending, book, deadline)
        except CheckpointError:
            self._let_go(run, pending, settings)
            raise
        images = (image, *book.images)[:2]
        signs = {i.number: book.signs.get(i.number, pending.sign) for i in images}
        self._write(run.job, replace(book, pending=None, images=images, signs=signs,
                                     number=image.number))  # fmt: skip
        if stop and not isinstance(sign, Ended):
            self._hold(run, deadline)
        return image

    def _hold(self, run: JobRun, deadline: float) -> None:
        """Send SIGSTOP, and wait until Slurm shows that."""
        self._send(run, "STOP", full=True)
        # A requeue that overtakes it would meet processes that are stopped only then, and that take
        # no SIGTERM until KillWait is over (measured on 22.05).
        until = min(self._clock() + STOPPED, deadline)
        while self._clock() < until:
            job = self._job(run)
            if job is None or job.restarts != run.attempt or job.states & _NOT_RUNNING:
                return
            self._sleep(POLL)
        log.info("job is not seen as stopped job=%s", run.label)

    def _let_go(self, run: JobRun, save: Save, settings: SignalSettings) -> None:
        """Let a program go on that was told that it would be moved: it may wait for that, or come
        to it later, but nobody moves it by this save.
        """
        job = self._job(run)
        told = save.stop and settings.stop_signal not in (None, settings.signal)
        if told and job is not None and job.restarts == run.attempt and "RUNNING" in job.states:
            with contextlib.suppress(CheckpointError):
                self._send(run, "CONT", full=True)

    def _ask(self, run: JobRun, book: Book, settings: SignalSettings, *, stop: bool) -> Save:
        sign = completion_of(settings.saved, run, self._slurm)
        if isinstance(sign, Ended) and not stop:
            raise CheckpointError(
                f"job {run.label} ends when it saves itself: that is only done to move it"
            )
        asked = self._clock()
        save = Save(
            attempt=run.attempt, asked=asked, stop=stop, sign=settings.saved, mark=sign.mark()
        )
        # Before the signal: after a crash a save that was under way is found, and not asked for
        # twice.
        self._write(run.job, replace(book, pending=save))
        self._send_save(run, settings, stop=stop)
        return save

    def _send_save(self, run: JobRun, settings: SignalSettings, *, stop: bool) -> None:
        name = (settings.stop_signal or settings.signal) if stop else settings.signal
        self._send(run, name, full=settings.scope == "full")

    def _wait(
        self, run: JobRun, sign: Completion, save: Save, book: Book, deadline: float
    ) -> Image:
        last = max((i.seconds for i in book.images), default=0.0)
        again = self._clock() + max(AGAIN, 3 * last)
        while True:
            job = self._job(run)
            there = sign.shows(save.mark, job, run)
            if there is not None:
                break
            self._must_go_on(run, job)
            now = self._clock()
            if now + POLL >= deadline:
                raise CheckpointError(
                    f"job {run.label} showed no {sign} in {brief(now - save.asked)}"
                )
            if now >= again:
                self._send_save(run, settings_of(self._settings, run), stop=save.stop)
                again = deadline
            self._sleep(POLL)
        now = self._clock()
        return Image(
            job=run.job, label=run.label, attempt=run.attempt, number=book.number + 1,
            method=self.name, node=run.nodes[0] if run.nodes else "", taken=now,
            seconds=now - save.asked, size=there,
        )  # fmt: skip

    def _job(self, run: JobRun) -> SlurmJob | None:
        try:
            return self._look(run.job)
        except SlurmError as error:
            log.info("job cannot be looked at job=%s error=%s", run.label, error)
            # No sign of an end: the run is taken to go on, until the deadline.
            return SlurmJob(id=run.job, states=frozenset({"RUNNING"}), restarts=run.attempt)

    def _must_go_on(self, run: JobRun, job: SlurmJob | None) -> None:
        if job is None or job.restarts != run.attempt:
            raise CheckpointError(
                f"job {run.label} ended or began anew while it was to save itself"
            )
        if job.states & {"RUNNING", "STOPPED", "COMPLETING", "SUSPENDED"}:
            return
        how = " ".join(sorted(job.states))
        if job.died_of in save_signals(self._settings, run):
            how = "died of the signal: it does not catch it"
        raise CheckpointError(f"job {run.label} ended without having saved itself ({how})")

    def release(self, run: JobRun) -> None:
        """Send SIGCONT to all of it."""
        self._send(run, "CONT", full=True)

    def images(self, run: JobRun) -> Sequence[Image]:
        """The images whose sign still holds, newest first."""
        book = self._read(run.job)
        if book is None:
            return ()
        return tuple(image for image in book.images if self._fault(book, image) is None)

    def origin(self, run: JobRun) -> Origin | None:  # noqa: ARG002
        """Only the program knows."""
        return None

    def hindered(self, run: JobRun) -> str:  # noqa: ARG002
        """Only a save tells."""
        return ""

    def verify(self, image: Image) -> None:
        """Check that the sign still holds: that its file exists, is the user's, and
        is not empty.
        """
        book = self._read(image.job)
        if book is None or image not in book.images:
            raise CheckpointError(f"nothing is known of save {image.number} of job {image.label}")
        if (fault := self._fault(book, image)) is not None:
            raise CheckpointError(f"save {image.number} of job {image.label}: {fault}")

    def remove(self, job: int) -> None:
        """Remove only our notes; the files that the application saved are its user's."""
        self._path(job).unlink(missing_ok=True)

    def _fault(self, book: Book, image: Image) -> str | None:
        run = JobRun(
            job=image.job, label=image.label, attempt=image.attempt, user="", uid=book.uid, gid=-1,
            nodes=(), partition="", started=0.0, directory=book.directory,
        )  # fmt: skip
        return completion_of(book.signs.get(image.number, "exit"), run, self._slurm).fault(
            image.size
        )

    def _send(self, run: JobRun, name: str, *, full: bool) -> None:
        try:
            self._slurm.signal(run.job, name, full=full)
        except SlurmError as error:
            raise CheckpointError(f"job {run.label} cannot be signalled: {error}") from error

    def _path(self, job: int) -> Path:
        return self._place / f"{job}.json"

    def _read(self, job: int) -> Book | None:
        try:
            return msgspec.json.decode(self._path(job).read_bytes(), type=Book)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise CheckpointError(f"{self._path(job)} cannot be read: {why(error)}") from error

    def _write(self, job: int, book: Book) -> None:
        """Write the file whole or not at all; it is on the disk before the next step."""
        path = self._path(job)
        try:
            self._place.mkdir(mode=statedir.DIRECTORY, exist_ok=True)
            writing.replace(path, msgspec.json.encode(book))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
