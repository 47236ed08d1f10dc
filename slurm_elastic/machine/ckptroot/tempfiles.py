"""Carry the files of a job in its node's temporary directories in the image, because no other node
has them.

They are restored before the job continues. In a place that the job has to itself, all files are the
job's. A job without a TMPDIR of its own gets one elsewhere, in which all files are the job's, too.
In the node's own places nobody can tell who made a file. There, files that the job's user has made
or changed since the run began count as the job's, unless the user has other processes on the node.
Then only files that the job's tasks have open count, and a file that no process has open is a
reason to refuse. All files are read and written with the user's rights.
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
from .site import RequestRefused
from .walk import Seen, Walk

PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where programs leave files, not ours
MAX_DATA_BYTES = 256 << 20
"""How much data of these files an image may carry."""
MAX_ITEMS = 10_000
INDEX, DATA = "local.json", "local.data"
MAX_INDEX_BYTES = 64 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_CLOCK_LAG_S = 1.0
"""Seconds by which the kernel's clock for files may be behind."""


class TempFiles:
    """The files of one job on this node. ``shared`` is on the file system that all nodes have.

    - ``its``: the places that the job has to itself (``private_tmp.py``).
    - ``since`` (ns): files that its user changes later are the job's.
    - ``record``: a file of root's that lists the files which the job leaves behind when it moves.
      If the job comes back, those files are its own and may be replaced.
    """

    def __init__(
        self, caller: Caller, shared: Path, record: Path, its: Collection[str] = ()
    ) -> None:
        self._caller = caller
        self._record = record
        self._packed: dict[str, tuple[int, int]] = {}
        self.since = int((time.time() - _CLOCK_LAG_S) * 1e9)
        tmpdir = os.fsdecode(caller.environment.get(b"TMPDIR", b"")).rstrip("/")
        candidates = dict.fromkeys(p for p in (*PLACES, tmpdir) if p.startswith("/"))
        self.places = tuple(p for p in candidates if is_local(p, shared))
        self._tmpdir = tmpdir
        self._its = frozenset(its)
        self._own = [tmpdir] if tmpdir in self.places and self._is_for_one_job(tmpdir) else []
        self._has_tmpdir = bool(self._own)
        self._own += self._its
        self._made: list[str] = []
        self._left_behind: dict[str, tuple[int, int]] = {}
        self._fresh: dict[str, tuple[int, int]] = {}
        self._lent: list[str] = []

    def _is_for_one_job(self, path: str) -> bool:
        """Return whether a TMPDIR is the user's own, not shared by all users like a node's
        /scratch.
        """
        try:
            return path not in PLACES and os.stat(path).st_uid == self._caller.uid
        except OSError:
            return False

    def prepare(self) -> dict[bytes, bytes]:
        """Before the job starts: create a TMPDIR if it lacks one; return additions to its
        environment.
        """
        top = self._tmpdir or PLACES[0]
        if self._has_tmpdir or top in self._its or top not in self.places:
            return {}
        # Random, so that no other user can put the name there before us.
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
        """Record the files that the job leaves behind, because it was stopped after an image and
        moves. An OSError must not cost its work.
        """
        with contextlib.suppress(OSError):
            record = files.opened(self._record, _NEW, owners=(0,))
            with open(record, "w") as file:
                # Inode and ctime: a file that was changed after the image has another ctime and
                # counts as foreign.
                json.dump(self._packed, file)
        self.discard()

    def discard(self) -> None:
        """Remove the TMPDIR that we gave the job, because it is no longer here."""
        for path in self._made:
            with contextlib.suppress(OSError, RequestRefused), as_user(self._caller):
                files.remove(Path(path))

    def own_files(self, tasks: Collection[int]) -> dict[str, os.stat_result]:
        """Return the job's files by path, a directory before its files.

        RequestRefused if they are too many, or if we cannot tell which files are the job's.
        """
        job_files: dict[str, os.stat_result] = {}
        with as_user(self._caller):
            for path, status in self._walk():
                if self._is_ours(path, status):
                    _check_is_open(path, status)
                    job_files[path] = status
        # Owner and time do not tell one process of a user from another.
        if other_processes := others_of(self._caller.uid, tasks):
            job_files = self._without_others(job_files, tasks, other_processes)
        where = " and ".join(
            p for p in self.places if any(path.startswith(p) for path in job_files)
        )
        if len(job_files) > MAX_ITEMS:
            raise RequestRefused(
                f"it has {len(job_files)} files in {where}, {MAX_ITEMS} at most travel with it"
            )
        size = sum(status.st_blocks * 512 for status in job_files.values())
        if size > MAX_DATA_BYTES:
            limit = f"{MAX_DATA_BYTES >> 20} MiB at most travel with it"
            raise RequestRefused(f"it has {size >> 20} MiB of files in {where}, {limit}")
        return job_files

    def _without_others(
        self,
        candidates: dict[str, os.stat_result],
        tasks: Collection[int],
        other_processes: Collection[int],
    ) -> dict[str, os.stat_result]:
        """Return the user's files that belong to this job and not to other processes."""
        used_by_job, used_by_others = used(tasks), used(other_processes)
        kept = {}
        for path, status in candidates.items():
            file = (status.st_dev, status.st_ino)
            if self._is_own(path) or file in used_by_job:
                kept[path] = status
            elif file not in used_by_others and not stat.S_ISDIR(status.st_mode):
                raise RequestRefused(
                    f"{path} may be its own or that of another process of its user on this node"
                )
        # A directory of the user's travels if a kept file is below it, whoever uses the directory.
        for path in [path for path in candidates if path not in kept]:
            if any(kept_path.startswith(f"{path}/") for kept_path in kept):
                kept[path] = candidates[path]
        return dict(sorted(kept.items()))

    def obstacle(self, tasks: Iterable[int], carried: Collection[str]) -> str:
        """Return why the job would miss files on another node, or "".

        A task works in, has open or has mapped a file in a temporary directory that is not
        ``carried``.
        """
        for path in open_paths(tasks):
            if self.holds(path) and path not in carried:
                return f"it has {path} open, which is a file of this node alone and not its own"
        return ""

    def has_renamed(
        self, gone_names: Mapping[str, tuple[int, int]], tasks: Collection[int]
    ) -> bool:
        """Return whether files used by a deleted name have another name here, as semaphores do
        (sem_open(3)).
        """
        files = {file for name, file in gone_names.items() if self.holds(name)}
        return bool(files) and any(
            (status.st_dev, status.st_ino) in files for status in self.own_files(tasks).values()
        )

    def lend(self, links: Sequence[str]) -> None:
        """Store the extra names that CRIU has given to files of the job, until ``take_back``."""
        self._lent = list(links)
        for path in links:
            if not self.holds(path):
                self.take_back()
                raise RequestRefused(f"link remap of a file that is not of this node alone: {path}")

    def take_back(self) -> None:
        """Remove the names that CRIU gave to files in this save, or in the save that made the
        image.
        """
        shared = set()
        with as_user(self._caller):
            for name in self._lent:
                with contextlib.suppress(OSError):
                    shared.add(os.lstat(name).st_ino)
                    os.unlink(name)
            for path, (inode, _) in self._packed.items():  # unlink has changed their ctime
                if inode in shared:
                    with contextlib.suppress(OSError):
                        self._packed[path] = (inode, os.lstat(path).st_ctime_ns)
        self._lent = []

    def pack(self, image: Path, max_bytes: int, tasks: Collection[int]) -> None:
        """Pack the files into the image, at most ``max_bytes`` of data, while the tasks stand
        still. It may raise RequestRefused.
        """
        job_files = self.own_files(tasks)
        self._packed = {
            path: (status.st_ino, status.st_ctime_ns) for path, status in job_files.items()
        }
        self._fresh = {}
        if not job_files:
            return
        names: dict[tuple[int, int], str] = {}
        flags = files.NEW
        with files.held(image / DATA, flags, mode=0o640) as data:
            offset, items = 0, []
            for path, status in job_files.items():
                with as_user(self._caller), _refused_on_error(path):
                    item, offset = pack(
                        path, status, names, data, offset, min(max_bytes, MAX_DATA_BYTES)
                    )
                items.append(item)
        packed = {"own": self._made, "lent": self._lent, "items": [asdict(item) for item in items]}
        text = json.dumps(packed).encode()
        if len(text) > MAX_INDEX_BYTES:
            raise RequestRefused("the names of its files in temporary directories are too long")
        with open(files.opened(image / INDEX, flags, mode=0o640), "wb") as file:
            file.write(text)

    def unpack(self, image: Path) -> None:
        """Restore the files from a verified image. RequestRefused if other files are in the way."""
        try:
            index = files.json_of(files.read(image / INDEX, MAX_INDEX_BYTES, owners=(0,)))
        except FileNotFoundError:
            return
        # An image tried before may have left its files.
        self.withdraw()
        items = [item_of(fields) for fields in index["items"]]
        self._left_behind = self._read_record() | self._left_behind
        self._own += index["own"]
        self._made += index["own"]
        self._lent = index.get("lent", [])
        data, laid = files.opened(image / DATA, owners=(0,)), list[Item]()
        try:
            self._lay_out(items, data, laid)
        finally:
            os.close(data)
            self._record_laid_out(laid)

    def _lay_out(self, items: list[Item], data: int, laid: list[Item]) -> None:
        offset = 0
        for item in items:
            self._check_place(item.path)
            with as_user(self._caller), _refused_on_error(item.path):
                before = _state(item.path)
                offset = unpack(item, data, offset, self.make_way)
                now = _state(item.path)
            laid.append(item)
            # Only files that this image made. A file that was there already is not ours to
            # withdraw.
            if now and (before is None or before[0] != now[0]):
                self._fresh[item.path] = now
        for item in reversed(items):  # directories after their entries
            if stat.S_ISDIR(item.mode):
                with as_user(self._caller), _refused_on_error(item.path):
                    finish(item)

    def _record_laid_out(self, laid: list[Item]) -> None:
        """Record the restored files. If this image is not used after all, they must not be in the
        way of another image.
        """
        with as_user(self._caller):
            for item in laid:
                with contextlib.suppress(OSError):
                    status = os.lstat(item.path)
                    self._left_behind[item.path] = (status.st_ino, status.st_ctime_ns)

    def withdraw(self) -> None:
        """Remove the files of an image that proved unusable, unless they were changed since.

        An older image, or a job that starts over, does not expect them.
        """
        with as_user(self._caller):
            for path, state in reversed(self._fresh.items()):  # files before their directories
                _remove_unchanged(path, state)
        self._fresh = {}

    def _read_record(self) -> dict[str, tuple[int, int]]:
        try:
            record = files.json_of(files.read(self._record, MAX_INDEX_BYTES, owners=(0,)))
        except (OSError, ValueError):
            return {}
        return {path: tuple(state) for path, state in record.items()}

    def holds(self, path: str) -> bool:
        """Return whether a path is in a temporary directory of this node."""
        return path.startswith(tuple(f"{place}/" for place in self.places))

    # finding the job's files

    def _walk(self) -> Iterator[Seen]:
        """Yield everything there that the user can see, except on file systems mounted below."""
        walk = Walk(self._caller.uid)
        for place in self.places:
            try:
                top = os.stat(place)
            except OSError:
                continue
            if place in self._own:
                yield place, top
            yield from walk.below(place, top)

    def _is_ours(self, path: str, status: os.stat_result) -> bool:
        mode = status.st_mode
        if status.st_uid != self._caller.uid or stat.S_ISSOCK(mode):  # CRIU recreates sockets
            return False
        return self._is_own(path) or status.st_ctime_ns >= self.since

    def _is_own(self, path: str) -> bool:
        """Return whether the path is the job's own TMPDIR, or in it."""
        return any(path == directory or path.startswith(f"{directory}/") for directory in self._own)

    # unpacking, all with the user's rights

    def _check_place(self, path: str) -> None:
        if not (self.holds(path) or self._is_own(path)):
            raise RequestRefused(f"{path}: not in a temporary directory of this node")

    def make_way(self, path: str) -> None:
        """Free a path: remove a file if this job has left it, or has the place to itself.

        Other files belong to another run of the user's, and get another name. RequestRefused if
        that run may still be active.
        """
        if not os.path.lexists(path):
            return
        status = os.lstat(path)
        is_its = path.startswith(tuple(f"{place}/" for place in self._its))
        # A file that this job left when it moved is its own, unless it was changed since.
        is_left = self._left_behind.get(path) == (status.st_ino, status.st_ctime_ns)
        if (is_its or is_left) and not stat.S_ISDIR(status.st_mode):
            os.unlink(path)
            return
        if not is_its and (other := others_of(self._caller.uid, ())):
            raise RequestRefused(f"{path} is there already, and may be of process {min(other)}")
        for name in (f"{path}.before-{self._caller.job}.{n}" for n in range(1000)):
            if not os.path.lexists(name):
                os.rename(path, name)
                return
        raise RequestRefused(f"{path} is there already")


def _check_is_open(path: str, status: os.stat_result) -> None:
    """RequestRefused for a directory that the user may not list or enter, because we would miss the
    files in it.
    """
    if stat.S_ISDIR(status.st_mode) and ~status.st_mode & (stat.S_IRUSR | stat.S_IXUSR):
        raise RequestRefused(f"{path} cannot be looked through with the rights of its user")


def _remove_unchanged(path: str, state: tuple[int, int]) -> None:
    """Remove a file or directory. Changed files and non-empty directories stay; errors are
    ignored.
    """
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        elif _state(path) == state:
            os.unlink(path)


def _state(path: str) -> tuple[int, int] | None:
    """Return inode and time of the last write; None if there is no file."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        return status.st_ino, status.st_mtime_ns
    return None


@contextlib.contextmanager
def _refused_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestRefused(f"{path}: {error.strerror}") from error
