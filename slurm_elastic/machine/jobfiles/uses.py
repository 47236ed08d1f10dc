"""The directories in which jobs work on this machine, so that jobs of two users do not share one.

Root has a file for each run, in a directory of its own: whoever could write there could keep the
jobs of all other users out. The copy's process keeps its file open when it becomes the user, and
empties it when the run no longer uses the directory. The file has the time of the run's order.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from typing import ClassVar

from .identity import Identity
from .wire import CopyError

PLACE = "/var/lib/slurm-elastic-node/uses"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Use:
    """A run's use of its directory. Made by root. ``begin``: the run is about to use it."""

    guarded_by: ClassVar[dict[str, str]] = {"place": "to look for other uses and to add one"}

    def __init__(self, identity: Identity, directory: str, *, begin: bool) -> None:
        os.makedirs(PLACE, 0o700, exist_ok=True)
        self._identity, self._directory = identity, os.path.normpath(directory)
        self._file, self._has_others = -1, False
        name = f"{PLACE}/{identity.uid}.{identity.run}"
        if not begin:
            with contextlib.suppress(FileNotFoundError):
                self._file = os.open(name, _FLAGS)
            return
        # Before the lock: a look at a directory may take long.
        is_of_group = _is_of_group(self._directory)
        place = os.open(PLACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Of two copies that come at the same moment the second must see the first.
            fcntl.flock(place, fcntl.LOCK_EX)
            self._has_others = self._find_others(is_of_group=is_of_group)
            self._begin(name, is_of_group=is_of_group)
        finally:
            os.close(place)

    def _find_others(self, *, is_of_group: bool) -> bool:
        """Whether a job of another user works in the directory of a group, or above or below it."""
        has_others = False
        for name in os.listdir(PLACE):
            uid, _, run = name.partition(".")
            other = self._read(f"{PLACE}/{name}", run)
            if other is None or int(uid) == self._identity.uid:
                continue
            theirs = str(other["directory"])
            has_others |= is_of_group and _is_in(self._directory, theirs)
            has_others |= bool(other["is_of_group"]) and _is_in(theirs, self._directory)
        return has_others

    def _begin(self, name: str, *, is_of_group: bool) -> None:
        self._file = os.open(name, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        text = json.dumps({"directory": self._directory, "is_of_group": is_of_group})
        os.write(self._file, text.encode())
        os.utime(self._file, ns=(self._identity.made_at, self._identity.made_at))
        os.fsync(self._file)

    def check(self) -> None:
        """CopyError if a job of another user works there. Neither user's record would know what the
        other user's job has changed, and its files would be overwritten.
        """
        if self._has_others:
            self.end()
            raise CopyError(
                f"a job of another user works on the machine in {self._directory}, or in a"
                " directory of its group above or below: release the job later, or submit it from"
                " a directory of your own",
                final=True,
            )

    def end(self) -> None:
        """Note that the run does not use the directory. The user may call it, too."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)

    def _read(self, path: str, run: str) -> dict[str, object] | None:
        """Read what a run uses; None if it uses no directory any more. Such a file is removed."""
        with open(path, encoding="ascii") as file:
            text = file.read()
            ordered_at = os.fstat(file.fileno()).st_mtime_ns
        # The head may have given a run up: then no copy back comes for it.
        if text and self._identity.counts(run, ordered_at):
            return dict(json.loads(text))
        os.unlink(path)
        return None


def _is_of_group(directory: str) -> bool:
    """Whether a group may write in the directory."""
    try:
        return bool(os.stat(directory).st_mode & stat.S_IWGRP)
    except OSError:
        return False  # its use says so


def _is_in(path: str, directory: str) -> bool:
    """Whether the path is the directory, or is below it."""
    return f"{path}/".startswith(f"{directory}/")
