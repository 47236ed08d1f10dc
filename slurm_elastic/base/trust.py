"""Whether anybody else could have written, or can read, a file that root or SlurmUser goes by.

Who can change a file, a directory above it or a link on the way to it says what is in it. So all of
these have to belong to whom we go by, and be writable by nobody else.
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
_MOST_LINKS = 40
_slurm_user: set[int] = set()


def also(uid: int) -> None:
    """Let root go by files of that user, SlurmUser, besides its own; the last one said counts."""
    _slurm_user.clear()
    _slurm_user.add(uid)


def roots() -> set[int]:
    """Whom programs and configurations may belong to: root, who we are and, where that is root by
    sudo(8), who asked for it.
    """
    us = os.geteuid()
    by = os.environ.get("SUDO_UID", "") if us == 0 else ""
    return {0, us, *([int(by)] if by.isdecimal() else ())}


def ours() -> set[int]:
    """Whom credentials may belong to: the same, and SlurmUser."""
    return roots() | (_slurm_user if os.geteuid() == 0 else set())


def flaw(path: str | Path, owners: Collection[int], *, private: bool = False) -> str | None:
    """Why the file or directory is not to be gone by, with what would mend that; None where it is
    sound. Root is one of the owners. A ``private`` one must be readable by nobody else. OSError
    where it cannot be looked at.
    """
    owners = {0, *owners}
    place, seen = "", os.lstat("/")
    for place, seen in _way(str(path)):
        if seen.st_uid not in owners:
            wanted = " or ".join(_name(uid) for uid in sorted(owners))
            return f"{place} belongs to {_name(seen.st_uid)}, not to {wanted}; chown {place}"
        if not stat.S_ISLNK(seen.st_mode) and _is_open(seen):
            mode = stat.S_IMODE(seen.st_mode)
            return f"{place} may be written by others (mode {mode:04o}); chmod go-w {place}"
    if private and stat.S_ISREG(seen.st_mode) and seen.st_mode & _OTHERS:
        mode = stat.S_IMODE(seen.st_mode)
        return f"{place} may be read by others (mode {mode:04o}); chmod 600 {place}"
    return None


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """All that the path goes through from the root on, links and where they lead included."""
    left, at, links = [path if path.startswith("/") else f"{os.getcwd()}/{path}"], "/", 0
    apart = False  # whether a descriptor has led here: only the kernel knows what is above it
    yield at, os.lstat(at)
    while left:
        part, _, rest = left.pop().lstrip("/").partition("/")
        if rest:
            left.append(rest)
        if part in ("", "."):
            continue
        if part == ".." and not apart:
            at = os.path.dirname(at)
            continue
        place = os.path.join(at, part)
        seen = os.lstat(place)
        yield place, seen
        if not stat.S_ISLNK(seen.st_mode):
            at = place
            continue
        if at.startswith("/proc/") and not apart:
            yield place, os.stat(place)
            at, apart = place, True
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(place)
        if target.startswith("/"):
            at, apart = "/", False
        left.append(target)


def _is_open(seen: os.stat_result) -> bool:
    """Whether others may write it. In a sticky directory (/tmp) they cannot touch what is not
    theirs; devices and pipes have modes of their own.
    """
    mode = seen.st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) or not mode & _OTHERS_WRITE:
        return False
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False
    return bool(mode & stat.S_IWOTH) or not _is_private_group(seen)


def _is_private_group(seen: os.stat_result) -> bool:
    """Whether the group is its owner's alone, as many systems make one for each user: it has no
    other member, and is no other user's first group, as far as this host lists its users.
    """
    try:
        owner, group = pwd.getpwuid(seen.st_uid).pw_name, grp.getgrgid(seen.st_gid)
    except KeyError:
        return False
    if seen.st_uid == 0 or group.gr_name != owner or not set(group.gr_mem) <= {owner}:
        return False
    return all(user.pw_uid == seen.st_uid for user in pwd.getpwall() if user.pw_gid == seen.st_gid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
