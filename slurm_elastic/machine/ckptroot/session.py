"""The course of one run: start or restore the job, serve the head, and exit as the job does.

While a job is held after its image, this process stays, and with it the batch step. For Slurm the
job stays RUNNING until the head has requeued it, our exit cannot be mistaken for the job's own, and
the cluster needs no option for this. If it is not requeued, the job is restored here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from . import job_state, log, outputs, restoring
from .hold import UNFIT_S, JobHold, Outcome
from .image_wait import ImageWait, RunEnded
from .instructions import of_node
from .next_save import CHECK_EVERY_S, NextSave
from .run import Run
from .saving import RunSaves
from .signals import SIGNALS, Relay
from .site import RequestRefused, WrongImage
from .store import HeadRequest, Replaced

_MAX_REASON_LENGTH = 500
"""The length of a reason that we send to the head, which passes it on."""
_SLURMS_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
_OF_INSTRUCTIONS = (signal.SIGILL, signal.SIGSEGV)
_YOUNG_S = 60.0
"""Such an end counts as the processor's fault for so many seconds after a restore."""
_MAX_TRIED_NODES = 3
"""If so many nodes could not use the newest image, the job continues from an older image."""


class Session:
    """Drives one run. Call ``begin``, ``run``, ``leave`` in this order."""

    def __init__(self, run: Run, relay: Relay) -> None:
        self.hold = JobHold(run, relay)
        self.next_save = NextSave(run)
        self._run = run
        self._relay = relay
        self._saves = RunSaves(run)
        self._answered_id = ""
        self._answer: dict[str, object] = {}
        self._origin: tuple[int, str] = (0, "")
        self._forgotten = set[int]()
        # The error with which the payload ended after the loss of a node, while the job waits.
        self._end_at_loss: int | None = None
        self._is_replaced = False
        # The job is held because this node cannot continue it, but another node may.
        self._is_unfit = False
        self._has_images_for_others = False

    def begin(self, wait: ImageWait | None = None) -> None:
        """Restore the newest image, or start over if there is none. If this node cannot use it,
        hold the job for another node. If it raises RequestRefused, nothing was started.

        ``wait``: for errors that pass.
        """
        run, before = self._run, self._run.store.request()
        self._answered_id = before.id if before else ""
        wait = wait or ImageWait(run.caller.job)
        wait.patient = run.attempt > 0
        if before and before.verb == "forget":
            self._forget_images(before)
        self._continue_or_start(wait, may_go_elsewhere=True)

    def _forget_images(self, request: HeadRequest) -> None:
        """Remove the images of a run that the head does not want to be used."""
        run = self._run
        for manifest in run.store.manifests():
            if manifest.attempt == request.attempt:
                self._forgotten.add(manifest.number)
                self._refuse(f"image {manifest.number} is not used: {request.reason}")
                run.store.drop_image(run.store.path / "images" / str(manifest.number))

    def _continue_or_start(self, wait: ImageWait, *, may_go_elsewhere: bool) -> None:
        """Restore an image, hold the job for another node if it ``may_go_elsewhere``, or start
        over. An image is only passed over if it is wrong, or enough nodes could not use it.
        """
        run = self._run
        try:
            # Also in a run that Slurm calls the first: ``meta_of`` has removed others' images.
            images = _retry(wait, run.store.images)
        except OSError as error:
            # We do not know that there are none.
            self._refuse(f"the images cannot be listed: {error}")
            self._wait_elsewhere()
            return
        may_go_elsewhere &= len(run.store.tried_nodes()) < _MAX_TRIED_NODES
        for image in images:
            if int(image.name) in self._forgotten:
                continue  # it could not be removed
            refusal = self._restore(image, wait)
            if refusal is None:
                return
            # Report only the newest image to the head: the run should have continued from it.
            self._refuse(f"image {image.name} is not used: {refusal}")
            if node := run.method.lost():
                self._wait_for_requeue(node)
                return
            if may_go_elsewhere and not isinstance(refusal, WrongImage):
                self._wait_elsewhere()
                return
        self._start(again=run.attempt > 0 or bool(images))

    def _refuse(self, reason: str) -> None:
        self._origin = (0, self._origin[1] or reason)
        self._run.report(reason)

    def _restore(self, image: Path, wait: ImageWait) -> Exception | None:
        """Restore the image. Return why it cannot be restored, None if it was."""
        try:
            number = _retry(wait, lambda: restoring.restore(self._run, image))
        except RunEnded:
            raise
        except Exception as error:  # noqa: BLE001 - the caller decides by its kind
            return error
        self._origin = (number, self._origin[1])
        self._publish()
        return None

    def _wait_elsewhere(self) -> None:
        """Hold the job, which this node cannot continue, until the head requeues it to another. If
        no requeue comes, it begins here.
        """
        run = self._run
        run.store.tried_nodes([*run.store.tried_nodes(), run.node])
        run.report("another node may be able to continue it: the job waits for a requeue")
        self._is_unfit = True
        self.hold.begin(at_least_s=UNFIT_S)
        self._publish()

    def _start(self, *, again: bool) -> None:
        """Start the job from its beginning. ``again``: it has written outputs before."""
        run = self._run
        if again:
            run.report("no image to continue from: the job starts over")
            run.start_over()
            for line in outputs.clear(run.copies, run.meta.outputs, run.caller):
                run.report(line)
        run.instructions = of_node()
        run.method.start()
        self._publish()

    def run(self) -> int:
        """Return the payload's wait status, or a wait status of SIGTERM if a held job ended, or
        another run has replaced this one.
        """
        try:
            return self._drive()
        except Replaced as end:
            # This node had lost its network. Slurm will have our step killed; until then its
            # program would write the files of the job that runs elsewhere.
            self._is_replaced = True
            self._run.report(f"this run ends: {end}")
            return int(signal.SIGTERM)

    def _drive(self) -> int:
        site = self._run.site
        next_poll = next_check = 0.0
        while True:
            for number in self._relay.wait(min(site.poll, 0.5)):
                self.pass_on(number)
            self._relay.wake_sudo()
            status = self._end_of_hold() if self.is_held else self._end_of_payload()
            if status is not None:
                return status
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + site.poll
                self.serve(self._run.store.request())
            if not self.is_held and time.monotonic() >= next_check:
                next_check = time.monotonic() + CHECK_EVERY_S
                self.look_ahead()

    def _end_of_hold(self) -> int | None:
        """Return the wait status if the held job has ended; restore it if it continues here."""
        outcome = self.hold.outcome()
        if outcome is Outcome.IS_OVER:
            return int(signal.SIGTERM)
        if outcome is Outcome.GOES_ON and self._is_unfit:
            return self._continue_on_this_node()
        if outcome is Outcome.GOES_ON:
            status, self._end_at_loss = self._end_at_loss, None
            return None if self._restore_here() else status
        return None

    def _continue_on_this_node(self) -> int | None:
        """No other node came. If the program has ended, return its wait status; else start the
        job here.
        """
        self._is_unfit = False
        self.hold.end()
        if self._end_at_loss is not None:
            return self._end_at_loss
        self._origin = (0, "")
        self._continue_or_start(ImageWait(self._run.caller.job, 0.0), may_go_elsewhere=False)
        return None

    def _has_died_of_processor(self, status: int) -> bool:
        """Return whether the program may have used an instruction that this processor lacks."""
        died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) - 128
        is_young = self._origin[0] > 0 and self._run.seconds < _YOUNG_S
        return is_young and self._run.has_changed_processor and died_of in _OF_INSTRUCTIONS

    def _end_of_payload(self) -> int | None:
        """Return the payload's wait status after it has ended."""
        method = self._run.method
        status = method.wait_status()
        if status is None:
            if not method.pid:
                self._recover()
            return None
        if self._has_died_of_processor(status):
            self._end_at_loss, self._has_images_for_others = status, True
            self._refuse(f"it died on this kind of processor: wait status {status}")
            self._wait_elsewhere()
            return None
        # mpirun ends with an error if a node is lost. Slurm notices the loss later, and requeues
        # the job.
        if not status or self._relay.terminated or not (node := method.lost()):
            return status
        self._end_at_loss = status
        self._wait_for_requeue(node)
        return None

    def abandon(self, error: Exception) -> None:
        """Clean up after a failed ``begin``. Images of earlier runs stay."""
        self._close()
        self._origin = (0, str(error))
        self._publish("abandoned")

    def leave(self, status: int) -> None:
        """After ``run``, with its result: remove the job's directory, unless another run may
        continue from it. The sweeper removes it if none does.
        """
        run = self._run
        # A stopped sudo would not notice our exit, and the step would never end.
        self._relay.wake_sudo(0.0)
        try:
            self._close()
            if self._is_replaced:
                return
            was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _SLURMS_SIGNALS
            was_ended = self._relay.terminated or was_killed
            # A held job was saved for its next run. Slurm may end this run before the head has
            # verified the image and requeued the job. If no run follows, the sweeper cleans up.
            if was_ended and (self.is_held or not self._is_over()):
                self._keep_for_next()
                return
            # A node that had lost its network may end a run which Slurm has given up. Images are
            # only removed with slurmctld's word that no other run needs them.
            if self._has_images_for_others or (not was_ended and not self._is_current()):
                self._keep_for_next()
                return
            run.store.remove()
            run.quota.forget()
        except Exception as error:  # noqa: BLE001 - the job's own exit code comes first
            run.report(f"the job's directory stays for the sweeper: {error}")

    def _keep_for_next(self) -> None:
        self._run.report("the run has ended; its images stay for the next")
        self._publish("ended")

    def _is_current(self) -> bool:
        """Return whether slurmctld knows that this is still the job's run."""
        state = job_state.ask(self._run.site, self._run.caller.job, 3.0)
        return state is not None and state.is_current(self._run.attempt)

    def _close(self) -> None:
        self._run.method.close()
        self._saves.close()

    @property
    def is_held(self) -> bool:
        """Whether the job's tasks were stopped after an image."""
        return self.hold.until is not None

    def pass_on(self, number: int) -> None:
        """Pass on a signal that was meant for the payload and has not reached it directly."""
        if not self.is_held:
            self._run.method.signal(number)
        elif number != signal.SIGTERM:
            self._run.report(f"signal {number} came while the job was held: not delivered")

    def look_ahead(self) -> None:
        """Check the size of the next save, and whether an obstacle would prevent it. Replaced if
        another run of the job has begun.
        """
        with contextlib.suppress(OSError):
            self._run.store.require_ours()
        if self.next_save.check():
            self._publish()

    def serve(self, request: HeadRequest | None) -> None:
        """Carry out a new request and answer it."""
        if request is None or request.id == self._answered_id:
            return
        try:
            self._run.store.require_ours()
        except OSError:
            return  # unknown whether we are the run that shall answer: look again
        self._answered_id = request.id
        try:
            message, number = self.carry_out(request)
        except Exception as error:  # noqa: BLE001 - a request must never end the job
            self._run.report(f"{request.verb}: {str(error) or type(error).__name__}")
            self._answer = {"request": request.id, "ok": False, "message": str(error)}
        else:
            if message:
                self._run.report(message)
            self._answer = {"request": request.id, "ok": True, "message": message, "image": number}
        self._publish()

    def carry_out(self, request: HeadRequest) -> tuple[str, int]:
        """Carry out the request. Return a sentence about it, and the number of a new image (else
        0). RequestRefused if the request fails.
        """
        present_run = self._run.store.run
        if present_run is not None and request.run not in ("", present_run.token):
            raise RequestRefused("the request is for another run of the job")
        match request.verb:
            case "checkpoint":
                return self._checkpoint(request)
            case "release":
                if self.is_held:
                    self._release()
                return "the job continues here", 0
            case "hold":
                self.hold.extend()
                return "", 0
        raise RequestRefused(f"unknown request {request.verb!r}")

    def _checkpoint(self, request: HeadRequest) -> tuple[str, int]:
        """Save the job. If it cannot be saved in time, raise RequestRefused; the job continues."""
        self.next_save.closes = request.closes
        if self.is_held:
            newest = self._run.store.images()
            if request.stop and newest:
                return f"the job is held already, image {newest[0].name}", int(newest[0].name)
            raise RequestRefused("the job is held")
        manifest, is_late = self._saves.take(request)
        if request.stop and not is_late:
            # Held first: the end of the tasks must not count as the job's own.
            self.hold.begin(manifest.size)
            self._saves.stop()
        else:
            self._saves.resume()
        image = f"image {manifest.number}"
        if is_late:
            raise RequestRefused(f"{image} is good, but came after the deadline: the job continues")
        return f"{image}: {manifest.size} bytes in {manifest.seconds:.3f} s", manifest.number

    def _release(self) -> None:
        """Restore the held job, because the head asks for it.

        RequestRefused if slurmctld has started another run of the job since, or no image can be
        restored.
        """
        state = self.hold.ask()
        if state is not None and state.ends(self._run.attempt):
            raise RequestRefused(f"slurmctld says {state.state}, restart {state.restarts}")
        if not self._restore_here():
            raise RequestRefused("no image could be brought back")

    def _restore_here(self) -> bool:
        """Restore a held job on this node; return whether that worked."""
        images: list[Path] = []
        with contextlib.suppress(OSError):
            images = self._run.store.images()
        no_wait = ImageWait(self._run.caller.job)
        for image in images:
            refusal = self._restore(image, no_wait)
            if refusal is None:
                self._is_unfit, self._end_at_loss = False, None
                self.hold.end()
                break
            self._run.report(f"image {image.name} could not be brought back: {refusal}")
        else:
            self.hold.begin()
        self._publish()
        return not self.is_held

    def _wait_for_requeue(self, node: str) -> None:
        """Hold the job, because one of its nodes is lost: Slurm will notice that, and requeue the
        job.
        """
        self._run.report(f"{node} does not answer: the job waits until Slurm requeues it")
        self.hold.begin()
        self._saves.stop()
        self._publish()

    def _recover(self) -> None:
        """Use an older image, or start the job over, after a save has ended the tasks and could not
        restore them.
        """
        self._run.report(
            "the save has ended the job's processes, and they could not be brought back"
        )
        if self._restore_here():
            return
        if node := self._run.method.lost():
            self._wait_for_requeue(node)
            return
        self.hold.end()
        self._origin = (0, "a save has ended the job's processes")
        self._start(again=True)

    def _is_over(self) -> bool:
        """Return whether slurmctld knows that the job has ended."""
        for _ in range(5):
            state = job_state.ask(self._run.site, self._run.caller.job, 3.0)
            if state is not None:
                # A machine that shuts down ends all processes, too. Then the job is still RUNNING
                # in slurmctld, and will continue on another node.
                return state.ends_with(self._run.attempt)
        return False

    @property
    def _state(self) -> str:
        if not self.is_held:
            return "running"
        return "unfit" if self._is_unfit else "held"

    def _publish(self, state: str = "") -> None:
        run, (image, reason) = self._run, self._origin
        with contextlib.suppress(OSError):  # a full disk must not end the job
            run.store.publish(
                state or self._state,
                job=run.caller.job, label=run.meta.label, attempt=run.attempt, uid=run.caller.uid,
                submitted=run.submitted, node=run.node, method=run.method.name,
                answer=self._answer,
                origin={"image": image, "why": log.shown(reason)[:_MAX_REASON_LENGTH]},
                hindered=log.shown(self.next_save.hindered)[:_MAX_REASON_LENGTH],
            )  # fmt: skip


T = TypeVar("T")


def _retry(wait: ImageWait, step: Callable[[], T]) -> T:
    """Return the result of a step, after a wait if it raises OSError, which may pass."""
    while True:
        try:
            return step()
        except OSError as error:
            if not wait.retry_after_pause(str(error)):
                raise
            # A restore would take the line for another program's output.
            wait.take_back()


def finish(status: int) -> int:
    """Exit as the payload did: by the same signal, or with its exit code."""
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    # A core file would have root's memory of this program, not the payload's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.flush()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.kill(os.getpid(), number)
    return 128 + number
