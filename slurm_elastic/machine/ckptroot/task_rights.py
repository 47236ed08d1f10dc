"""Checks that a job's user may restore its tasks: CRIU restores them with his rights and the few of
``capabilities.restorer``, and gives no task more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from . import capabilities
from .proc import is_apart, is_dead, memory_of, shared_of, status_of, threads_of
from .rights import User
from .site import Refused

NEEDED = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_MOST_GROUPS = 128
"""CRIU compares no more of them before it calls setgroups(2) (criu/pie/restorer.c,
groups_match).
"""
_FILTER = "2"  # proc(5), Seccomp in status: SECCOMP_MODE_FILTER


def check(tasks: Iterable[int], user: User) -> int:
    """Refused where one could not be restored; the memory of all of them (bytes)."""
    memory = 0
    for pid in tasks:
        owner = None  # looked up before the status, in which a task that ends has no memory
        with contextlib.suppress(OSError):
            owner = os.stat(f"/proc/{pid}/fd").st_uid
        status = status_of(pid)
        why = obstacle(pid, owner, status, user)
        if why:
            raise Refused(f"process {status.get('Name', pid)} {why}")
        memory += memory_of(status) + shared_of(pid, status)
    return memory


def obstacle(pid: int, owner: int | None, status: dict[str, str], user: User) -> str:
    """What prevents a restore of the task, by its status (proc(5)) and the owner of its
    descriptors; empty if nothing does.
    """
    if is_dead(status):
        return ""  # it is restored as a dead process, with the rights of the restore
    if is_apart(pid):
        return "runs in a user namespace of its own, which CRIU cannot restore as a user"
    uids = set(status.get("Uid", "").split()) - {str(user.uid)}
    gids = set(status.get("Gid", "").split()) - {str(user.gid)}
    if uids or gids or any(int(status.get(name, "0"), 16) for name in NEEDED):
        return "has other rights than the job's user"
    if len(status.get("Groups", "").split()) > _MOST_GROUPS:
        return f"has more than {_MOST_GROUPS} groups, which CRIU cannot restore as a user"
    # /proc/PID/fd of a task that is not dumpable is root's (proc(5)); so is that of a zombie.
    if "RssAnon" in status and owner not in (None, user.uid):
        return (
            "is not dumpable (prctl(2), PR_SET_DUMPABLE), as agents of keys are:"
            " CRIU cannot restore it as a user"
        )
    # Set before no_new_privs comes back (seccomp(2)).
    if capabilities.is_whole() and is_filtered(pid):
        return "has a seccomp filter, which CRIU cannot restore as a user"
    return ""


def is_filtered(pid: int) -> bool:
    """Whether a thread of the process has a seccomp filter."""
    return any(status_of(thread).get("Seccomp") == _FILTER for thread in threads_of(pid))
