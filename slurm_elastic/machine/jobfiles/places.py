"""Makes a job's directories on a machine.

Root makes only directories that the head has and the machine lacks, and never below a directory of
the system.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

from .wire import CopyError

_SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "opt", "proc", "root", "run", "sbin", "sys", "usr", "var"}
)
"""Top directories of the system, with those that begin with "lib"."""
NOT_SHARED = -1


def ways_of(path: str) -> tuple[str, ...]:
    """Return the plain path of a directory, and those of the directories before each ".." in it.
    The kernel enters these for Slurm, so the machine needs them, too.
    """
    names = path.split("/")
    ways = [os.path.normpath("/".join(names[:i])) for i, name in enumerate(names) if name == ".."]
    return (os.path.normpath(path), *ways)


def check_way(path: str) -> None:
    """CopyError if Slurm's text leads to another directory than the plain path that is copied. A
    link before a ".." does that. OSError if there is no such directory.
    """
    plain = os.path.normpath(path)
    if not os.path.samefile(path, plain):
        raise CopyError(
            f"{path} leads through a link, and so not to {plain}: submit the job with a path"
            ' without ".."',
            final=True,
        )


def check_owners(path: str, owners: Sequence[int], uid: int) -> None:
    """CopyError if a directory on the way, or a link, belongs to a stranger: not to root, the user
    or its owner on the head (``owners``, for each directory). In a directory that all may write,
    such as /scratch, a stranger could have made it before, and exchange the job's files there.
    """
    way = ""
    for number, name in enumerate(path.strip("/").split("/")):
        way = f"{way}/{name}"
        try:
            owner = os.lstat(way).st_uid
        except OSError:
            return  # its use says so
        if owner not in {0, uid, *owners[number : number + 1]}:
            raise CopyError(
                f"{way} belongs to uid {owner} on the machine, and not on the head: submit the job"
                " from a directory of your own",
                final=True,
            )


def make_place(
    path: str, owners: Sequence[int], uid: int, gid: int, *, shared: Sequence[int] = (),
    groups: Sequence[int] = (),
) -> None:  # fmt: skip
    """Make a directory for the user, as root, and the missing directories above it. ``owners``: for
    each directory on the way, the uid of its owner on the head. A directory of another user gets
    this owner in the end, or it would stay closed to them for as long as the machine lives.

    ``shared``: for each directory, the group that may write there on the head, or NOT_SHARED. If it
    is one of the user's ``groups``, it may write there on the machine, too: the usual directory of
    a project belongs to root or to its leader. Other groups would give the user rights.

    Root enters only directories that no user can change. From the first other directory on, the
    user's rights make the rest.
    """
    names = path.strip("/").split("/")
    if not path.startswith("/") or not {"", ".", ".."}.isdisjoint(names):
        raise CopyError(f"{path!r} is no plain path", final=True)
    is_of_system = names[0] in _SYSTEM or names[0].startswith("lib")
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    ends: list[tuple[int, int, int]] = []
    try:
        for number, name in enumerate(names):
            try:
                owner = owners[number]
                is_made = not is_of_system and _make(
                    name, here, (uid, gid) if owner == uid else None
                )
                below = _enter(name, here)
            except (FileNotFoundError, NotADirectoryError, IndexError):
                return  # its use says so
            os.close(here)
            here = below
            group = shared[number] if number < len(shared) else NOT_SHARED
            group = group if group in groups else NOT_SHARED
            if is_made and (group != NOT_SHARED or owner not in (0, uid)):
                ends.append((os.dup(here), owner, group))
            status = os.fstat(here)
            if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                _as_user(uid, gid, groups, here, names[number + 1 :])
                return
    finally:
        os.close(here)
        # Last: root enters no directory that its owner could change meanwhile.
        for descriptor, owner, group in ends:
            os.fchown(descriptor, owner, group)  # NOT_SHARED leaves the group as it is
            os.fchmod(descriptor, 0o711 if group == NOT_SHARED else 0o2771)
            os.close(descriptor)


def _make(name: str, here: int, owner: tuple[int, int] | None) -> bool:
    """Make a directory. False if it exists."""
    try:
        # Users of one machine need not see each other's files: the mode is 0700.
        os.mkdir(name, 0o755 if owner is None else 0o700, dir_fd=here)
    except FileExistsError:
        return False
    if owner is not None:
        os.chown(name, *owner, dir_fd=here, follow_symlinks=False)
    return True


def _enter(name: str, here: int) -> int:
    # Root may follow a link of root's, such as /home -> /data/home.
    trusted = os.lstat(name, dir_fd=here).st_uid == 0
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if trusted else os.O_NOFOLLOW)
    return os.open(name, flags, dir_fd=here)


def _as_user(uid: int, gid: int, groups: Sequence[int], here: int, names: Sequence[str]) -> None:
    """Make the directories below ``here`` with the rights of the user."""
    if not names:
        return
    # Only root's uid may set groups, so the uid is changed last and comes back first.
    of_root, umask = os.getgroups(), os.umask(0o077)
    os.setgroups(list(groups))
    os.setegid(gid)
    os.seteuid(uid)
    try:
        with contextlib.suppress(OSError):  # if it cannot be made, its use says so
            os.fchdir(here)
            os.makedirs("/".join(names), exist_ok=True)
    finally:
        os.chdir("/")
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(of_root)
        os.umask(umask)
