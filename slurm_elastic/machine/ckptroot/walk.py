"""Walk through the temporary directories of a node, in which all its users create and mount files.

No user can block another user's save: files in a user's own directories count for that user.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator

from .mounts import mount_points, mounts
from .site import RequestRefused

MAX_ENTRIES = 200_000
"""How many files and directories we visit in the directories of one user."""
Seen = tuple[str, os.stat_result]


class Walk:
    """One walk with the rights of ``uid``: everything that this user can see, except on file
    systems mounted below.

    The places and root's directories have no limit, because no user can fill those.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._counts: dict[int, int] = {}
        self.used: set[int] = set()
        self._mounts = mount_points(mounts())

    def below(self, place: str, top: os.stat_result) -> Iterator[Seen]:
        """Yield everything in a place, a directory before its content.

        RequestRefused if there are too many files of the user's own, or in directories of another
        user in which this user has files.
        """
        waiting, leave_out = [(place, 0)], self._mounted(place)
        while waiting:
            directory, owner = waiting.pop()
            for path, status in _entries(directory, leave_out):
                is_mine = status.st_uid == self._uid
                if is_mine:
                    self.used.add(owner)
                if not self.has_turn(self._uid if is_mine else owner, place):
                    break
                yield path, status
                is_inside = stat.S_ISDIR(status.st_mode) and status.st_dev == top.st_dev
                if is_inside and (is_mine or self.has_turn(status.st_uid, place)):
                    waiting.append((path, status.st_uid))

    def _mounted(self, place: str) -> frozenset[str]:
        """Return the mount points below, by their names as seen from ``place``, which may be a
        link.
        """
        real = os.path.realpath(place)
        points = (point for point in self._mounts if point.startswith(f"{real}/"))
        return frozenset(place + point.removeprefix(real) for point in points)

    def has_turn(self, owner: int, place: str) -> bool:
        """Count one more entry for that owner; return whether we visit it.

        ``used`` are the owners in whose directories this user has files.
        """
        if owner == 0:
            return True
        self._counts[owner] = self._counts.get(owner, 0) + 1
        if self._counts[owner] <= MAX_ENTRIES:
            return True
        if owner == self._uid or owner in self.used:
            raise RequestRefused(
                f"more than {MAX_ENTRIES} files are in directories of uid {owner} in {place}"
            )
        return False


def _entries(directory: str, leave_out: Collection[str]) -> Iterator[Seen]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # Skip mount points by their names: a stat call would wait for the file system's server,
            # or for the user's process that serves it (fuse(4)).
            if entry.path not in leave_out:
                with contextlib.suppress(OSError):
                    yield entry.path, entry.stat(follow_symlinks=False)
