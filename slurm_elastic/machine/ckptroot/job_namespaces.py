"""A job's own namespaces as seen from outside: its processes, and the talk with its process 1."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import job_init
from .payload import Payload
from .pinned_task import Owner, pinned
from .proc import processes
from .site import Refused


class JobNamespaces:
    """One job's namespaces. ``init`` is the number that its process 1 has on the node; ``mounts``
    and ``numbers`` are descriptors of its mounts and its process numbers.
    """

    def __init__(self, payload: Payload) -> None:
        self._ended: int | None = None
        self._uid = payload.uid
        self._way, self._middle = job_init.start(payload)
        self.init = int(self._answer(30.0)["init"])
        # Of the middle process, our own child, which we have not reaped: once that has reaped
        # process 1, its number may be anybody's.
        self.mounts = os.open(f"/proc/{self._middle}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            place = f"/proc/{self._middle}/ns/pid_for_children"
            self.numbers = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self.mounts)
            raise

    def tell(self, what: str, **more: object) -> None:
        """Have process 1 do something that it does not answer."""
        job_init.send(self._way, {"do": what, **more})

    def ask(self, what: str, within: float, **more: object) -> dict[str, Any]:
        """Have process 1 do something; its answer, or Refused if it could not."""
        self.tell(what, **more)
        return self._answer(within)

    def _answer(self, within: float) -> dict[str, Any]:
        """Its next answer. If the payload ends meanwhile, that is remembered."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            message = job_init.receive(self._way, left)
            if message is None:
                continue
            if "failed" in message:
                raise Refused(str(message["failed"]))
            if not self._is_end(message):
                return message
            if "gone" in message:
                raise Refused("the job's processes were killed")
        raise Refused(f"no answer from the job's process 1 in {within:.0f} s")

    def _is_end(self, message: dict[str, Any]) -> bool:
        if "ended" in message:
            self._ended = int(message["ended"])
        elif "gone" in message:
            self._ended = int(signal.SIGKILL)
        return "ended" in message or "gone" in message

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended; SIGKILL's if its process 1 was killed."""
        while self._ended is None and (message := job_init.receive(self._way, 0)) is not None:
            self._is_end(message)
        return self._ended

    def kill(self) -> None:
        """End all of its processes but process 1, which may start others later."""
        self.ask("kill", 60.0)
        self._ended = None

    @property
    def owner(self) -> Owner:
        """Whose its processes are."""
        numbers = os.fstat(self.numbers)
        return Owner(self._uid, (numbers.st_dev, numbers.st_ino))

    def tasks(self) -> list[int]:
        """The job's processes, by their numbers on the node, without process 1."""
        own, found = os.fstat(self.numbers), []
        for pid in processes():
            with contextlib.suppress(OSError):
                if pid != self.init and os.path.samestat(os.stat(f"/proc/{pid}/ns/pid"), own):
                    found.append(pid)
        return found

    @contextlib.contextmanager
    def made_anew(self, kind: str) -> Iterator[int]:
        """A descriptor of a namespace that a restore makes anew: of System V IPC, or of clocks."""
        anybodys = replace(self.owner, uid=None)
        for pid in self.tasks():
            with (
                contextlib.suppress(OSError),
                pinned(pid, anybodys) as task,
                task.opened(f"ns/{kind}") as opened,
            ):
                found = os.dup(opened)
                break
        else:
            raise Refused("the job has no process any more")
        try:
            yield found
        finally:
            os.close(found)

    def close(self) -> None:
        """End process 1 and all that is left of the job."""
        self._way.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._middle, 0)
        os.close(self.mounts)
        os.close(self.numbers)
