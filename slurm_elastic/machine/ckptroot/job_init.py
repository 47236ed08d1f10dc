"""Process 1 of a job's own process numbers: the parent of the payload, before and after a restore.

With numbers of its own a job gets its old ones back on any machine. There are three processes: the
session (outside), a middle one that makes the namespaces, and process 1. Each is killed with its
parent, and the kernel kills a whole namespace with its process 1, so nothing of a job outlives its
session.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from . import clock, sysv
from .caller import CLEAN
from .kernel import adopt_orphans, cover, die_with_parent, mount_own_proc, unshare_processes
from .payload import Payload, become, calm, reopen_standard

FIRST_PID = 1000
"""Payloads get higher numbers than this, so that process 1 and CRIU do not take one of theirs."""
_LONGEST = 65536


def start(payload: Payload) -> tuple[socket.socket, int]:
    """Start process 1; the socket to talk to it, and the middle process's pid. Its first message
    tells its own pid.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Not we: who has made a process namespace can start no children any more once that namespace's
    # process 1 is dead.
    middle = os.fork()
    if middle:
        theirs.close()
        return ours, middle
    try:
        ours.close()
        die_with_parent()
        limits, clocks = sysv.limits(), clock.offsets()
        unshare_processes()
        child = os.fork()
        if child == 0:
            JobInit(theirs, payload, limits, clocks).serve()
        send(theirs, {"init": child})
        theirs.close()
        os.waitpid(child, 0)
    except OSError as error:
        send(theirs, {"failed": str(error)})
    finally:
        os._exit(0)


def send(way: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. If the partner is gone, that is noticed elsewhere."""
    try:
        way.send(json.dumps(message).encode())
    except OSError:
        return


def receive(way: socket.socket, timeout: float) -> dict[str, Any] | None:
    """The next message; None if there is none, ``{"gone": True}`` if there will be none."""
    ready, _, _ = select.select([way], [], [], timeout)
    if not ready:
        return None
    try:
        content = way.recv(_LONGEST)
    except OSError:
        content = b""
    found: dict[str, Any] = json.loads(content) if content else {"gone": True}
    return found


class JobInit:
    """The loop of process 1. ``clocks`` are the offsets of its own clocks."""

    def __init__(
        self,
        way: socket.socket,
        payload: Payload,
        limits: Mapping[str, str],
        clocks: Mapping[str, int],
    ) -> None:
        self._way = way
        self._payload = payload
        self._limits = limits
        self._clocks = clocks
        self.child = 0

    def serve(self) -> None:
        """Serve until the session goes away. Never comes back."""
        try:
            reopen_standard(self._payload)
            die_with_parent()  # only now: acting as the user would undo it (prctl(2))
            mount_own_proc()
            sysv.set_limits(self._limits)
            self.loop()
        except OSError as error:
            send(self._way, {"failed": str(error)})
        finally:
            os._exit(0)

    def loop(self) -> None:
        """Serve until the session goes away."""
        calm()
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._way.fileno(), woken], [], [], 5.0)
            if woken in ready:
                os.read(woken, 4096)
            self.reap()
            if self._way.fileno() in ready:
                message = receive(self._way, 0)
                if message is None or "gone" in message:
                    return
                self.obey(message)

    def obey(self, message: dict[str, Any]) -> None:
        """Do what the session tells us."""
        match message["do"]:
            case "start":
                self._start()
            case "restore":
                self._restore(message)
            case "kill":
                self._kill()
            case "signal":
                self._signal(message["number"])
            case "continue":
                _go_on(message["but"])

    def _start(self) -> None:
        try:
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
                file.write(str(FIRST_PID))
        except OSError as error:
            send(self._way, {"failed": f"ns_last_pid: {error.strerror}"})
            return
        clocks = self._begin_clocks(None)
        self.child = os.fork()
        if self.child == 0:
            self._way.close()
            with contextlib.suppress(OSError):
                adopt_orphans()
            become(self._payload)
        send(self._way, {"pid": self.child, **clocks})

    def _begin_clocks(self, saved: Mapping[str, int] | None) -> dict[str, Any]:
        """The offsets of the payload's own clocks, or why it has none. It runs without them, unless
        some were ``saved``.
        """
        try:
            return {"clocks": clock.begin(self._clocks, saved)}
        except OSError as error:
            if saved:
                raise OSError(f"its clocks cannot go on here: {error.strerror or error}") from error
            return {"clockless": error.strerror or str(error)}

    def _restore(self, order: dict[str, Any]) -> None:
        """Have CRIU restore the process as our child (its option --restore-sibling)."""
        try:
            clocks = self._begin_clocks(order["clocks"])
            restore(order)
        except OSError as error:
            self._kill(quiet=True)
            send(self._way, {"failed": f"criu restore: {error.strerror or error}"})
            return
        self.child = order["pid"]
        if order["sysv"]:
            sysv.set_limits_of(self.child, self._limits)
        send(self._way, {"pid": self.child, **clocks})

    def _kill(self, *, quiet: bool = False) -> None:
        """End all processes of the job and wait until they are gone."""
        self.child = 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all of this namespace but ourselves (kill(2))
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        with contextlib.suppress(OSError):  # otherwise its memory is freed later
            sysv.begin_anew(self._limits)
        if not quiet:
            send(self._way, {"killed": True})

    def _signal(self, number: int) -> None:
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)

    def reap(self) -> None:
        """Reap all that have ended, and tell the session when the payload has."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.child = 0
                send(self._way, {"ended": status})


def restore(order: dict[str, Any]) -> None:
    """Restore as ``order`` says; OSError if that fails."""
    # CRIU has the user's rights on files, so root opens what is root's: the directory becomes its
    # standard input, the log its standard error.
    images = os.open(order["images"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    log = os.open(order["log"], flags, 0o600)
    try:
        with sysv.limits_ignored() if order["sysv"] else contextlib.nullcontext():
            code = _run(order["command"], images, log)
    finally:
        os.close(images)
        os.close(log)
    if code != 0:
        raise OSError(f"exit {code}")
    # It is a child of ours, and may have ended already.
    os.waitid(os.P_PID, order["pid"], os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _run(command: Sequence[str], images: int, log: int) -> int:
    """Run CRIU so that no other process can open its memory (proc(5), /proc/pid/mem)."""
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(command, images, log, ready, go)
    os.close(ready)
    try:
        # Before CRIU begins: the restored processes have its user and its capabilities for a while,
        # and a link may have made them open that file.
        cover(f"/proc/{pid}/mem")
        cover(f"/proc/{pid}/task/{pid}/mem")
        os.write(go, b".")
    finally:
        os.close(go)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(command: Sequence[str], images: int, log: int, ready: int, go: int) -> NoReturn:
    """Turn this process, a fresh child, into CRIU, once its parent says so."""
    try:
        os.close(go)
        calm()
        null = os.open("/dev/null", os.O_WRONLY)
        for number, descriptor in enumerate((images, null, log)):
            os.dup2(descriptor, number)
        # Nothing comes where our parent has ended, or could not cover our memory.
        if os.read(ready, 1):
            os.closerange(3, 256)
            os.execve(command[0], list(command), CLEAN)  # noqa: S606
    finally:
        os._exit(126)


def _go_on(but: Collection[int]) -> None:
    """Continue all stopped processes except ``but``: those stay stopped, or go on already."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), *but):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGCONT)
