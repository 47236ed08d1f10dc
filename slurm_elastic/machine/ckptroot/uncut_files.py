"""Keep dmtcp_restart from truncating files that a job only appends to, because other jobs may
append, too.

DMTCP 4.2.0 truncates each regular file that a process has open for writing to its length at the
image, by truncate(2). A filter of system calls (seccomp_unotify(2), Linux 5.5) hands the truncate()
calls of the restored processes to a process of ours, the keeper. During the restore the keeper
answers "done" for those files and changes nothing. Later it lets each call pass. A filter cannot be
removed, so the keeper lives as long as a process that has the filter.
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
from .rights import RightsUser, as_user
from .site import RequestRefused

_CALLS = {"x86_64": (0xC000003E, 317, 76), "aarch64": (0xC00000B7, 277, 45)}
"""By machine: its number in linux/audit.h, and the numbers of seccomp() and truncate()."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8  # linux/seccomp.h
_USER_NOTIF, _ALLOW = 0x7FC00000, 0x7FFF0000
_CONTINUE = 1
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_CALL = struct.Struct("=QIIiIQ6Q")
"""struct seccomp_notif: id, pid, flags; then number, machine, address and arguments of the call."""
_ANSWER = struct.Struct("=QqiI")
"""struct seccomp_notif_resp: id, result, error, flags."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_MAX_PATH_BYTES = 4096
_RESTORED = b"."


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install() -> int:
    """Give this process and its future children the filter; return the descriptor that gets the
    calls.

    OSError if the kernel cannot do that, or another filter of the node already handles the calls.
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
    descriptor: int = LIBC.syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor


def is_possible() -> bool:
    """Return whether processes that root starts here can have the filter."""
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

    our_end: socket.socket
    their_end: socket.socket

    @classmethod
    def made(cls) -> Handover:
        return cls(*socket.socketpair())

    def give(self) -> None:
        """In the child, as root: install the filter and send its descriptor."""
        self.our_end.close()
        with contextlib.suppress(OSError):
            socket.send_fds(self.their_end, [b"."], [install()])
        self.their_end.close()

    def take(self) -> int | None:
        """In the parent: return the descriptor, or None if the child could not have the filter."""
        self.their_end.close()
        with self.our_end:
            descriptors = socket.recv_fds(self.our_end, 1, 1)[1]
        return descriptors[0] if descriptors else None


class FileKeeper:
    """The process ``pid`` that answers the calls. After ``restored`` it lets all calls pass."""

    def __init__(self, calls: int, paths: Collection[str], user: RightsUser) -> None:
        restored_end, self._tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_keeper(calls, restored_end, frozenset(paths), user)
        os.close(calls)
        os.close(restored_end)
        self.pid = pid

    def restored(self) -> None:
        """Let all later truncate() calls pass, because they are the restored processes' own."""
        with contextlib.suppress(OSError):
            os.write(self._tell, _RESTORED)

    def close(self) -> None:
        """End the keeper, when no process with the filter is left."""
        os.close(self._tell)
        with contextlib.suppress(ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def keep(handover: Handover, paths: Collection[str], user: RightsUser) -> FileKeeper:
    """Return the keeper of a forked child. RequestRefused if the child could not have
    the filter.
    """
    calls = handover.take()
    if calls is None:
        raise RequestRefused(
            f"DMTCP would cut {min(paths)}, to which other jobs may append: this node "
            "cannot filter system calls (seccomp user notification)"
        )
    return FileKeeper(calls, paths, user)


def _run_keeper(calls: int, restored_end: int, paths: frozenset[str], user: RightsUser) -> NoReturn:
    """Answer calls until the last process with the filter has ended."""
    try:
        os.setsid()
        # A signal to all processes of the step (scancel --full) must not end the keeper: truncate()
        # would fail in the job from then on.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        low, high = sorted((calls, restored_end))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, 65536)
        _answer_all(calls, restored_end, paths, user)
    finally:
        os._exit(0)


def _answer_all(calls: int, restored_end: int, paths: frozenset[str], user: RightsUser) -> None:
    poll = select.poll()
    poll.register(calls, select.POLLIN)
    poll.register(restored_end, select.POLLIN)
    while True:
        for descriptor, event in poll.poll():
            if descriptor == restored_end:
                paths = frozenset()
                poll.unregister(restored_end)
                os.close(restored_end)
            elif not event & select.POLLIN:
                return
            else:
                _answer_one(calls, paths, user)


def _answer_one(calls: int, paths: frozenset[str], user: RightsUser) -> None:
    call = bytearray(_CALL.size)
    # ENOENT: the call was interrupted since.
    with contextlib.suppress(OSError):
        fcntl.ioctl(calls, _RECEIVE, call)
        number, pid, *_, path, _length, _c, _d, _e, _f = _CALL.unpack(call)
        flags = 0 if paths and _is_kept(calls, number, pid, path, paths, user) else _CONTINUE
        fcntl.ioctl(calls, _SEND, _ANSWER.pack(number, 0, 0, flags))


def _is_kept(
    calls: int, number: int, pid: int, address: int, paths: frozenset[str], user: RightsUser
) -> bool:
    """Return whether the call is for a file in ``paths``. Used only during the restore."""
    with contextlib.suppress(OSError):
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Check after opening: if the call is still valid, the pid is still that process's.
            fcntl.ioctl(calls, _IS_VALID, struct.pack("=Q", number))
            text = _text_at(memory, address)
        finally:
            os.close(memory)
        with as_user(user):
            return any(text == path or _is_same(text, path) for path in paths)
    return False


def _text_at(memory: int, address: int) -> str:
    """Return the string at the address. The page after its end may be unreadable."""
    page = 4096 - address % 4096
    text = os.pread(memory, page, address)
    if b"\0" not in text:
        text += os.pread(memory, _MAX_PATH_BYTES - len(text), address + page)
    return os.fsdecode(text.partition(b"\0")[0])


def _is_same(path: str, other: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(path, other)
    return False


def check_possible(paths: Collection[str]) -> None:
    """RequestRefused if DMTCP would truncate these files at a restart and this node cannot prevent
    it.
    """
    if paths and not is_possible():
        raise RequestRefused(
            f"it appends to {min(paths)}, as other jobs may, and DMTCP would cut the file at a "
            "restart: this node cannot filter system calls (seccomp user notification)"
        )
