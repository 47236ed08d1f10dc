"""Method ``signal``: the application saves itself on a signal, and shows when it has finished.

Three signs can show that a save is complete: a file in the job's directory appears or changes, a
line appears in the job's output, or the batch script ends. A job that ends on our signal has not
finished its work, but Slurm can requeue ended batch jobs as well as running ones (measured on
22.05: ``scontrol requeue`` of a COMPLETED or FAILED job works as long as slurmctld knows the job,
which is MinJobAge). The job may therefore end, because the requeue also works after the end.

Slurm signals only the batch script's own shell, and by default a shell dies of the signal, whatever
the programs do that it has started. So the submit filter puts a relay into a script that does not
catch the signal (signal_relay.sh). Without the filter such a job gets no signal.

One small file per job records the pending save and the last two complete saves.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.errors import CheckpointError, SlurmError, reason_of
from slurm_elastic.base.units import brief
from slurm_elastic.checkpointers.dependents import dependents_of
from slurm_elastic.checkpointers.save_signs import (
    Completion,
    ScriptEnded,
    completion_of,
    is_end_of_script,
)
from slurm_elastic.checkpointers.signal_book import Book, Save
from slurm_elastic.config.sections.checkpoint import SignalSettings
from slurm_elastic.model.causes.hindrances import UNCAUGHT
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.batch_script import DIED, dies_of_signals, has_relay
from slurm_elastic.state import statedir

log = logging.getLogger(__name__)

POLL_EVERY_S = 0.1
"""Seconds between two looks for the sign."""
MIN_RUN_TIME_S = 5.0
"""Seconds after a run's start before its first signal, so that it has time to set its traps."""
RESEND_AFTER_S = 30.0
"""Seconds without the sign after which the signal is sent a second time, because a starting program
may lose it. Three times the longest of the last saves, if this takes longer.
"""
STOP_TIMEOUT_S = 5.0
"""Seconds that Slurm may take to show a job as stopped."""
_HAS_PROCESSES = frozenset({"RUNNING", "STOPPED", "SUSPENDED"})
"""States of a job whose processes may get a signal."""
_OVER = ENDED | {"COMPLETING"}
"""States of a job whose processes have ended, or are about to."""
_NOT_RUNNING = _OVER | {"STOPPED", "SUSPENDED"}
HARMLESS_SIGNALS = frozenset({"CHLD", "CONT", "URG", "WINCH"})
"""Signals that end no process that does not catch them."""
RELAYED_SAVE, RELAYED_STOP = "URG", "WINCH"
"""The signals for all processes of a job with a relay (signal_relay.sh). No process dies of them.
The relay sends the real signal to the programs that catch it.
"""
OPTIONS = frozenset({"signal", "stop_signal", "scope", "saved"})
"""The options that a job may give this method: ``--comment=ckpt=signal,saved=file:state``."""


def settings_of(site: SignalSettings, run: JobRun) -> SignalSettings:
    """Return the site's settings. The job's own options replace the site's."""
    return replace(site, **{k: v for k, v in run.options.items() if k in OPTIONS})


def saves_by_ending(site: SignalSettings, run: JobRun) -> bool:
    """Whether the end of the run's script shows that it has saved itself."""
    return is_end_of_script(settings_of(site, run).saved)


def save_signals(site: SignalSettings, run: JobRun) -> frozenset[int]:
    """Return the numbers of the signals that ask this run to save itself."""
    settings = settings_of(site, run)
    names = (settings.signal, settings.stop_signal or settings.signal)
    return frozenset(getattr(signal, f"SIG{name}", 0) for name in names) - {0}


def taken_at(image: Image, now: float) -> float:
    """Return when the image of a save that ended now was taken, by the clock of this head."""
    # A save by a signal may have been complete before we looked, because we had crashed. The other
    # methods date their images on the node, whose clock may differ from ours.
    return min(image.taken, now) if image.method == SignalCheckpointer.name else now


class _DiedOfSignalError(CheckpointError):
    """The signal ended the run, so the job's later runs must not get one."""


