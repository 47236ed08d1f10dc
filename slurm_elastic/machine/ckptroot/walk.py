"""Walks through the temporary directories of a node, which all its users fill and mount into.

No user can keep another one's job from its save: what is in a user's own directories counts for
that user.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator

from .mounts import mount_points, mounts
from .site import Refused

MOST = 200_000
"""Most files and directories that we look at in the directories of one user."""
Seen = tuple[str, os.stat_result]


class Walk:
    """One walk with the rights of ``uid``: everything that this user can see, except on file
    systems that are mounted below. The places and root's directories have no bound, as no user
    fills those.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._counts: dict[int, int] = {}
        self.used: set[int] = set()
        self._mounts = mount_points(mounts())

    def below(self, place: str, top: os.stat_result) -> Iterator[Seen]:
        """Everything in a place, a directory before its content. Refused if there is too much of
        the user's own, or in directories of another user where this one has files.
        """
        waiting, leave_out = [(place, 0)], self._mounted(place)
        while waiting:
            directory, owner = waiting.pop()
            for path, seen in _entries(directory, leave_out):
                is_mine = seen.st_uid == self._uid
                if is_mine:
                    self.used.add(owner)
                if not self.has_turn(self._uid if is_mine else owner, place):
                    break
                yield path, seen
                is_inside = stat.S_ISDIR(seen.st_mode) and seen.st_dev == top.st_dev
                if is_inside and (is_mine or self.has_turn(seen.st_uid, place)):
                    waiting.append((path, seen.st_uid))

    def _mounted(self, place: str) -> frozenset[str]:
        """The mount points below, by their names as seen from ``place``, which may be a link."""
        real = os.path.realpath(place)
        there = (point for point in self._mounts if point.startswith(f"{real}/"))
        return frozenset(place + point.removeprefix(real) for point in there)

    def has_turn(self, owner: int, place: str) -> bool:
        """Count one more for that user; whether we look at it. ``used`` are the users in whose
        directories this one has files.
        """
        if owner == 0:
            return True
        self._counts[owner] = self._counts.get(owner, 0) + 1
        if self._counts[owner] <= MOST:
            return True
        if owner == self._uid or owner in self.used:
            raise Refused(f"more than {MOST} files are in directories of uid {owner} in {place}")
        return False


def _entries(directory: str, leave_out: Collection[str]) -> Iterator[Seen]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # Mount points by their names: to ask about a file system means waiting for its server,
            # or for the user's process that serves it (fuse(4)).
            if entry.path not in leave_out:
                with contextlib.suppress(OSError):
                    yield entry.path, entry.stat(follow_symlinks=False)
