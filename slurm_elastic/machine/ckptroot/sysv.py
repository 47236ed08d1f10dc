"""Put a job's System V shared memory, semaphores and message queues (sysvipc(7)) into their own
namespace.

In it they get their old numbers on any machine, and the kernel removes them with the job
(ipc_namespaces(7)). An image includes them only if there are some, because restoring them needs one
more capability.
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
from .site import RequestRefused

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
"""Sets the next segment's number. CAP_CHECKPOINT_RESTORE is enough to write it from Linux 5.17
on.
"""
_KCMP = {"x86_64": 312, "aarch64": 272, "ppc64le": 354}
_SYSVSEM = 6  # linux/kcmp.h: KCMP_SYSVSEM
_TABLES = ("shm", "sem", "msg")
_READ_TIMEOUT_S = 30.0
"""Seconds to read the tables; a busy disk may delay that."""
_MAX_TABLE_BYTES = 16 << 20


def limits() -> dict[str, str]:
    """Return the limits of our namespace that this kernel has."""
    values = {}
    for name in (f"{place}/{limit}" for place, names in _LIMITS.items() for limit in names):
        with contextlib.suppress(OSError):
            values[name] = (_SYSCTLS / name).read_text(encoding="ascii")
    return values


def set_limits(values: Mapping[str, str]) -> None:
    """Set these limits in our present namespace. If the kernel refuses a value, its own stays."""
    for name, value in values.items():
        with contextlib.suppress(OSError):
            if (_SYSCTLS / name).read_text(encoding="ascii") != value:
                (_SYSCTLS / name).write_text(value, encoding="ascii")


def enter_empty(values: Mapping[str, str]) -> None:
    """Enter an empty namespace and set these limits."""
    unshare_ipc()
    set_limits(values)


def set_limits_of(pid: int, values: Mapping[str, str]) -> None:
    """Set these limits in the namespace of another process."""
    # A child, because setns(2) would move this process itself.
    child = os.fork()
    if child == 0:
        try:
            join_ipc(f"/proc/{pid}/ns/ipc")
            set_limits(values)
        finally:
            # Not sys.exit: the child must not run the parent's clean-up.
            os._exit(0)
    os.waitpid(child, 0)


@contextlib.contextmanager
def limits_ignored() -> Iterator[None]:
    """Inside the block, writes to the limits have no effect.

    CRIU sets the limits of an image, which only root may do, and gives up if that fails.
    """
    covered = []
    try:
        for place, names in _LIMITS.items():
            path = str(_SYSCTLS / place)
            if os.path.isdir(path):
                covered.append(path)
                # Cover directories, not single files: each namespace has its own files for them.
                mount_beside(path, "real", names)
        yield
    finally:
        for path in covered:
            with contextlib.suppress(OSError):  # OSError: it was not mounted
                unmount(path)


@dataclass(frozen=True)
class HeldObjects:
    """The contents of a namespace.

    ``beyond``: bytes of segments that its processes do not have in memory, because CRIU saves whole
    segments. ``semaphores``: whether there are any.
    """

    beyond: int
    semaphores: bool


def held(namespace: int) -> HeldObjects | None:
    """Return the contents of the namespace behind the descriptor; None if it is empty."""
    segments, semaphores, queues = (_entries(table) for table in _read(namespace))
    if not (segments or semaphores or queues):
        return None
    return HeldObjects(sum(map(_beyond, segments)), bool(semaphores))


def check_undone(tasks: Iterable[int], plain: int) -> None:
    """RequestRefused if a task may have asked for the undo of a semaphore operation at its end
    (SEM_UNDO).

    CRIU does not save that, and does not report it. The kernel compares the task's undo list with
    that of ``plain``, which has none (kcmp(2)). ``plain`` must never have had threads, because
    processes with threads always have a list.
    """
    for pid in tasks:
        # kcmp(2) has no function in glibc.
        compared = LIBC.syscall(_KCMP[os.uname().machine], plain, pid, _SYSVSEM, 0, 0)
        error = ctypes.get_errno() if compared < 0 else 0
        if compared > 0:
            raise RequestRefused(
                "semaphores may be undone at the end of a process of it (SEM_UNDO)"
            )
        # ESRCH: the task has ended, and nothing of it will be undone later.
        if error not in (0, errno.ESRCH):
            raise RequestRefused(f"its semaphores cannot be looked into: {os.strerror(error)}")


def _read(namespace: int) -> list[str]:
    """Return the tables of proc(5), sysvipc. The kernel shows the namespace of the process that
    opens them.
    """
    tables = [f"/proc/sysvipc/{name}" for name in _TABLES]
    try:
        result = subprocess.run(
            ["/usr/bin/nsenter", f"--ipc=/proc/self/fd/{namespace}", "--", "/usr/bin/head", "-v",
             "-c", str(_MAX_TABLE_BYTES), *tables],
            env=CLEAN, capture_output=True, check=False, preexec_fn=calm, pass_fds=(namespace,),
            timeout=_READ_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RequestRefused(
            f"its System V IPC was not read within {_READ_TIMEOUT_S:.0f} s"
        ) from error
    if result.returncode != 0:
        raise RequestRefused(
            f"its System V IPC cannot be read: {result.stderr.decode(errors='replace')}"
        )
    return result.stdout.decode("ascii").split("==> /proc/sysvipc/")[1:]


def _entries(table: str) -> list[dict[str, int]]:
    """Return the rows of a table of proc(5), sysvipc, each by the names of the columns.

    The first line of ``table`` is a heading of head(1).
    """
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
