"""Puts a job's System V shared memory, semaphores and message queues (sysvipc(7)) into a namespace
of its own, so that they get their old numbers on any machine and go when the job goes
(ipc_namespaces(7)).

An image includes them only if there are some, as one more right is needed to bring them back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .caller import CLEAN
from .kernel import LIBC, join_ipc, mount_beside, unmount, unshare_ipc
from .payload import calm
from .site import Refused

_SYSCTLS = Path("/proc/sys")
_LIMITS = {
    "kernel": (
        "sem", "msgmax", "msgmnb", "msgmni", "auto_msgmni", "shmmax", "shmall", "shmmni",
        "shm_rmid_forced",
    ),
    "fs": (
        "mqueue/queues_max", "mqueue/msg_max", "mqueue/msgsize_max", "mqueue/msg_default",
        "mqueue/msgsize_default",
    ),
}  # fmt: skip
"""The node's limits, which a new namespace does not inherit (proc(5), mq_overview(7))."""
NUMBERS = _SYSCTLS / "kernel/shm_next_id"
"""Where the next segment's number is set; since Linux 5.17 whoever may restore may set it."""
_KCMP = {"x86_64": 312, "aarch64": 272, "ppc64le": 354}
_SYSVSEM = 6  # linux/kcmp.h: KCMP_SYSVSEM
_TABLES = ("shm", "sem", "msg")
_PATIENCE = 30.0
"""Seconds for reading the tables, which a busy disk may hold up."""
_MOST = 16 << 20


def limits() -> dict[str, str]:
    """The limits of our namespace, as far as this kernel has them."""
    found = {}
    for name in (f"{place}/{one}" for place, names in _LIMITS.items() for one in names):
        with contextlib.suppress(OSError):
            found[name] = (_SYSCTLS / name).read_text(encoding="ascii")
    return found


def set_limits(wanted: Mapping[str, str]) -> None:
    """Set the same limits in our present namespace; if the kernel refuses one, it keeps its own."""
    for name, value in wanted.items():
        with contextlib.suppress(OSError):
            if (_SYSCTLS / name).read_text(encoding="ascii") != value:
                (_SYSCTLS / name).write_text(value, encoding="ascii")


def begin_anew(wanted: Mapping[str, str]) -> None:
    """Enter a namespace with nothing in it and with these limits."""
    unshare_ipc()
    set_limits(wanted)


def set_limits_of(pid: int, wanted: Mapping[str, str]) -> None:
    """Set the same limits in the namespace of another process."""
    child = os.fork()
    if child == 0:
        try:
            join_ipc(f"/proc/{pid}/ns/ipc")
            set_limits(wanted)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@contextlib.contextmanager
def limits_ignored() -> Iterator[None]:
    """Meanwhile nothing that is written into the limits has an effect. CRIU sets those that an
    image has, which only root may do, and gives up otherwise.
    """
    covered = []
    try:
        for place, names in _LIMITS.items():
            path = str(_SYSCTLS / place)
            if os.path.isdir(path):
                covered.append(path)
                # Not file by file: each namespace has files of its own for them.
                mount_beside(path, "real", names)
        yield
    finally:
        for path in covered:
            with contextlib.suppress(OSError):  # it was not mounted
                unmount(path)


@dataclass(frozen=True)
class Held:
    """What a namespace holds: ``beyond`` are the bytes that its processes do not have in memory
    already, as CRIU saves whole segments; and whether there are ``semaphores``.
    """

    beyond: int
    semaphores: bool


def held(namespace: int) -> Held | None:
    """What the namespace behind the descriptor holds; None if it is empty."""
    segments, semaphores, queues = (_entries(table) for table in _read(namespace))
    if not (segments or semaphores or queues):
        return None
    return Held(sum(map(_beyond, segments)), bool(semaphores))


def check_undone(tasks: Iterable[int], plain: int) -> None:
    """Refused if a task may have asked to have a change of a semaphore undone when it ends: CRIU
    does not save that, and does not say so. The kernel tells by a comparison with ``plain``, which
    has no such changes (kcmp(2)), whether a task has a list of them. ``plain`` must never have had
    threads: those always have a list.
    """
    for pid in tasks:
        compared = LIBC.syscall(_KCMP[os.uname().machine], plain, pid, _SYSVSEM, 0, 0)
        error = ctypes.get_errno() if compared < 0 else 0
        if compared > 0:
            raise Refused("semaphores may be undone at the end of a process of it (SEM_UNDO)")
        if error not in (0, errno.ESRCH):
            raise Refused(f"its semaphores cannot be looked into: {os.strerror(error)}")


def _read(namespace: int) -> list[str]:
    """The tables of proc(5), sysvipc, of the namespace of whoever opens them."""
    tables = [f"/proc/sysvipc/{name}" for name in _TABLES]
    try:
        done = subprocess.run(
            ["/usr/bin/nsenter", f"--ipc=/proc/self/fd/{namespace}", "--", "/usr/bin/head", "-v",
             "-c", str(_MOST), *tables],
            env=CLEAN, capture_output=True, check=False, preexec_fn=calm, pass_fds=(namespace,),
            timeout=_PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Refused(f"its System V IPC was not read within {_PATIENCE:.0f} s") from error
    if done.returncode != 0:
        raise Refused(f"its System V IPC cannot be read: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode("ascii").split("==> /proc/sysvipc/")[1:]


def _entries(table: str) -> list[dict[str, int]]:
    """The rows of a table by the names of its columns; the first line is head(1)'s."""
    names, *rows = (line.split() for line in table.splitlines()[1:] if line.strip())
    return [
        {
            name: int(text, 8 if name == "perms" else 10)
            for name, text in zip(names, row, strict=True)
        }
        for row in rows
    ]


def _beyond(segment: Mapping[str, int]) -> int:
    in_memory = segment["rss"] + segment["swap"] if segment["nattch"] else 0
    return max(segment["size"] - in_memory, 0)
