"""How much of root's image storage a job and its user may have.

We count the blocks that files take, so holes cost nothing. One small file for each user notes the
room that each of his jobs has, and how much is promised to its next save. Promises hold: room that
was promised to one job is none for the others. Entries of jobs whose directory is gone do not
count.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import files
from .site import Refused, Site

_MOST = 16 << 20
_DEPTH = 3
"""A job's directory, images, one image."""
PATIENCE = 10.0
"""Seconds that we wait while another process has a user's file."""
TURN = 2.0
"""Seconds that we wait for promises that are being made."""
_BLOCK = 512  # st_blocks, stat(2)


@dataclass(frozen=True)
class Room:
    """How many more bytes a job may have, by the limit that leaves the least."""

    size: int
    limit: str

    def check(self, need: int) -> None:
        """Refused if that is too little."""
        if need > self.size:
            there = max(self.size, 0) >> 20
            raise Refused(f"no room: {need >> 20} MiB needed, {there} MiB left by {self.limit}")


@dataclass(frozen=True)
class Part:
    """The bytes that a job ``has``, and those that are promised to its ``next`` save."""

    has: int = 0
    next: int = 0


class Quota:
    """One job's part; ``path`` is its directory."""

    def __init__(self, site: Site, job: int, uid: int, path: Path) -> None:
        self.site = site
        self._job = str(job)
        self._place = site.jobs / "quota"
        self._file = self._place / str(uid)
        self._uid = uid
        self._path = path

    def room(self, need: int) -> Room:
        """The room that the job may take now; ``need`` of it is promised to the job from now on. If
        there is less, raises Refused, and an earlier promise stands.
        """
        with self._in_turn(), self._entries() as entries:
            before, has = entries.get(self._job, Part()), allocated(self._path)
            entries[self._job] = Part(has, before.next)
            room = self._room(has, entries)
            room.check(need)
            entries[self._job] = Part(has, need)
        return room

    def settle(self) -> None:
        """Count what the job has now. Refused if that is more than it may have."""
        with self._entries() as entries:
            before, has = entries.get(self._job, Part()), allocated(self._path)
            entries[self._job] = Part(has, before.next)
            self._room(has, entries).check(0)

    def forget(self) -> None:
        """Forget the job, which has nothing any more, or whose directory is another
        user's by now.
        """
        with self._entries() as entries:
            entries.pop(self._job, None)

    def _room(self, has: int, entries: dict[str, Part]) -> Room:
        site, there = self.site, os.statvfs(self.site.jobs)
        total = there.f_blocks * there.f_frsize
        free = there.f_bavail * there.f_frsize
        job, user = site.job_quota.of(total), site.user_quota.of(total)
        others = [part for name, part in entries.items() if name != self._job]
        had = has + sum(part.has for part in others)
        own = sum(part.next for part in others)
        promised = own + self._strangers()
        rooms = (
            Room(job - has, f"job_quota = {site.job_quota}, the job has {has >> 20} MiB"),
            Room(
                user - had - own,
                f"user_quota = {site.user_quota}, jobs of uid {self._uid} have {had >> 20} MiB,"
                f" {own >> 20} MiB are promised to other saves of theirs",
            ),
            Room(
                free - site.keep_free.of(total) - promised,
                f"keep_free = {site.keep_free} of {site.jobs}, {free >> 20} MiB are free,"
                f" {promised >> 20} MiB promised to other saves",
            ),
        )
        return min(rooms, key=lambda room: room.size)

    def _strangers(self) -> int:
        """Bytes that are promised to other users' saves."""
        promised = 0
        for path in self._place.iterdir():
            if path.name.isdigit() and path != self._file:
                with contextlib.suppress(Refused, FileNotFoundError):
                    promised += sum(part.next for part in _parts(path).values())
        return promised

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Make promises one after the other, whoever's, so that each counts those before it."""
        self._make_place()
        with files.held(self._place / "lock", os.O_RDWR | os.O_CREAT, owners=(0,)) as lock:
            # No save fails for that: after a while we go on, and ``keep_free`` covers two at once.
            with contextlib.suppress(Refused):
                _take(lock, self._place, TURN)
            yield

    def _make_place(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._place.mkdir(mode=0o700)

    @contextlib.contextmanager
    def _entries(self) -> Iterator[dict[str, Part]]:
        """The entries of all jobs of the user, to be changed; written at the end, after a refusal,
        too.
        """
        self._make_place()
        with files.held(f"{self._file}.lock", os.O_RDWR | os.O_CREAT, owners=(0,)) as lock:
            _take(lock, self._file, PATIENCE)
            entries = self._read()
            try:
                yield entries
            finally:
                self._write(entries)

    def _read(self) -> dict[str, Part]:
        try:
            parts = _parts(self._file)
        except FileNotFoundError:
            return {}
        return {job: part for job, part in parts.items() if (self.site.jobs / job).is_dir()}

    def _write(self, entries: dict[str, Part]) -> None:
        new = self._file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(files.opened(new, files.NEW), "wb") as file:
            content = {job: (part.has, part.next) for job, part in entries.items()}
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._file)


def tidy(site: Site) -> None:
    """Remove entries of jobs whose directory is gone, so that what was promised to them is free."""
    for path in sorted((site.jobs / "quota").glob("*[0-9]")):
        if path.name.isdigit():
            Quota(site, 0, int(path.name), site.jobs).forget()


def _parts(path: Path) -> dict[str, Part]:
    try:
        found = files.json_of(files.read(path, _MOST, owners=(0,)))
        return {str(job): Part(int(has), int(next_)) for job, (has, next_) in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from error


def allocated(path: Path) -> int:
    """Bytes of the blocks that a job's directory and everything in it take."""
    total, places = 0, [(path, _DEPTH)]
    while places:
        place, depth = places.pop()
        for name, found in _entries(place):
            total += found.st_blocks * _BLOCK
            if stat.S_ISDIR(found.st_mode) and depth > 1:
                places.append((place / name, depth - 1))
    return total


def _entries(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of a directory; what vanishes meanwhile is left out."""
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)


def _take(lock: int, path: Path, patience: float) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise Refused(f"{path}: busy for {patience:.0f} s") from error
            time.sleep(0.02)
        else:
            return
