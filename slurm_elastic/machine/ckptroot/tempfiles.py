"""Has the files that a job keeps in its node's temporary directories travel with the image, as no
other node has them; they are there again before the job goes on.

In a place that the job has to itself, everything is the job's. A job without a TMPDIR of its own
gets one elsewhere, in which everything is the job's, too. In the node's own places nobody can tell
who made a file. So what the job's user has made or changed since the run began counts as the job's,
unless the user has other processes on the node; then only what the job's tasks have open counts,
and a file that nobody has open is a reason to refuse. All of it is read and written with the user's
rights.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from . import files
from .caller import Caller
from .inventory import open_paths, used
from .mounts import is_local
from .packing import Item, finish, item_of, pack, unpack
from .proc import others_of
from .rights import as_user
from .site import Refused
from .walk import Seen, Walk

PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where programs leave files, not ours
MOST = 256 << 20
"""Most bytes of data that travel."""
ITEMS = 10_000
INDEX, DATA = "local.json", "local.data"
INDEX_MOST = 64 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_EARLIER = 1.0
"""Seconds by which the kernel's clock for files may be behind."""


class TempFiles:
    """The files of one job on this node; ``shared`` is on the file system that all nodes have.

    ``its``: the places that the job has to itself (``private_tmp.py``). ``since`` (ns): what its
    user changes from then on is the job's. ``record`` is a file of root's, which notes what the job
    leaves behind when it moves: if the job comes back, those files are its own and in nobody's way.
    """

    def __init__(
        self, caller: Caller, shared: Path, record: Path, its: Collection[str] = ()
    ) -> None:
        self._caller = caller
        self._record = record
        self._taken: dict[str, tuple[int, int]] = {}
        self.since = int((time.time() - _EARLIER) * 1e9)
        given = os.fsdecode(caller.environment.get(b"TMPDIR", b"")).rstrip("/")
        candidates = dict.fromkeys(p for p in (*PLACES, given) if p.startswith("/"))
        self.places = tuple(p for p in candidates if is_local(p, shared))
        self._given = given
        self._its = frozenset(its)
        self._own = [given] if given in self.places and self._is_for_one_job(given) else []
        self._has_tmpdir = bool(self._own)
        self._own += self._its
        self._made: list[str] = []
        self._left: dict[str, tuple[int, int]] = {}
        self._fresh: dict[str, tuple[int, int]] = {}
        self._lent: list[str] = []

    def _is_for_one_job(self, path: str) -> bool:
        """Whether a TMPDIR is the user's own, not shared by all users like a node's /scratch."""
        try:
            return path not in PLACES and os.stat(path).st_uid == self._caller.uid
        except OSError:
            return False

    def prepare(self) -> dict[bytes, bytes]:
        """Before the job starts: make a TMPDIR if it lacks one; what to add to its environment."""
        top = self._given or PLACES[0]
        if self._has_tmpdir or top in self._its or top not in self.places:
            return {}
        path = f"{top}/slurm-elastic-{self._caller.job}-{secrets.token_hex(4)}"
        try:
            with as_user(self._caller):
                os.mkdir(path, 0o700)
        except OSError:
            return {}
        self._own.append(path)
        self._made.append(path)
        return {b"TMPDIR": os.fsencode(path)}

    def leave(self) -> None:
        """The job was stopped after an image and moves. An OSError is not worth losing its work."""
        with contextlib.suppress(OSError):
            record = files.opened(self._record, _NEW, owners=(0,))
            with open(record, "w") as file:
                json.dump(self._taken, file)
        self.discard()

    def discard(self) -> None:
        """The job is no longer here: remove the TMPDIR that we gave it."""
        for path in self._made:
            with contextlib.suppress(OSError, Refused), as_user(self._caller):
                files.remove(Path(path))

    def found(self, tasks: Collection[int]) -> dict[str, os.stat_result]:
        """The job's files by path, a directory before its files. Refused if they are too many, or
        if we cannot tell which are the job's.
        """
        found: dict[str, os.stat_result] = {}
        with as_user(self._caller):
            for path, seen in self._walk():
                if self._is_ours(path, seen):
                    _check_is_open(path, seen)
                    found[path] = seen
        if others := others_of(self._caller.uid, tasks):
            found = self._told_apart(found, tasks, others)
        where = " and ".join(p for p in self.places if any(one.startswith(p) for one in found))
        if len(found) > ITEMS:
            raise Refused(f"it has {len(found)} files in {where}, {ITEMS} at most travel with it")
        size = sum(seen.st_blocks * 512 for seen in found.values())
        if size > MOST:
            most = f"{MOST >> 20} MiB at most travel with it"
            raise Refused(f"it has {size >> 20} MiB of files in {where}, {most}")
        return found

    def _told_apart(
        self, found: dict[str, os.stat_result], tasks: Collection[int], others: Collection[int]
    ) -> dict[str, os.stat_result]:
        """Those of its user's files that are this job's and not another's."""
        mine, theirs = used(tasks), used(others)
        kept = {}
        for path, seen in found.items():
            file = (seen.st_dev, seen.st_ino)
            if self._is_own(path) or file in mine:
                kept[path] = seen
            elif file not in theirs and not stat.S_ISDIR(seen.st_mode):
                raise Refused(
                    f"{path} may be its own or that of another process of its user on this node"
                )
        for path in [path for path in found if path not in kept]:
            if any(one.startswith(f"{path}/") for one in kept):
                kept[path] = found[path]
        return dict(sorted(kept.items()))

    def missed(self, tasks: Iterable[int], found: Collection[str]) -> str:
        """Why the job would miss files elsewhere: a task works in, has open or has mapped a file in
        a temporary directory that is not among those ``found``, which travel with it. Empty if it
        would not.
        """
        for path in open_paths(tasks):
            if self.holds(path) and path not in found:
                return f"it has {path} open, which is a file of this node alone and not its own"
        return ""

    def has_renamed(self, gone: Mapping[str, tuple[int, int]], tasks: Collection[int]) -> bool:
        """Whether files that are in use by a name that is ``gone`` have another name here, as
        semaphores do (sem_open(3)).
        """
        wanted = {file for name, file in gone.items() if self.holds(name)}
        return bool(wanted) and any(
            (seen.st_dev, seen.st_ino) in wanted for seen in self.found(tasks).values()
        )

    def lend(self, links: Sequence[str]) -> None:
        """Note the additional names that CRIU has given to files of the job's,
        until ``take_back``.
        """
        self._lent = list(links)
        for path in links:
            if not self.holds(path):
                self.take_back()
                raise Refused(f"link remap of a file that is not of this node alone: {path}")

    def take_back(self) -> None:
        """Remove the names that CRIU gave to files, here or where the image was made."""
        shared = set()
        with as_user(self._caller):
            for name in self._lent:
                with contextlib.suppress(OSError):
                    shared.add(os.lstat(name).st_ino)
                    os.unlink(name)
            for path, (inode, _) in self._taken.items():  # which has changed their ctime
                if inode in shared:
                    with contextlib.suppress(OSError):
                        self._taken[path] = (inode, os.lstat(path).st_ctime_ns)
        self._lent = []

    def pack(self, image: Path, most: int, tasks: Collection[int]) -> None:
        """Pack them into the image, at most ``most`` bytes of data, or raise Refused. The tasks
        stand still.
        """
        found = self.found(tasks)
        self._taken = {path: (seen.st_ino, seen.st_ctime_ns) for path, seen in found.items()}
        self._fresh = {}
        if not found:
            return
        names: dict[tuple[int, int], str] = {}
        flags = files.NEW
        with files.held(image / DATA, flags, mode=0o640) as data:
            at, items = 0, []
            for path, seen in found.items():
                with as_user(self._caller), _told(path):
                    item, at = pack(path, seen, names, data, at, min(most, MOST))
                items.append(item)
        packed = {"own": self._made, "lent": self._lent, "items": [asdict(item) for item in items]}
        text = json.dumps(packed).encode()
        if len(text) > INDEX_MOST:
            raise Refused("the names of its files in temporary directories are too long")
        with open(files.opened(image / INDEX, flags, mode=0o640), "wb") as file:
            file.write(text)

    def unpack(self, image: Path) -> None:
        """Put them back from a verified image; Refused if something else is in the way."""
        try:
            index = files.json_of(files.read(image / INDEX, INDEX_MOST, owners=(0,)))
        except FileNotFoundError:
            return
        self.withdraw()
        items = [item_of(one) for one in index["items"]]
        self._left = self._read_record() | self._left
        self._own += index["own"]
        self._made += index["own"]
        self._lent = index.get("lent", [])
        data, laid = files.opened(image / DATA, owners=(0,)), list[Item]()
        try:
            self._lay_out(items, data, laid)
        finally:
            os.close(data)
            self._note(laid)

    def _lay_out(self, items: list[Item], data: int, laid: list[Item]) -> None:
        at = 0
        for item in items:
            self._check_place(item.path)
            with as_user(self._caller), _told(item.path):
                before = _state(item.path)
                at = unpack(item, data, at, self.make_way)
                now = _state(item.path)
            laid.append(item)
            if now and (before is None or before[0] != now[0]):
                self._fresh[item.path] = now
        for item in reversed(items):  # directories, after what is in them
            if stat.S_ISDIR(item.mode):
                with as_user(self._caller), _told(item.path):
                    finish(item)

    def _note(self, laid: list[Item]) -> None:
        """Note what was laid out: if this image is not used after all, that is in no other one's
        way.
        """
        with as_user(self._caller):
            for item in laid:
                with contextlib.suppress(OSError):
                    there = os.lstat(item.path)
                    self._left[item.path] = (there.st_ino, there.st_ctime_ns)

    def withdraw(self) -> None:
        """Remove what was laid out for an image that is not used after all, unless it was changed
        since. An older image, or a job that starts anew, does not expect it.
        """
        with as_user(self._caller):
            for path, state in reversed(self._fresh.items()):  # files before their directory
                _remove_unchanged(path, state)
        self._fresh = {}

    def _read_record(self) -> dict[str, tuple[int, int]]:
        try:
            found = files.json_of(files.read(self._record, INDEX_MOST, owners=(0,)))
        except (OSError, ValueError):
            return {}
        return {path: tuple(state) for path, state in found.items()}

    def holds(self, path: str) -> bool:
        """Whether a path is in one of this node's temporary directories."""
        return path.startswith(tuple(f"{place}/" for place in self.places))

    # what is found

    def _walk(self) -> Iterator[Seen]:
        """Everything there that its user can see, except on file systems that are mounted below."""
        walk = Walk(self._caller.uid)
        for place in self.places:
            try:
                top = os.stat(place)
            except OSError:
                continue
            if place in self._own:
                yield place, top
            yield from walk.below(place, top)

    def _is_ours(self, path: str, seen: os.stat_result) -> bool:
        mode = seen.st_mode
        if seen.st_uid != self._caller.uid or stat.S_ISSOCK(mode):  # CRIU binds sockets anew
            return False
        return self._is_own(path) or seen.st_ctime_ns >= self.since

    def _is_own(self, path: str) -> bool:
        """Whether it is the job's own TMPDIR, or in it."""
        return any(path == own or path.startswith(f"{own}/") for own in self._own)

    # unpacking: all of it with the user's rights

    def _check_place(self, path: str) -> None:
        if not (self.holds(path) or self._is_own(path)):
            raise Refused(f"{path}: not in a temporary directory of this node")

    def make_way(self, path: str) -> None:
        """Remove a file that this job has left, or that is in a place of its own. Anything else
        belongs to another run of the user's, and gets another name. Refused if that run may be at
        work.
        """
        if not os.path.lexists(path):
            return
        there = os.lstat(path)
        is_its = path.startswith(tuple(f"{place}/" for place in self._its))
        # What this job has left when it moved is its own, as long as nobody has changed it since.
        is_left = self._left.get(path) == (there.st_ino, there.st_ctime_ns)
        if (is_its or is_left) and not stat.S_ISDIR(there.st_mode):
            os.unlink(path)
            return
        if not is_its and (other := others_of(self._caller.uid, ())):
            raise Refused(f"{path} is there already, and may be of process {min(other)}")
        for name in (f"{path}.before-{self._caller.job}.{n}" for n in range(1000)):
            if not os.path.lexists(name):
                os.rename(path, name)
                return
        raise Refused(f"{path} is there already")


def _check_is_open(path: str, seen: os.stat_result) -> None:
    """Refused for a directory that the user may not list or enter: we would miss its files."""
    if stat.S_ISDIR(seen.st_mode) and ~seen.st_mode & (stat.S_IRUSR | stat.S_IXUSR):
        raise Refused(f"{path} cannot be looked through with the rights of its user")


def _remove_unchanged(path: str, state: tuple[int, int]) -> None:
    """A directory that is not empty stays, and so does what cannot be removed."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        elif _state(path) == state:
            os.unlink(path)


def _state(path: str) -> tuple[int, int] | None:
    """Inode and time of the last writing; None if there is nothing."""
    with contextlib.suppress(FileNotFoundError):
        there = os.lstat(path)
        return there.st_ino, there.st_mtime_ns
    return None


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
