"""One run of a job: start or restore it, serve the head's requests, and end as it ends.

While a job is stopped after its image ("held"), this process stays, and with it the batch step: the
job is RUNNING in Slurm until the head has requeued it. So no exit of ours can be taken for the
job's own, and no option of the cluster's is needed. When no requeue comes, the job is brought back
here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from slurm_elastic.machine.ckptroot import caller as callers
from slurm_elastic.machine.ckptroot import journal, outputs
from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.images import OpenFile
from slurm_elastic.machine.ckptroot.inventory import State, check_locked
from slurm_elastic.machine.ckptroot.manifest import Manifest
from slurm_elastic.machine.ckptroot.promise import EVERY, Promise
from slurm_elastic.machine.ckptroot.quota import Quota, allocated
from slurm_elastic.machine.ckptroot.rights import as_user
from slurm_elastic.machine.ckptroot.signals import SIGNALS, Relay
from slurm_elastic.machine.ckptroot.site import Refused, Site
from slurm_elastic.machine.ckptroot.stage import Stage, move
from slurm_elastic.machine.ckptroot.store import Meta, Request, Store

_AGAIN = 10.0
"""Seconds until slurmctld is asked again about a held job that nobody requeued."""
_WHY = 500
"""Characters of the reason why an image is not used that the head is told, and tells on."""
_SENT = (signal.SIGTERM, signal.SIGKILL)
_ENDING = {"COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "FAILED", "NODE_FAIL", "PENDING",
           "COMPLETED", "DEADLINE", "OUT_OF_MEMORY", "REQUEUED", "GONE"}  # fmt: skip


class Method(Protocol):
    """A way to save processes; ``criu.Criu`` and ``dmtcp.Dmtcp``."""

    name: str
    stands_still: bool
    """Whether the tasks do so from a dump on until they go on or are stopped."""

    @property
    def pid(self) -> int:
        """The payload's first process."""

    def start(self) -> None:
        """Start the payload."""

    def lay_out(self, image: Path, /) -> None:
        """Before ``restore``: the files of a verified image that no other node has, or Refused."""

    def restore(self, image: Path, manifest: Manifest) -> None:
        """Bring back what the image holds, or Refused."""

    def alone(self, image: Path, /) -> frozenset[str]:
        """The files that a verified image's tasks write, but do not append to."""

    def need(self) -> int:
        """About how many bytes an image of now would have; Refused where none is possible."""

    def locked(self) -> dict[str, State]:
        """After a dump: the files that the tasks keep locked, as they are."""

    def clocks(self) -> dict[str, int] | None:
        """After a dump: what the tasks' own clocks say (ns); None where they have none."""

    def bound(self) -> dict[str, list[int]]:
        """After a dump: the CPUs of the threads that have not all of their step's."""

    def connections(self) -> list[str]:
        """After a dump: the far ends of the TCP connections that the tasks have."""

    def partners(self) -> list[str]:
        """The far ends of connections for which a save is refused, unless it closes them."""

    def dump(self, image: Path, within: float, most: int, closes: bool, /) -> dict[str, int]:
        """Save, into files of at most that many bytes; sizes of files open for writing. Then
        ``gather``, and ``go_on`` or ``stop``. Refused: unharmed. ``closes``: TCP connections are
        closed in the image, and not where the tasks run on.
        """

    def gather(self, image: Path, most: int, /) -> None:
        """After a dump: all of it is in the image, of at most that many bytes, or Refused."""

    def go_on(self) -> None:
        """Run on after a dump."""

    def stop(self) -> None:
        """End after a dump."""

    def signal(self, number: int) -> None:
        """To the payload's first process."""

    def ended(self) -> int | None:
        """The payload's wait status."""

    def versions(self) -> dict[str, str]:
        """The versions of the programs that make the images."""

    def close(self) -> None:
        """Leave nothing running."""