class SignalCheckpointer:
    """``model.protocols.Checkpointer`` by ``scancel --signal``. ``look`` returns a job as slurmctld
    shows it; None if slurmctld does not know the job.
    """

    name = "signal"

    def __init__(
        self,
        settings: SignalSettings,
        directory: Path,
        slurm: Slurm,
        look: Callable[[int], SlurmJob | None],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._directory, self._slurm, self._look = settings, directory, slurm, look
        self._clock, self._sleep = clock, sleep

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Request a save and wait for its sign. ``stop`` sends SIGSTOP to the processes that still
        run after it. Raises CheckpointError.
        """
        settings = settings_of(self._settings, run)
        book = self._book_of(run) or Book(uid=run.uid, directory=run.directory)
        book = replace(book, key=run.key)
        pending = book.pending
        is_resumed = pending is not None and pending.is_awaited(run, self._clock(), stop=stop)
        if pending is None or not is_resumed:
            job = self._wait_for_traps(run, deadline)
            book = self._check_script(run, job, book, settings)
            if stop and is_end_of_script(settings.saved):
                self._require_no_dependents(run, job)
            pending = self._request_save(run, book, settings, deadline, stop=stop)
            book = replace(book, pending=pending)
        sign = completion_of(pending.sign, run, self._slurm)
        try:
            image = self._wait(run, sign, pending, book, deadline)
            if is_resumed:
                image = _dated_by_sign(image, sign, pending)
        except _DiedOfSignalError:
            self._write(run.job, replace(book, dies=True))
            raise
        except CheckpointError:
            self._continue_after_failure(run, pending, settings)
            raise
        images = (image, *book.images)[:2]
        signs = {i.number: book.signs.get(i.number, pending.sign) for i in images}
        self._write(run.job, replace(book, pending=None, images=images, signs=signs,
                                     number=image.number))  # fmt: skip
        if stop and not isinstance(sign, ScriptEnded):
            self._hold(run, deadline)
        return image

    def _wait_for_traps(self, run: JobRun, deadline: float) -> SlurmJob:
        """Wait until the run has had the time to set its traps. Returns its job."""
        try:
            job = self._look(run.job)
        except SlurmError as error:
            raise CheckpointError(f"job {run.label} cannot be signalled: {error}") from error
        # Slurm signals a job, and not a run. This save may have been queued for minutes: if the job
        # runs again since, its new script may have set no trap yet, and would die of the signal.
        job = _require_same_run(run, job)
        started_at = max(run.started, job.start)
        wait_s = min(started_at + MIN_RUN_TIME_S, deadline - MIN_RUN_TIME_S) - self._clock()
        if wait_s > 0:
            # The start may lie in the future, if the clock was set back since.
            self._sleep(min(wait_s, MIN_RUN_TIME_S))
        return job

    def _check_script(
        self, run: JobRun, job: SlurmJob, book: Book, settings: SignalSettings
    ) -> Book:
        """Return the book with ``dies``. Raises CheckpointError if the signal would end the script.

        ``scope=full`` signals the script's shell as well, so it needs the same check.
        """
        names = {settings.signal, settings.stop_signal or settings.signal}
        if book.dies is None and job.batch and names - HARMLESS_SIGNALS:
            try:
                script = self._slurm.batch_script(run.job)
            except SlurmError as error:
                # We could not look. A signal now might end the job, so the next try looks again.
                raise CheckpointError(
                    f"no answer to a look at the batch script of job {run.label}: {error}"
                ) from error
            is_relayed = has_relay(script)
            dies = not is_relayed and dies_of_signals(script)
            book = replace(book, dies=dies, is_relayed=is_relayed)
        if book.dies:
            raise CheckpointError(f"job {run.label}: {UNCAUGHT}")
        return book

    def _require_no_dependents(self, run: JobRun, job: SlurmJob) -> None:
        """Raises CheckpointError if jobs wait for the end of the run, which would be its save.
        slurmctld lets them start, or never start, at once and not after our requeue (measured on
        22.05).
        """
        try:
            waiting = dependents_of(job, self._slurm)
        except SlurmError as error:
            raise CheckpointError(
                f"no answer to a look at the jobs that depend on job {run.label}: {error}"
            ) from error
        if waiting:
            raise CheckpointError(
                f"job {waiting[0].label} depends on the end of job {run.label}, so job {run.label}"
                " cannot save itself by ending: use saved=line:TEXT or saved=file:PATH"
            )

    def _hold(self, run: JobRun, deadline: float) -> None:
        """Send SIGSTOP, and wait until Slurm shows the job as stopped. A run that has ended needs
        neither.
        """
        job = self._job(run)
        # A program may end right after its sign. Its save is whole, and the requeue works after the
        # end.
        if job is not None and job.restarts == run.attempt and job.states & _OVER:
            return
        # The job may run again since the sign.
        _require_same_run(run, job)
        self._send(run, "STOP", full=True)
        # Wait, or the requeue may overtake the SIGSTOP. The processes would then be stopped while
        # Slurm ends them, and would not react to SIGTERM until KillWait is over (measured on
        # 22.05).
        give_up_at = min(self._clock() + STOP_TIMEOUT_S, deadline)
        while self._clock() < give_up_at:
            job = self._job(run)
            if job is None or job.restarts != run.attempt or job.states & _NOT_RUNNING:
                return
            self._sleep(POLL_EVERY_S)
        log.info("job is not seen as stopped job=%s", run.label)

    def _continue_after_failure(self, run: JobRun, save: Save, settings: SignalSettings) -> None:
        """Send SIGCONT to a program that got ``stop_signal``. After a failed save the job is not
        moved, but a program that knows it will be moved may be waiting for that.
        """
        job = self._job(run)
        got_stop_signal = save.stop and settings.stop_signal not in (None, settings.signal)
        if (
            got_stop_signal
            and job is not None
            and job.restarts == run.attempt
            and "RUNNING" in job.states
        ):
            with contextlib.suppress(CheckpointError):
                self._send(run, "CONT", full=True)

    def _request_save(
        self, run: JobRun, book: Book, settings: SignalSettings, deadline: float, *, stop: bool
    ) -> Save:
        sign = completion_of(settings.saved, run, self._slurm)
        if isinstance(sign, ScriptEnded) and not stop:
            # A periodic save must not end the job.
            raise CheckpointError(
                f"job {run.label} would end by saving itself, so it is saved only before a move"
            )
        save = Save(
            attempt=run.attempt, submitted=run.submitted, asked=self._clock(),
            until=deadline - POLL_EVERY_S, stop=stop, sign=settings.saved, mark=sign.mark(),
        )  # fmt: skip
        # Write before the signal: after a crash we find the pending save, and do not send the
        # signal a second time.
        self._write(run.job, replace(book, pending=save))
        try:
            self._send_save(run, settings, book, stop=stop)
        except CheckpointError:
            # The program may not have got the signal, so the next try must send it.
            with contextlib.suppress(CheckpointError):
                self._write(run.job, replace(book, pending=None))
            raise
        return save

    def _send_save(self, run: JobRun, settings: SignalSettings, book: Book, *, stop: bool) -> None:
        name = (settings.stop_signal or settings.signal) if stop else settings.signal
        if book.is_relayed:
            self._send(run, RELAYED_STOP if stop else RELAYED_SAVE, full=True)
        else:
            self._send(run, name, full=settings.scope == "full")

    def _wait(
        self, run: JobRun, sign: Completion, save: Save, book: Book, deadline: float
    ) -> Image:
        longest_save_s = max((i.seconds for i in book.images), default=0.0)
        now, asked_at = self._clock(), save.asked
        is_late = now >= save.until
        # After a time-out the signal may be lost, or the program may have dropped it.
        resend_at = now if is_late else now + max(RESEND_AFTER_S, 3 * longest_save_s)
        while True:
            job = self._job(run)
            size = sign.shows(save.mark, job, run)
            if size is not None:
                break
            self._require_running(run, job)
            now = self._clock()
            if now + POLL_EVERY_S >= deadline:
                raise CheckpointError(
                    f"job {run.label} showed no {sign} in {brief(now - save.asked)}"
                )
            if now >= resend_at and job is not None and job.states & _HAS_PROCESSES:
                self._send_save(run, settings_of(self._settings, run), book, stop=save.stop)
                asked_at, resend_at = now if is_late else asked_at, deadline
            self._sleep(POLL_EVERY_S)
        now = self._clock()
        if isinstance(sign, ScriptEnded) and job is not None and job.end:
            # The script may have ended long before we looked. Later saves are planned by how long
            # this save took.
            now = min(max(job.end, asked_at), now)
        return Image(
            job=run.job, label=run.label, attempt=run.attempt, number=book.number + 1,
            method=self.name, node=run.nodes[0] if run.nodes else "", taken=now,
            seconds=now - asked_at, size=size, uid=run.uid, submitted=run.submitted,
        )  # fmt: skip

    def _job(self, run: JobRun) -> SlurmJob | None:
        try:
            return self._look(run.job)
        except SlurmError as error:
            log.info("slurmctld does not show the job job=%s error=%s", run.label, error)
            # The failure does not mean that the run has ended, so take it as running. The deadline
            # bounds how long.
            return SlurmJob(id=run.job, states=frozenset({"RUNNING"}), restarts=run.attempt)

    def _require_running(self, run: JobRun, job: SlurmJob | None) -> None:
        if job is None or job.restarts != run.attempt:
            raise CheckpointError(f"job {run.label} ended or restarted before it had saved itself")
        if job.states & {"RUNNING", "STOPPED", "COMPLETING", "SUSPENDED"}:
            return
        ended = f"job {run.label} ended without having saved itself"
        if job.died_of in save_signals(self._settings, run):
            raise _DiedOfSignalError(f"{ended} ({DIED})")
        raise CheckpointError(f"{ended} ({' '.join(sorted(job.states))})")

    def release(self, run: JobRun) -> None:
        """Send SIGCONT to all processes of the job."""
        self._send(run, "CONT", full=True)

    def images(self, run: JobRun) -> Sequence[Image]:
        """Return the images that can still be used, newest first."""
        book = self._book_of(run)
        if book is None:
            return ()
        return tuple(image for image in book.images if self._fault(book, image) is None)

    def origin(self, run: JobRun) -> Origin | None:  # noqa: ARG002
        """Return None: only the program knows from which save it was restarted."""
        return None

    def hindered(self, run: JobRun) -> str:
        """Return why the run cannot be saved, if the signal of its pending save has ended it. This
        is known also after a crash that came between the signal and the end.
        """
        book, job = self._book_of(run), self._job(run)
        pending = None if book is None else book.pending
        if pending is None or job is None or not job.has_ended:
            return ""
        is_same_run = pending.attempt == run.attempt == job.restarts
        # A person may have sent the same signal long after our save was given up.
        is_ours = job.end <= pending.until + STOP_TIMEOUT_S
        died = job.died_of in save_signals(self._settings, run) and "CANCELLED" not in job.states
        return DIED if is_same_run and is_ours and died else ""

    def is_at_work(self, run: JobRun) -> bool:  # noqa: ARG002
        """Return False: the program has no launcher that reports it."""
        return False

    def is_silent(self, run: JobRun) -> bool:  # noqa: ARG002
        """Return False: the program has no launcher that could report."""
        return False

    def verify(self, image: Image) -> None:
        """Check that the save's file exists, belongs to the user, and is not empty. Raises
        CheckpointError.
        """
        book = self._read(image.job)
        if book is None or image not in book.images:
            raise CheckpointError(f"save {image.number} of job {image.label} has no record")
        if (fault := self._fault(book, image)) is not None:
            raise CheckpointError(f"save {image.number} of job {image.label}: {fault}")

    def remove(self, job: int) -> None:
        """Remove only our record. The files that the application saved belong to its user."""
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
        return self._directory / f"{job}.json"

    def _book_of(self, run: JobRun) -> Book | None:
        """Return the record of this job; None without a record, or if an earlier job left it."""
        book = self._read(run.job)
        return book if book is not None and book.is_of(run) else None

    def _read(self, job: int) -> Book | None:
        try:
            return msgspec.json.decode(self._path(job).read_bytes(), type=Book)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise CheckpointError(
                f"{self._path(job)} cannot be read: {reason_of(error)}"
            ) from error

    def _write(self, job: int, book: Book) -> None:
        """Replace the file atomically; it is on the disk when this returns."""
        path = self._path(job)
        try:
            self._directory.mkdir(mode=statedir.DIRECTORY, exist_ok=True)
            writing.replace(path, msgspec.json.encode(book))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error


def _require_same_run(run: JobRun, job: SlurmJob | None) -> SlurmJob:
    """Return the job if a signal would reach the processes of that run. Raises CheckpointError."""
    if job is None or job.restarts != run.attempt:
        raise CheckpointError(f"job {run.label} gets no signal, because that run of it is over")
    # SUSPENDED is no obstacle, because the list may be older than our resume for this save. Slurm
    # itself refuses to signal a suspended job.
    if not job.states & _HAS_PROCESSES or "CONFIGURING" in job.states:
        states = " ".join(sorted(job.states))
        raise CheckpointError(f"job {run.label} gets no signal, because it is {states}")
    return job


def _dated_by_sign(image: Image, sign: Completion, save: Save) -> Image:
    """Date the image of a save that was requested before a crash. It may have been complete long
    before we looked for its sign.
    """
    shown_at = sign.shown_at()
    if shown_at is None:
        return image
    # Bounded, because the clock of the file's server may differ from ours.
    saved_at = min(max(shown_at, save.asked), image.taken)
    return replace(image, taken=saved_at, seconds=saved_at - save.asked)
