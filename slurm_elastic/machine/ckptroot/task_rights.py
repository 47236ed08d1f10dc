"""Check that a job's user may restore its tasks.

CRIU restores them with the user's rights and the few capabilities of ``capabilities.restorer``, and
gives no task more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from . import capabilities
from .proc import is_apart, is_dead, memory_of, shared_of, status_of, threads_of
from .rights import RightsUser
from .site import RequestRefused

NEEDED = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_MAX_GROUPS = 128
"""CRIU compares at most this many before it calls setgroups(2) (criu/pie/restorer.c,
groups_match).
"""
_FILTER = "2"  # proc(5), Seccomp in status: SECCOMP_MODE_FILTER


def check(tasks: Iterable[int], user: RightsUser) -> int:
    """Return the memory of all tasks (bytes). RequestRefused if any of them could not
    be restored.
    """
    memory = 0
    for pid in tasks:
        owner = None  # read it before the status: a task that ends then shows no memory there
        with contextlib.suppress(OSError):
            owner = os.stat(f"/proc/{pid}/fd").st_uid
        status = status_of(pid)
        problem = obstacle(pid, owner, status, user)
        if problem:
            raise RequestRefused(f"process {status.get('Name', pid)} {problem}")
        memory += memory_of(status) + shared_of(pid, status)
    return memory


def obstacle(pid: int, owner: int | None, status: dict[str, str], user: RightsUser) -> str:
    """Return what prevents a restore of the task, or "".

    It is judged by the task's status (proc(5)) and the ``owner`` of its descriptors.
    """
    if is_dead(status):
        return ""  # restored as a zombie, with the rights of the restore
    if is_apart(pid):
        return "runs in a user namespace of its own, which CRIU cannot restore as a user"
    uids = set(status.get("Uid", "").split()) - {str(user.uid)}
    gids = set(status.get("Gid", "").split()) - {str(user.gid)}
    if uids or gids or any(int(status.get(name, "0"), 16) for name in NEEDED):
        return "has other rights than the job's user"
    if len(status.get("Groups", "").split()) > _MAX_GROUPS:
        return f"has more than {_MAX_GROUPS} groups, which CRIU cannot restore as a user"
    # If a task is not dumpable, its /proc/PID/fd is root's (proc(5)), and so is a zombie's.
    if "RssAnon" in status and owner not in (None, user.uid):
        return (
            "is not dumpable (prctl(2), PR_SET_DUMPABLE), as agents of keys are:"
            " CRIU cannot restore it as a user"
        )
    # CRIU sets the filter before no_new_privs, which seccomp(2) forbids without CAP_SYS_ADMIN.
    if capabilities.is_whole() and is_filtered(pid):
        return "has a seccomp filter, which CRIU cannot restore as a user"
    return ""


def is_filtered(pid: int) -> bool:
    """Return whether a thread of the process has a seccomp filter."""
    return any(status_of(thread).get("Seccomp") == _FILTER for thread in threads_of(pid))
