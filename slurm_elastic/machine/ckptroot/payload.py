"""The user's program, and what a process of root's must do before it becomes that."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from slurm_elastic.machine.ckptroot.rights import as_user

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000  # unshare(2)
CLONE_NEWTIME = 0x00000080
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000  # mount(2)
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MNT_DETACH = 2  # umount(2)
_DESCRIPTORS = 65536
_LIBC = ctypes.CDLL(None, use_errno=True)  # os.unshare comes with Python 3.12


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
"""The number of a descriptor that a payload is given."""


def become(payload: Payload, *, bound: bool = False, handed: int | None = None) -> NoReturn:
    """Turn this process, a fresh child, into the payload. Never comes back.

    It leads a session of its own: CRIU saves whole sessions only. ``bound``: it is killed with its
    parent; a change of the user would take that back, so it comes after. ``handed`` is a descriptor
    that it gets as ``HANDED``.
    """
    code = 126
    try:
        with contextlib.suppress(PermissionError):  # it leads a process group already
            os.setsid()
        calm()
        os.umask(payload.umask)
        os.setgroups(payload.groups)
        os.setresgid(payload.gid, payload.gid, payload.gid)
        os.setresuid(payload.uid, payload.uid, payload.uid)
        if bound:
            die_with_parent()
        os.chdir(payload.directory)
        if handed is not None:
            os.dup2(handed, HANDED)
            os.set_inheritable(HANDED, True)
        first = HANDED if handed is None else HANDED + 1
        os.closerange(first, min(os.sysconf("SC_OPEN_MAX"), _DESCRIPTORS))
        os.execve(payload.argv[0], list(payload.argv), dict(payload.environment))  # noqa: S606
    except FileNotFoundError as error:
        code = 127
        _complain(error)
    except OSError as error:
        _complain(error)
    finally:
        os._exit(code)


def calm() -> None:
    """Every signal at its default, none blocked."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    _check(_LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become the parent of what children of ours leave behind, and so of daemons: they stay below
    this process, whatever it executes, and are saved with it.
    """
    _check(_LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def unshare_processes() -> None:
    """Own mounts and own System V IPC for us; own process numbers for the children to come."""
    _check(_LIBC.unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC), "unshare")


def unshare_time() -> None:
    """Clocks of their own for the children to come; ours stay (time_namespaces(7))."""
    _check(_LIBC.unshare(CLONE_NEWTIME), "unshare --time")


def share_time() -> None:
    """The children to come have our clocks again. Not with threads (setns(2))."""
    _join("/proc/self/ns/time", CLONE_NEWTIME)


def unshare_ipc() -> None:
    """System V IPC with nothing in it; what was in ours goes, unless others are there still."""
    _check(_LIBC.unshare(CLONE_NEWIPC), "unshare")


def join_ipc(path: str) -> None:
    """From now on the System V IPC of the namespace at ``path``."""
    _join(path, CLONE_NEWIPC)


def _join(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_LIBC.setns(descriptor, kind), f"setns {path}")
    finally:
        os.close(descriptor)


def unshare_mounts() -> None:
    """Own mounts. The host's later ones (autofs) come through."""
    _check(_LIBC.unshare(CLONE_NEWNS), "unshare")
    _check(_LIBC.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "mount /")


def mount_bind(source: str, place: str) -> None:
    """The directory ``source`` at ``place``, too."""
    found = _LIBC.mount(os.fsencode(source), os.fsencode(place), None, MS_BIND, None)
    _check(found, f"mount {place}")


def mount_small(path: str, uid: int, gid: int) -> None:
    """A file system of the user's in memory, with room for a few small files."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    options = f"size=64k,nr_inodes=32,mode=700,uid={uid},gid={gid}".encode()
    _check(_LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options), f"mount {path}")


def mount_beside(path: str, aside: str, names: Sequence[str]) -> None:
    """A directory in place of that at ``path``, with empty files of these ``names``, or paths, that
    all may write; what else is there is there by links, which lead through its directory ``aside``.
    """
    real = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        others = set(os.listdir(path)) - {name.partition("/")[0] for name in names}
        _check(_LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", flags, b"mode=755"), f"mount {path}")
        os.mkdir(f"{path}/{aside}")
        source, place = f"/proc/self/fd/{real}".encode(), f"{path}/{aside}".encode()
        _check(_LIBC.mount(source, place, None, MS_BIND, None), f"mount {path}/{aside}")
        for name in others:
            os.symlink(f"{aside}/{name}", f"{path}/{name}")
        for name in names:
            directory = os.path.dirname(f"{path}/{name}")
            os.makedirs(directory, exist_ok=True)
            os.close(os.open(f"{path}/{name}", os.O_CREAT))
            os.chmod(directory, 0o755)  # noqa: S103 - whatever our umask is
            os.chmod(f"{path}/{name}", 0o666)  # noqa: S103 - what is written there is for nobody
    finally:
        os.close(real)


def unmount(path: str) -> None:
    """At once, whoever uses it."""
    _check(_LIBC.umount2(os.fsencode(path), MNT_DETACH), f"umount {path}")


def mount_own_proc() -> None:
    """A /proc of our namespace, and no other. The host's later mounts (autofs) come through."""
    _check(_LIBC.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "mount /")
    _check(_LIBC.mount(b"proc", b"/proc", b"proc", 0, None), "mount /proc")
    with open("/proc/self/mountinfo", "rb") as file:
        others = other_procs(file.read())
    for place in others:
        unmount(os.fsdecode(place))


def other_procs(mountinfo: bytes) -> list[bytes]:
    """Where the host has mounted proc outside of /proc, as in a chroot (proc(5), mountinfo)."""
    found = []
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(b" - ")
        place = mount.split(b" ")[4]
        if source.startswith(b"proc ") and not (place + b"/").startswith(b"/proc/"):
            found.append(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), place))
    return found


def cover(path: str) -> None:
    """Nobody in our mounts can open the file at ``path`` any more: there is /dev/null."""
    _check(_LIBC.mount(b"/dev/null", path.encode(), None, MS_BIND, None), f"mount {path}")


def reopen_standard(payload: Payload) -> None:
    """Standard streams that are files: opened anew by their paths, through our own mounts.

    CRIU finds a file by the mount that it was opened through, which has to be one of the namespace
    that it saves. A path with another file by now stays as it is.
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
    """A second opening of the same file at the same place; OSError if it is another file now."""
    with as_user(payload.uid, payload.gid, payload.groups):
        new = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mine, other = os.fstat(new), os.fstat(descriptor)
    if (mine.st_dev, mine.st_ino) != (other.st_dev, other.st_ino):
        os.close(new)
        raise OSError(errno.ESTALE, "another file", path)
    os.set_blocking(new, True)
    if stat.S_ISREG(mine.st_mode):
        os.lseek(new, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    return new


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _complain(error: OSError) -> None:
    sys.stderr.write(f"slurm-elastic: the job's script: {error.filename}: {error.strerror}\n")
    sys.stderr.flush()
