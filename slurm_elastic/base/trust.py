"""Whether another user can read a file that root or SlurmUser relies on, or could have written it.

A user who can change the file, a directory above it or a link on the way to it decides its content.
So all of these must belong to a trusted user and be writable by no other.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

_OTHERS_WRITE, _OTHERS = 0o022, 0o077
_MAX_LINKS = 40
"""As many as the kernel follows (path_resolution(7))."""
_slurm_user: set[int] = set()


def trust_slurm_user(uid: int) -> None:
    """Let root rely on files of this user, SlurmUser, as well. A later call replaces the user."""
    _slurm_user.clear()
    _slurm_user.add(uid)


def roots() -> set[int]:
    """The uids that may own programs and configurations: root, our own, and the caller of sudo(8)
    if we are root by sudo.
    """
    uid = os.geteuid()
    sudo_uid = os.environ.get("SUDO_UID", "") if uid == 0 else ""
    return {0, uid, *([int(sudo_uid)] if sudo_uid.isdecimal() else ())}


def ours() -> set[int]:
    """The uids that may own credentials: the uids of ``roots``, and SlurmUser's."""
    return roots() | (_slurm_user if os.geteuid() == 0 else set())


def flaw(path: str | Path, owners: Collection[int], *, private: bool = False) -> str | None:
    """Why the file or directory cannot be trusted, and the command that repairs it. None if it can.

    ``owners`` may own it, and so may root. If ``private``, no other user may be able to read it.
    OSError if a part of the path cannot be read.
    """
    owners = {0, *owners}
    place, status = "", os.lstat("/")
    for place, status in _way(str(path)):
        if status.st_uid not in owners:
            owner_names = " or ".join(_name(uid) for uid in sorted(owners))
            # A secret must stay readable to the services; all else may be root's.
            is_secret = private and stat.S_ISREG(status.st_mode)
            new_owner = min(_slurm_user.intersection(owners), default=0) if is_secret else 0
            return (
                f"{place} belongs to {_name(status.st_uid)}, not to {owner_names}; "
                f"chown {_name(new_owner)} {place}"
            )
        if not stat.S_ISLNK(status.st_mode) and _is_open(status):
            mode = stat.S_IMODE(status.st_mode)
            return f"{place} may be written by others (mode {mode:04o}); chmod go-w {place}"
    if private and stat.S_ISREG(status.st_mode) and status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        return f"{place} may be read by others (mode {mode:04o}); chmod 600 {place}"
    return None


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory, link and file on the path from the root on, and every target of a link."""
    pending_paths, directory, links = (
        [path if path.startswith("/") else f"{os.getcwd()}/{path}"],
        "/",
        0,
    )
    # Whether a descriptor has led to ``directory``: then only the kernel knows its "..".
    is_by_descriptor = False
    yield directory, os.lstat(directory)
    while pending_paths:
        name, _, path_below = pending_paths.pop().lstrip("/").partition("/")
        if path_below:
            pending_paths.append(path_below)
        if name in ("", "."):
            continue
        if name == ".." and not is_by_descriptor:
            directory = os.path.dirname(directory)
            continue
        place = os.path.join(directory, name)
        status = os.lstat(place)
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            directory = place
            continue
        # A link of /proc/PID/fd is no text: it leads to the open file itself (proc(5)).
        if directory.startswith("/proc/") and not is_by_descriptor:
            yield place, os.stat(place)
            directory, is_by_descriptor = place, True
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(place)
        if target.startswith("/"):
            directory, is_by_descriptor = "/", False
        pending_paths.append(target)


def _is_open(status: os.stat_result) -> bool:
    """Whether users other than the owner may write the file or directory. In a sticky directory
    (/tmp) they cannot touch files of others. Modes of devices and pipes mean something else.
    """
    mode = status.st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) or not mode & _OTHERS_WRITE:
        return False
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False
    return bool(mode & stat.S_IWOTH) or not _is_private_group(status)


def _is_private_group(status: os.stat_result) -> bool:
    """Whether the file's group contains only its owner, as many systems create such a group for
    each user. The group has no other member and is no other user's first group, as far as this host
    lists its users.
    """
    try:
        owner, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    if status.st_uid == 0 or group.gr_name != owner or not set(group.gr_mem) <= {owner}:
        return False
    return all(
        user.pw_uid == status.st_uid for user in pwd.getpwall() if user.pw_gid == status.st_gid
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
