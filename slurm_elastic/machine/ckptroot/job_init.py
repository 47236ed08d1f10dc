"""Process 1 of a job's own process numbers: the parent of the payload, before and after a restore.

In its own pid namespace a job gets its old process numbers back on any machine. There are three
processes: the session (outside), a middle process that makes the namespaces, and process 1. Each is
killed with its parent, and the kernel kills a whole namespace with its process 1. So no process of
a job outlives its session.
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
from .payload import Payload, become, calm, close_from, reopen_standard

FIRST_PID = 1000
"""Payloads get higher numbers, so that process 1 and CRIU do not use a number that the job
needs.
"""


def start(payload: Payload) -> tuple[socket.socket, int]:
    """Start process 1; return the socket to it, and the middle process's pid.

    Its first message contains the pid of process 1.
    """
    our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The session must not unshare its own children: after that namespace's process 1 has died, it
    # could start no more children.
    middle = os.fork()
    if middle:
        their_end.close()
        return our_end, middle
    try:
        our_end.close()
        die_with_parent()
        limits, clocks = sysv.limits(), clock.offsets()
        unshare_processes()
        child = os.fork()
        if child == 0:
            JobInit(their_end, payload, limits, clocks).serve()
        send(their_end, {"init": child})
        their_end.close()
        os.waitpid(child, 0)
    except OSError as error:
        send(their_end, {"failed": str(error)})
    finally:
        os._exit(0)


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. Errors are ignored, because the reader of the socket notices a lost
    partner.
    """
    # In a file, because a datagram has a largest length: the numbers of some 10,000 tasks are
    # longer.
    try:
        with open(os.memfd_create("message"), "w+b", buffering=0) as file:
            file.write(json.dumps(message).encode())
            socket.send_fds(connection, [b"."], [file.fileno()])
    except OSError:
        return


def receive(connection: socket.socket, timeout: float) -> dict[str, Any] | None:
    """Return the next message. None if there is none yet, ``{"gone": True}`` if the partner is
    gone.
    """
    ready, _, _ = select.select([connection], [], [], timeout)
    if not ready:
        return None
    try:
        descriptors = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]
    except OSError:
        descriptors = []
    if not descriptors:
        return {"gone": True}
    with open(descriptors[0], "rb") as file:
        file.seek(0)  # the partner's descriptor and ours have one offset
        message: dict[str, Any] = json.load(file)
    return message


class JobInit:
    """The loop of process 1. ``clocks`` are the offsets of its own clocks."""

    def __init__(
        self,
        connection: socket.socket,
        payload: Payload,
        limits: Mapping[str, str],
        clocks: Mapping[str, int],
    ) -> None:
        self._connection = connection
        self._payload = payload
        self._limits = limits
        self._clocks = clocks
        self.child = 0

    def serve(self) -> None:
        """Serve until the session ends. Never returns."""
        try:
            reopen_standard(self._payload)
            die_with_parent()  # not earlier: acting as the user would undo it (prctl(2))
            mount_own_proc()
            sysv.set_limits(self._limits)
            self.loop()
        except OSError as error:
            send(self._connection, {"failed": str(error)})
        finally:
            os._exit(0)

    def loop(self) -> None:
        """Serve until the session ends."""
        calm()
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(woken, False)
        # The C handler writes to the pipe, so that a SIGCHLD just before select wakes it, too.
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._connection.fileno(), woken], [], [], 5.0)
            if woken in ready:
                os.read(woken, 4096)
            self.reap()
            if self._connection.fileno() in ready:
                message = receive(self._connection, 0)
                if message is None or "gone" in message:
                    return
                self.obey(message)

    def obey(self, message: dict[str, Any]) -> None:
        """Carry out an order of the session."""
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
                _continue_all(message["but"])

    def _start(self) -> None:
        try:
            # The next process of this namespace gets the following number (pid_namespaces(7)).
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
                file.write(str(FIRST_PID))
        except OSError as error:
            send(self._connection, {"failed": f"ns_last_pid: {error.strerror}"})
            return
        clocks = self._begin_clocks(None)
        self.child = os.fork()
        if self.child == 0:
            self._connection.close()
            with contextlib.suppress(OSError):
                adopt_orphans()
            become(self._payload)
        send(self._connection, {"pid": self.child, **clocks})

    def _begin_clocks(self, saved: Mapping[str, int] | None) -> dict[str, Any]:
        """Return the offsets of the payload's own clocks, or why it has none.

        Without ``saved`` clocks the payload may run without its own. OSError if saved clocks cannot
        continue.
        """
        try:
            return {"clocks": clock.begin(self._clocks, saved)}
        except OSError as error:
            if saved:
                raise OSError(
                    f"its clocks cannot continue here: {error.strerror or error}"
                ) from error
            return {"clockless": error.strerror or str(error)}

    def _restore(self, order: dict[str, Any]) -> None:
        """Have CRIU restore the process as our child (its option --restore-sibling)."""
        try:
            clocks = self._begin_clocks(order["clocks"])
            restore(order)
        except OSError as error:
            self._kill(quiet=True)
            send(self._connection, {"failed": f"criu restore: {error.strerror or error}"})
            return
        self.child = order["pid"]
        if order["sysv"]:
            sysv.set_limits_of(self.child, self._limits)
        send(self._connection, {"pid": self.child, **clocks})

    def _kill(self, *, quiet: bool = False) -> None:
        """End all processes of the job and wait until they are gone."""
        self.child = 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all processes of this namespace except us (kill(2))
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        with contextlib.suppress(OSError):  # on an error its memory is freed later
            sysv.enter_empty(self._limits)
        if not quiet:
            send(self._connection, {"killed": True})

    def _signal(self, number: int) -> None:
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)

    def reap(self) -> None:
        """Reap all ended children, and report the payload's end to the session."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.child = 0
                send(self._connection, {"ended": status})


def restore(order: dict[str, Any]) -> None:
    """Restore according to ``order``; OSError if that fails."""
    # CRIU has the user's rights on files, so root opens root's files for it: the directory becomes
    # its standard input, the log its standard error.
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
    # Raises OSError if it is not our child. It may have ended already.
    os.waitid(os.P_PID, order["pid"], os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _run(command: Sequence[str], images: int, log: int) -> int:
    """Run CRIU so that no other process can open its memory (proc(5), /proc/pid/mem)."""
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(command, images, log, ready, go)
    os.close(ready)
    try:
        # Before CRIU starts: for a while the restored processes have its user and its capabilities.
        # A link among the job's files could lead them to open CRIU's memory.
        cover(f"/proc/{pid}/mem")
        cover(f"/proc/{pid}/task/{pid}/mem")
        os.write(go, b".")
    finally:
        os.close(go)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(command: Sequence[str], images: int, log: int, ready: int, go: int) -> NoReturn:
    """Turn this fresh child into CRIU, after its parent has written to ``go``."""
    try:
        os.close(go)
        calm()
        null = os.open("/dev/null", os.O_WRONLY)
        for number, descriptor in enumerate((images, null, log)):
            os.dup2(descriptor, number)
        # EOF instead of a byte: our parent has ended, or could not cover our memory.
        if os.read(ready, 1):
            close_from(3)
            os.execve(command[0], list(command), CLEAN)  # noqa: S606
    finally:
        os._exit(126)


def _continue_all(but: Collection[int]) -> None:
    """Continue all stopped processes except ``but``, which must stay stopped or run already."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), *but):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGCONT)
