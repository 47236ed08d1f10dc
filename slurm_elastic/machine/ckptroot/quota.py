"""How much of root's image storage a job and its user may use.

We count the blocks that files take, so holes cost nothing. One small file per user records, for
each of the user's jobs, the used bytes and the bytes promised to its next save. A promise reduces
the room of all other jobs. Entries of jobs without a directory do not count.
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
from .site import HelperSite, RequestRefused

_MAX_BYTES = 16 << 20
_DEPTH = 3
"""Levels of directories: the job's, images, an image."""
LOCK_TIMEOUT_S = 10.0
"""Seconds that we wait while another process holds the lock of a user's file."""
TURN_TIMEOUT_S = 2.0
"""Seconds that we wait while other processes make promises."""
_BLOCK_BYTES = 512  # st_blocks, stat(2)


@dataclass(frozen=True)
class Room:
    """How many more bytes a job may have, by the strictest limit."""

    size: int
    limit: str

    def check(self, need: int) -> None:
        """Raise RequestRefused if ``need`` is more than the job may have."""
        if need > self.size:
            left_mib = max(self.size, 0) >> 20
            raise RequestRefused(
                f"no room: {need >> 20} MiB needed, {left_mib} MiB left by {self.limit}"
            )


@dataclass(frozen=True)
class QuotaPart:
    """The bytes that a job ``has``, and the bytes promised to its ``next`` save."""

    has: int = 0
    next: int = 0


class JobQuota:
    """One job's share; ``path`` is its directory."""

    def __init__(self, site: HelperSite, job: int, uid: int, path: Path) -> None:
        self.site = site
        self._job = str(job)
        self._place = site.jobs / "quota"
        self._file = self._place / str(uid)
        self._uid = uid
        self._path = path

    def room(self, need: int) -> Room:
        """Return the room that the job may take now, and promise it ``need`` bytes.

        RequestRefused if there is less; an earlier promise then stays valid.
        """
        with self._in_turn(), self._entries() as entries:
            before, has = entries.get(self._job, QuotaPart()), allocated(self._path)
            entries[self._job] = QuotaPart(has, before.next)
            room = self._room(has, entries)
            room.check(need)
            entries[self._job] = QuotaPart(has, need)
        return room

    def settle(self) -> None:
        """Count the bytes that the job has now. RequestRefused if it has more than it may."""
        with self._entries() as entries:
            before, has = entries.get(self._job, QuotaPart()), allocated(self._path)
            entries[self._job] = QuotaPart(has, before.next)
            self._room(has, entries).check(0)

    def forget(self) -> None:
        """Remove the job's entry: it has no files, or its directory belongs to another user now."""
        with self._entries() as entries:
            entries.pop(self._job, None)

    def _room(self, has: int, entries: dict[str, QuotaPart]) -> Room:
        site, file_system = self.site, os.statvfs(self.site.jobs)
        total = file_system.f_blocks * file_system.f_frsize
        free = file_system.f_bavail * file_system.f_frsize
        job, user = site.job_quota.of(total), site.user_quota.of(total)
        other_jobs = [job_part for name, job_part in entries.items() if name != self._job]
        used_by_user = has + sum(job_part.has for job_part in other_jobs)
        promised_to_user = sum(job_part.next for job_part in other_jobs)
        promised = promised_to_user + self._strangers()
        rooms = (
            Room(job - has, f"job_quota = {site.job_quota}, the job has {has >> 20} MiB"),
            Room(
                user - used_by_user - promised_to_user,
                f"user_quota = {site.user_quota}, jobs of uid {self._uid} have"
                f" {used_by_user >> 20} MiB, {promised_to_user >> 20} MiB are promised to other"
                " saves of theirs",
            ),
            Room(
                free - site.keep_free.of(total) - promised,
                f"keep_free = {site.keep_free} of {site.jobs}, {free >> 20} MiB are free,"
                f" {promised >> 20} MiB promised to other saves",
            ),
        )
        return min(rooms, key=lambda room: room.size)

    def _strangers(self) -> int:
        """Return the bytes promised to other users' saves."""
        promised = 0
        for path in self._place.iterdir():
            if path.name.isdigit() and path != self._file:
                with contextlib.suppress(RequestRefused, FileNotFoundError):
                    promised += sum(entry.next for entry in _read_parts(path).values())
        return promised

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Let all processes make promises one after the other, so that each counts the earlier
        ones.
        """
        self._make_place()
        with files.held(self._place / "lock", os.O_RDWR | os.O_CREAT, owners=(0,)) as lock:
            # A busy lock must not fail a save: continue without it. ``keep_free`` covers two
            # promises at once.
            with contextlib.suppress(RequestRefused):
                _take(lock, self._place, TURN_TIMEOUT_S)
            yield

    def _make_place(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._place.mkdir(mode=0o700)

    @contextlib.contextmanager
    def _entries(self) -> Iterator[dict[str, QuotaPart]]:
        """Yield the entries of all jobs of the user for changes. They are written at the end, also
        after RequestRefused.
        """
        self._make_place()
        with files.held(f"{self._file}.lock", os.O_RDWR | os.O_CREAT, owners=(0,)) as lock:
            _take(lock, self._file, LOCK_TIMEOUT_S)
            entries = self._read()
            try:
                yield entries
            finally:
                self._write(entries)

    def _read(self) -> dict[str, QuotaPart]:
        try:
            entries = _read_parts(self._file)
        except FileNotFoundError:
            return {}
        return {job: entry for job, entry in entries.items() if (self.site.jobs / job).is_dir()}

    def _write(self, entries: dict[str, QuotaPart]) -> None:
        # A new file, written and then renamed: after a crash there is the old file or the new one.
        new = self._file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(files.opened(new, files.NEW), "wb") as file:
            content = {job: (entry.has, entry.next) for job, entry in entries.items()}
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._file)


def tidy(site: HelperSite) -> None:
    """Remove entries of jobs without a directory, so that their promises end."""
    for path in sorted((site.jobs / "quota").glob("*[0-9]")):
        if path.name.isdigit():
            JobQuota(site, 0, int(path.name), site.jobs).forget()


def _read_parts(path: Path) -> dict[str, QuotaPart]:
    try:
        rows = files.json_of(files.read(path, _MAX_BYTES, owners=(0,)))
        return {str(job): QuotaPart(int(has), int(next_)) for job, (has, next_) in rows.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestRefused(f"{path}: cannot be read: {error}") from error


def allocated(path: Path) -> int:
    """Return the bytes of the blocks that a job's directory and everything in it take."""
    total, places = 0, [(path, _DEPTH)]
    while places:
        place, depth = places.pop()
        for name, status in _entries(place):
            total += status.st_blocks * _BLOCK_BYTES
            if stat.S_ISDIR(status.st_mode) and depth > 1:
                places.append((place / name, depth - 1))
    return total


def _entries(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the entries of a directory. Entries that vanish during the call are left out."""
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
                raise RequestRefused(f"{path}: busy for {patience:.0f} s") from error
            time.sleep(0.02)
        else:
            return
