"""The user's program, and how a process of root's becomes it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from .kernel import die_with_parent
from .rights import as_user

_MAX_DESCRIPTORS = 65536


@dataclass(frozen=True)
class Payload:
    """A program with the user's identity, environment, directory and umask."""

    argv: Sequence[str]
    environment: Mapping[bytes, bytes]
    directory: str
    umask: int
    uid: int
    gid: int
    groups: tuple[int, ...]


HANDED = 3
"""The number of the descriptor that a payload may receive."""


def close_from(first: int) -> None:
    """Close all descriptors from ``first`` on."""
    os.closerange(first, min(os.sysconf("SC_OPEN_MAX"), _MAX_DESCRIPTORS))


def become(payload: Payload, *, bound: bool = False, handed: int | None = None) -> NoReturn:
    """Turn this fresh child into the payload, as the leader of its own session.

    ``bound``: kill it with its parent. ``handed``: a descriptor that it gets as ``HANDED``.
    """
    code = 126
    try:
        # CRIU saves only whole sessions.
        with contextlib.suppress(PermissionError):  # it leads a process group already
            os.setsid()
        calm()
        os.umask(payload.umask)
        # Set the user last: without root's rights the groups could not be set.
        os.setgroups(payload.groups)
        os.setresgid(payload.gid, payload.gid, payload.gid)
        os.setresuid(payload.uid, payload.uid, payload.uid)
        # After the change of user, which would clear it.
        if bound:
            die_with_parent()
        os.chdir(payload.directory)
        if handed is not None:
            os.dup2(handed, HANDED)
            os.set_inheritable(HANDED, True)
        first_closed = HANDED if handed is None else HANDED + 1
        close_from(first_closed)
        os.execve(payload.argv[0], list(payload.argv), dict(payload.environment))  # noqa: S606
    except FileNotFoundError as error:
        code = 127
        _complain(error)
    except OSError as error:
        _complain(error)
    finally:
        os._exit(code)


def calm() -> None:
    """Set every signal to its default and unblock all."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reopen_standard(payload: Payload) -> None:
    """Reopen the standard streams by their paths if they are files, through our own mounts.

    CRIU finds a file by the mount through which it was opened, and that mount must belong to the
    saved namespace. If a path now leads to another file, the stream stays as it is.
    """
    opened: dict[tuple[str, int], int] = {}
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
            new = opened.get((path, flags))
            if new is None:
                new = opened[path, flags] = _reopen(descriptor, path, flags, payload)
            os.dup2(new, descriptor)
    for new in opened.values():
        os.close(new)


def _reopen(descriptor: int, path: str, flags: int, payload: Payload) -> int:
    """Open the same file again, at the same offset. OSError if the path now has another file."""
    with as_user(payload):
        new = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    new_status, old_status = os.fstat(new), os.fstat(descriptor)
    if (new_status.st_dev, new_status.st_ino) != (old_status.st_dev, old_status.st_ino):
        os.close(new)
        raise OSError(errno.ESTALE, "another file", path)
    # O_NONBLOCK was for the open alone: the job expects a stream that blocks.
    os.set_blocking(new, True)
    if stat.S_ISREG(new_status.st_mode):
        os.lseek(new, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    return new


def _complain(error: OSError) -> None:
    sys.stderr.write(f"slurm-elastic: the job's script: {error.filename}: {error.strerror}\n")
    sys.stderr.flush()
