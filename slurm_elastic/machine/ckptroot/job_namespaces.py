"""A job's own namespaces as seen from outside: its processes, and the requests to its process 1."""

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
from .pinned_task import TaskOwner, pinned
from .proc import processes
from .site import RequestRefused


class JobNamespaces:
    """One job's namespaces.

    ``init``: the number of its process 1 on the node. ``mounts`` and ``numbers``: descriptors of
    its mount and pid namespaces.
    """

    def __init__(self, payload: Payload) -> None:
        self._ended: int | None = None
        self._uid = payload.uid
        self._connection, self._middle = job_init.start(payload)
        self.init = int(self._answer(30.0)["init"])
        # Open them through the middle process: it is our own child, and we have not reaped it.
        # After it has reaped process 1, the number of process 1 may belong to another process.
        self.mounts = os.open(f"/proc/{self._middle}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            place = f"/proc/{self._middle}/ns/pid_for_children"
            self.numbers = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self.mounts)
            raise

    def send_order(self, order: str, **fields: object) -> None:
        """Send process 1 an order to which it gives no answer."""
        job_init.send(self._connection, {"do": order, **fields})

    def ask(self, order: str, within: float, **fields: object) -> dict[str, Any]:
        """Send an order to process 1 and return its answer. RequestRefused if it fails or takes too
        long.
        """
        self.send_order(order, **fields)
        return self._answer(within)

    def _answer(self, within: float) -> dict[str, Any]:
        """Return the next answer of process 1. If it reports the payload's end before that, store
        the end.
        """
        until = time.monotonic() + within
        while (remaining := until - time.monotonic()) > 0:
            report = job_init.receive(self._connection, remaining)
            if report is None:
                continue
            if "failed" in report:
                raise RequestRefused(str(report["failed"]))
            if not self._is_end(report):
                return report
            if "gone" in report:
                raise RequestRefused("the job's processes were killed")
        raise RequestRefused(f"no answer from the job's process 1 in {within:.0f} s")

    def _is_end(self, report: dict[str, Any]) -> bool:
        if "ended" in report:
            self._ended = int(report["ended"])
        elif "gone" in report:
            self._ended = int(signal.SIGKILL)
        return "ended" in report or "gone" in report

    def wait_status(self) -> int | None:
        """Return the payload's wait status after it has ended; SIGKILL's if its process 1 was
        killed.
        """
        while self._ended is None and (report := job_init.receive(self._connection, 0)) is not None:
            self._is_end(report)
        return self._ended

    def kill(self) -> None:
        """End all of the job's processes except process 1, which may start others later."""
        self.ask("kill", 60.0)
        self._ended = None

    @property
    def owner(self) -> TaskOwner:
        """The user and pid namespace of its processes."""
        numbers = os.fstat(self.numbers)
        return TaskOwner(self._uid, (numbers.st_dev, numbers.st_ino))

    def tasks(self) -> list[int]:
        """Return the job's processes except process 1, by their numbers on the node."""
        namespace, pids = os.fstat(self.numbers), []
        for pid in processes():
            with contextlib.suppress(OSError):
                if pid != self.init and os.path.samestat(os.stat(f"/proc/{pid}/ns/pid"), namespace):
                    pids.append(pid)
        return pids

    @contextlib.contextmanager
    def made_anew(self, kind: str) -> Iterator[int]:
        """Yield a descriptor of a namespace that a restore recreates: System V IPC (``ipc``) or
        clocks (``time``).
        """
        any_user = replace(self.owner, uid=None)
        for pid in self.tasks():
            with (
                contextlib.suppress(OSError),
                pinned(pid, any_user) as task,
                task.opened(f"ns/{kind}") as opened,
            ):
                namespace = os.dup(opened)
                break
        else:
            raise RequestRefused("the job has no process left")
        try:
            yield namespace
        finally:
            os.close(namespace)

    def close(self) -> None:
        """End process 1 and the rest of the job."""
        # Process 1 ends when the connection closes, and the kernel kills its whole namespace.
        self._connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._middle, 0)
        os.close(self.mounts)
        os.close(self.numbers)
