"""Keeps dmtcp_restart from cutting the files that a job only appends to, as other jobs may append
to them, too.

DMTCP 4.2.0 cuts each regular file that a process has open for writing to its length at the image,
by truncate(2). A filter of system calls (seccomp_unotify(2), Linux 5.5) hands the truncate() calls
of the restored processes to a process of ours, the keeper. While they are being restored the keeper
answers "done" for those files and touches nothing. Later it lets each call pass. A filter cannot be
taken off again, so the keeper lives for as long as a process that has the filter.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

from .kernel import LIBC
from .rights import User, as_user
from .site import Refused

_CALLS = {"x86_64": (0xC000003E, 317, 76), "aarch64": (0xC00000B7, 277, 45)}
"""By machine: its name in linux/audit.h and the numbers of seccomp() and truncate()."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8  # linux/seccomp.h
_USER_NOTIF, _ALLOW = 0x7FC00000, 0x7FFF0000
_CONTINUE = 1
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_CALL = struct.Struct("=QIIiIQ6Q")
"""struct seccomp_notif: id, pid, flags; then number, machine, place and arguments of the call."""
_ANSWER = struct.Struct("=QqiI")
"""struct seccomp_notif_resp: id, result, error, flags."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_MAX_PATH = 4096
_RESTORED = b"."


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install() -> int:
    """Give this process, and all that it will start, the filter; the descriptor that gets the
    calls. OSError if the kernel cannot do that, or a filter of the node has the calls already.
    """
    machine = platform.machine()
    if machine not in _CALLS:
        raise OSError(errno.ENOSYS, f"not known for {machine}")
    name, seccomp, truncate = _CALLS[machine]
    steps = ((_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, 3, name), (_LOAD, 0, 0, 0),
             (_JUMP_IF_EQUAL, 0, 1, truncate), (_RETURN, 0, 0, _USER_NOTIF),
             (_RETURN, 0, 0, _ALLOW))  # fmt: skip
    text = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), text)
    found: int = LIBC.syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found


def is_possible() -> bool:
    """Whether processes that root starts here can have the filter."""
    pid = os.fork()
    if pid == 0:
        try:
            install()
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


@dataclass
class Handover:
    """Brings the descriptor of the filter from the fresh child to us."""

    ours: socket.socket
    theirs: socket.socket

    @classmethod
    def made(cls) -> Handover:
        return cls(*socket.socketpair())

    def give(self) -> None:
        """In the child, as root: take the filter and hand its descriptor over."""
        self.ours.close()
        with contextlib.suppress(OSError):
            socket.send_fds(self.theirs, [b"."], [install()])
        self.theirs.close()

    def take(self) -> int | None:
        """In the parent: the descriptor; None if the child could not have the filter."""
        self.theirs.close()
        with self.ours:
            descriptors = socket.recv_fds(self.ours, 1, 1)[1]
        return descriptors[0] if descriptors else None


class Keeper:
    """The process ``pid`` that answers the calls; ``restored`` has it let all of them pass."""

    def __init__(self, calls: int, paths: Collection[str], user: User) -> None:
        told, self._tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            _keep(calls, told, frozenset(paths), user)
        os.close(calls)
        os.close(told)
        self.pid = pid

    def restored(self) -> None:
        """The processes run: what they cut from now on is theirs to cut."""
        with contextlib.suppress(OSError):
            os.write(self._tell, _RESTORED)

    def close(self) -> None:
        """After the end of all processes that have the filter."""
        os.close(self._tell)
        with contextlib.suppress(ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def keep(handover: Handover, paths: Collection[str], user: User) -> Keeper:
    """The keeper of a child that has been forked; Refused if it could not have the filter."""
    calls = handover.take()
    if calls is None:
        raise Refused(f"DMTCP would cut {min(paths)}, to which other jobs may append: this node "
                      "cannot filter system calls (seccomp user notification)")  # fmt: skip
    return Keeper(calls, paths, user)


def _keep(calls: int, told: int, paths: frozenset[str], user: User) -> NoReturn:
    """Answer until the last process with the filter has ended."""
    try:
        os.setsid()
        # A signal to all processes of the step (scancel --full) must not end it: truncate() would
        # fail in the job from then on.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        low, high = sorted((calls, told))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, 65536)
        _answer_all(calls, told, paths, user)
    finally:
        os._exit(0)


def _answer_all(calls: int, told: int, paths: frozenset[str], user: User) -> None:
    poll = select.poll()
    poll.register(calls, select.POLLIN)
    poll.register(told, select.POLLIN)
    while True:
        for descriptor, event in poll.poll():
            if descriptor == told:
                paths = frozenset()
                poll.unregister(told)
                os.close(told)
            elif not event & select.POLLIN:
                return
            else:
                _answer_one(calls, paths, user)


def _answer_one(calls: int, paths: frozenset[str], user: User) -> None:
    call = bytearray(_CALL.size)
    # The call may have been interrupted since: the kernel tells that by ENOENT.
    with contextlib.suppress(OSError):
        fcntl.ioctl(calls, _RECEIVE, call)
        number, pid, *_, path, _length, _c, _d, _e, _f = _CALL.unpack(call)
        flags = 0 if paths and _is_kept(calls, number, pid, path, paths, user) else _CONTINUE
        fcntl.ioctl(calls, _SEND, _ANSWER.pack(number, 0, 0, flags))


def _is_kept(
    calls: int, number: int, pid: int, address: int, paths: frozenset[str], user: User
) -> bool:
    """Whether the call is for one of the ``paths``; only restored processes are asked."""
    with contextlib.suppress(OSError):
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Only now it is certain that the number is still that process's.
            fcntl.ioctl(calls, _IS_VALID, struct.pack("=Q", number))
            text = _text_at(memory, address)
        finally:
            os.close(memory)
        with as_user(user):
            return any(text == path or _is_same(text, path) for path in paths)
    return False


def _text_at(memory: int, address: int) -> str:
    """The string there, which may end shortly before a page that cannot be read."""
    page = 4096 - address % 4096
    text = os.pread(memory, page, address)
    if b"\0" not in text:
        text += os.pread(memory, _MAX_PATH - len(text), address + page)
    return os.fsdecode(text.partition(b"\0")[0])


def _is_same(one: str, other: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False


def check_possible(paths: Collection[str]) -> None:
    """Refused if DMTCP would cut one of the files at a restart and nothing here prevents it."""
    if paths and not is_possible():
        raise Refused(
            f"it appends to {min(paths)}, as other jobs may, and DMTCP would cut the file at a "
            "restart: this node cannot filter system calls (seccomp user notification)"
        )