class Session:
    """Drives one run: ``begin``, ``run``, ``leave``."""

    def __init__(
        self, site: Site, caller: Caller, attempt: int, store: Store, meta: Meta, method: Method
    ) -> None:
        self._site = site
        self._caller = caller
        self._attempt = attempt
        self._store = store
        self._meta = meta
        self._method = method
        self._held_until: float | None = None
        self._answered = ""
        self._answer: dict[str, object] = {}
        self._keep = store.path / "keep"
        self._quota = Quota(site, caller.job, caller.uid, store.path)
        self._stage = Stage(site, caller.job, self._say)
        self._still = False
        self._promise = Promise(
            method, store, site.key, lambda need: self._quota.room(need), self._say
        )
        self._shared: dict[str, int] = {}
        self._stays = ""
        self._node = caller.node or os.uname().nodename
        self._relay = Relay(os.getppid())
        self._origin: tuple[int, str] = (0, "")

    def begin(self) -> None:
        """Restore the newest image that can be, else start anew. Refused: nothing was started."""
        before = self._store.request()
        self._answered = before.id if before else ""
        for image in self._store.images() if self._attempt else []:
            try:
                self._restore(image)
            except Exception as error:  # noqa: BLE001 - whatever it is, there is an older one
                self._not_used(image, error)
                continue
            self._publish("running")
            return
        if self._attempt:
            self._say("no image to go on from: the job starts anew")
            self._shared = dict.fromkeys(self._meta.outputs, 0)
            for line in outputs.clear(self._keep, self._meta.outputs, self._caller):
                self._say(line)
        self._method.start()
        self._publish("running")

    def run(self) -> int:
        """The payload's wait status, or that of the signal that ended a held job."""
        look = promise = 0.0
        while True:
            for number in self._relay.wait(min(self._site.poll, 0.5)):
                self._take(number)
            if self._held_until is not None and self._hold_ends():
                return int(signal.SIGTERM)
            status = self._method.ended() if self._held_until is None else None
            if status is not None:
                return status
            if time.monotonic() >= look:
                look = time.monotonic() + self._site.poll
                self._serve(self._store.request())
            if self._held_until is None and time.monotonic() >= promise:
                promise = time.monotonic() + EVERY
                self._reserve()

    def abandon(self, error: Exception) -> None:
        """After a ``begin`` that failed: nothing of ours stays, images of earlier runs do."""
        self._method.close()
        self._stage.close()
        self._origin = (0, str(error))
        self._publish("abandoned")

    def leave(self, status: int) -> None:
        """After ``run``, with what it said: the job's directory goes, unless another run is to go
        on from it, or might.
        """
        try:
            self._method.close()
            self._stage.close()
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _SENT
            if (self._relay.terminated or killed) and not self._is_over():
                self._say("the run has ended; its images stay for the next")
                self._publish("ended")
                return
            self._store.remove()
            self._quota.forget()
        except Exception as error:  # noqa: BLE001 - the job's own exit code comes first
            self._say(f"the job's directory stays for the sweeper: {error}")

    def _restore(self, image: Path) -> None:
        """Verify the image and bring it back; Refused says why that is not possible."""
        begun = time.monotonic()
        manifest = manifests.read(image, self._site.key)
        self._check(manifest, image)
        manifests.compare(image, manifest)
        with as_user(self._caller.uid, self._caller.gid, self._caller.groups):
            check_locked(manifest.locked)
        self._method.lay_out(image)
        files, alone = self._meta.outputs, self._method.alone(image)
        written = [OpenFile(path, n, path not in alone) for path, n in manifest.writing.items()]
        for line in outputs.give_back(self._keep, files, written, self._caller, manifest.number):
            self._say(line)
        self._method.restore(image, manifest)
        self._shared = manifest.writing
        self._origin = (manifest.number, self._origin[1])
        seconds = time.monotonic() - begun
        self._say(f"goes on from image {image.name} on {self._node}, restored in {seconds:.3f} s")
        if manifest.closed:
            self._say(f"its connections are closed: {', '.join(manifest.closed)}")

    def _not_used(self, image: Path, error: Exception) -> None:
        """The head is told of the newest one alone: it is what the run was to go on from."""
        why = f"image {image.name} is not used: {error}"
        self._origin = (0, self._origin[1] or why)
        self._say(why)

    def _check(self, manifest: Manifest, image: Path) -> None:
        """That the image is this job's, for this user, and the one its directory says."""
        wanted = (self._site.cluster, self._caller.job, self._caller.uid, self._caller.gid,
                  self._method.name, image.name)  # fmt: skip
        found = (manifest.cluster, manifest.job, manifest.uid, manifest.gid, manifest.method,
                 str(manifest.number))  # fmt: skip
        if found != wanted:
            raise Refused(f"it is of {found}, not of {wanted}")

    def _take(self, number: int) -> None:
        """A signal that was meant for the payload and did not reach it by itself."""
        if self._held_until is None:
            self._method.signal(number)
        elif number != signal.SIGTERM:
            self._say(f"signal {number} came while the job was held: not delivered")

    def _hold_ends(self) -> bool:
        """Whether a held job's run is over; brings it back when nobody requeues it.

        Only slurmctld knows: a node that is cut off from it may hold a job that runs elsewhere.
        """
        late = self._held_until is not None and time.monotonic() > self._held_until
        if not late and not self._relay.terminated:
            return False
        found = callers.ask(self._site, self._caller.job, 5.0)
        if found is not None and ending(found, self._attempt):
            return True
        if self._relay.terminated and found is not None and found.preempted:
            return True  # the head has it end, so that Slurm itself requeues it
        # If slurmctld knows of no end, the user has sent that signal himself.
        self._relay.terminated = self._relay.terminated and found is None
        if late and found is not None and _runs(found, self._attempt):
            self._say(f"no requeue in {self._site.hold:.0f} s: the job goes on here")
            self._bring_back()
        elif late:
            self._stay_held(found)
        return False

    def _stay_held(self, found: callers.JobState | None) -> None:
        """Ask again later; said once."""
        self._held_until = time.monotonic() + min(self._site.hold, _AGAIN)
        said = f"slurmctld says {found.state}" if found else "slurmctld does not answer"
        if said != self._stays:
            self._say(f"no requeue in {self._site.hold:.0f} s, but {said}: the job stays held")
            self._stays = said

    def _bring_back(self) -> bool:
        """A held job runs on where it was stopped; whether that worked."""
        for image in self._store.images():
            try:
                self._restore(image)
            except Exception as error:  # noqa: BLE001 - whatever it is, there is an older one
                self._say(f"image {image.name} could not be brought back: {error}")
                continue
            self._held_until = None
            self._stays = ""
            self._publish("running")
            return True
        self._held_until = time.monotonic() + self._site.hold
        self._publish("held")
        return False

    def _serve(self, request: Request | None) -> None:
        if request is None or request.id == self._answered:
            return
        self._answered = request.id
        try:
            message, number = self._carry_out(request)
        except Exception as error:  # noqa: BLE001 - a request must never end the job
            self._say(f"{request.verb}: {str(error) or type(error).__name__}")
            self._answer = {"request": request.id, "ok": False, "message": str(error)}
        else:
            self._say(message)
            self._answer = {"request": request.id, "ok": True, "message": message, "image": number}
        self._publish("running" if self._held_until is None else "held")

    def _carry_out(self, request: Request) -> tuple[str, int]:
        match request.verb:
            case "checkpoint":
                return self._checkpoint(request)
            case "release":
                if self._held_until is not None:
                    self._release()
                return "the job goes on here", 0
        raise Refused(f"unknown request {request.verb!r}")

    def _release(self) -> None:
        """The head wants the job to go on, unless slurmctld has given it another run since."""
        found = callers.ask(self._site, self._caller.job, 5.0)
        if found is not None and ending(found, self._attempt):
            raise Refused(f"slurmctld says {found.state}, restart {found.restarts}")
        if not self._bring_back():
            raise Refused("no image could be brought back")

    def _checkpoint(self, request: Request) -> tuple[str, int]:
        """Save the job. Refused, and the job goes on, wherever that is not possible in time."""
        stop, within = request.stop, request.within
        self._promise.closes = request.closes
        if self._held_until is not None:
            newest = self._store.images()
            if stop and newest:
                return f"the job is held already, image {newest[0].name}", int(newest[0].name)
            raise Refused("the job is held")
        begun, image = time.monotonic(), self._store.new_image()
        try:
            manifest = self._save(image, request)
            manifest = replace(manifest, seconds=time.monotonic() - begun)
            image = self._store.accept(image, manifest)
            late = time.monotonic() - begun > within
        except Exception as error:
            self._go_on()
            with contextlib.suppress(OSError):
                self._store.drop_image(image)
            self._settle()
            raise Refused(f"no checkpoint: {error}") from error
        self._settle()
        if stop and not late:
            self._held_until = time.monotonic() + self._site.hold
            self._still = False
            self._method.stop()
        else:
            self._go_on()
        if late:
            raise Refused(f"image {image.name} is good, but late by the deadline: the job goes on")
        text = f"image {image.name}: {manifest.size} bytes in {manifest.seconds:.3f} s"
        return text, manifest.number

    def _save(self, image: Path, request: Request) -> Manifest:
        """Write the image, which is on disk then. The tasks go on as soon as it is written, or
        stand still afterwards where they are to be stopped.
        """
        need = self._method.need() + self._new_output()
        room = self._quota.room(need).size
        with contextlib.ExitStack() as stack:
            made, most = image, room
            if self._method.stands_still and not request.stop:
                directory = self._stage.directory(image, need, room)
                made, most = stack.enter_context(directory)
            writing = self._method.dump(made, request.within, most, request.closes)
            self._still = True
            number = int(image.name.partition(".")[0])
            manifest = self._complete(made, number, writing, most, request.closes)
            if not request.stop:  # what is still to be done takes as long as the image is large
                self._go_on()
            move(made, image, room)
        self._quota.settle()
        return replace(manifest, files=manifests.digests(image, room))

    def _go_on(self) -> None:
        """The tasks, if they stand still."""
        if self._still:
            self._still = False
            self._method.go_on()

    def _reserve(self) -> None:
        """A look at what the next save will take, or what is in its way."""
        if self._promise.look():
            self._publish("running")

    def _settle(self) -> None:
        """Older images or a half-made one went; what is left is small, or said at the next save."""
        with contextlib.suppress(OSError, Refused):
            self._quota.settle()

    def _new_output(self) -> int:
        """Bytes of data that the copies of the outputs lack."""
        return outputs.new(self._keep, self._meta.outputs, self._caller)

    def _complete(
        self, image: Path, number: int, writing: dict[str, int], room: int, closes: bool
    ) -> Manifest:
        """All that belongs to an image, of at most ``room`` bytes, while the tasks stand still; the
        digests are yet to come.
        """
        # CRIU gives no size of what can only be appended to, as slurmstepd opens outputs.
        sizes = outputs.sizes(self._meta.outputs, self._caller) | writing
        self._method.gather(image, max(room - allocated(image), 0))
        room -= allocated(image)
        outputs.settle(self._keep, self._meta.outputs, self._shared)
        outputs.keep(self._keep, self._meta.outputs, sizes, self._caller, room)
        self._shared = {}
        return Manifest(
            cluster=self._site.cluster,
            job=self._caller.job,
            label=self._meta.label,
            attempt=self._attempt,
            number=number,
            method=self._method.name,
            uid=self._caller.uid,
            gid=self._caller.gid,
            node=self._node,
            taken=time.time(),
            pid=self._method.pid,
            versions=self._method.versions(),
            files={},
            writing=sizes,
            locked=self._method.locked(),
            clocks=self._method.clocks(),
            bound=self._method.bound(),
            closed=self._method.connections() if closes else None,
            seconds=0.0,
        )

    def _is_over(self) -> bool:
        """Whether slurmctld knows that the job ends. A machine that shuts down ends all processes,
        too, while the job is still RUNNING there, and will go on elsewhere.
        """
        for _ in range(5):
            found = callers.ask(self._site, self._caller.job, 3.0)
            if found is not None:
                over = found.state in _ENDING - {"PENDING", "REQUEUED", "NODE_FAIL"}
                return over and found.restarts == self._attempt
        return False

    def _publish(self, state: str) -> None:
        image, why = self._origin
        with contextlib.suppress(OSError):  # a full disk must not end the job
            self._store.publish(
                state, job=self._caller.job, label=self._meta.label, attempt=self._attempt,
                uid=self._caller.uid, node=self._node, method=self._method.name,
                answer=self._answer, origin={"image": image, "why": journal.shown(why)[:_WHY]},
                hindered=journal.shown(self._promise.hindered)[:_WHY],
            )  # fmt: skip

    def _say(self, line: str) -> None:
        self._store.say(journal.shown(line))
        journal.tell(journal.NOTICE, f"job {self._caller.job}: {line}")


def finish(status: int) -> int:
    """End as the payload did: by the same signal, or with its exit code."""
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.flush()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.kill(os.getpid(), number)
    return 128 + number


def _runs(found: callers.JobState, attempt: int) -> bool:
    return found.state == "RUNNING" and found.restarts == attempt


def ending(found: callers.JobState, attempt: int) -> bool:
    """Whether this run is over for Slurm, or soon will be."""
    return found.restarts > attempt or found.state in _ENDING
