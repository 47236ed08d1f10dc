"""Give a job its own temporary directories in place of the node's /tmp, /var/tmp and /dev/shm.

The job sees directories of its own on the same file systems, so that all files in them are the
job's. Root creates each of them in a directory that users cannot enter, and mounts it for the
session and its children. It is locked while any of these lives, and removed at the end. Each
session also removes the directories of killed sessions.

A place stays the node's if the job would miss files there: its working directory, home or output,
or, if the user or root owns them, the user's ticket cache and files that its script, arguments or
environment mention. Files of other users do not count, because anyone can put them there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import files, log
from .caller import Caller
from .kernel import mount_bind, unmount, unshare_mounts
from .mounts import is_local, mount_points, mount_root, mounts
from .payload import Payload
from .rights import as_user
from .scratch import locked
from .site import HelperSite, RequestRefused
from .tempfiles import PLACES

PREFIX = "slurm-elastic-own-"
_MAX_SCRIPT_BYTES = 16 << 20
_STEPS = re.compile(rb"\bsrun\b")
_BEFORE, _NAME = rb"(?<![\w./-])", rb"(/[\w.+@%=~/-]+)"
_OPEN_ENDED = (b"$", b"*", b"?", b"{", b"[", b"`")
_X11 = ".X11-unix"
_MAX_TRIES = 3
_MAX_ENTRIES, _MAX_CHECKED = 200_000, 1000


class PrivateTmp:
    """The directories of one job; none before ``take``."""

    def __init__(self, site: HelperSite, caller: Caller) -> None:
        self._site = site
        self._caller = caller
        self._taken: list[tuple[str, Path, int]] = []

    def take(self, payload: Payload) -> list[str]:
        """Mount the job's own directories where possible; return the places that it has to itself.

        Slurm's job_container/tmpfs may also have given it these places.
        """
        local = [place for place in PLACES if is_local(place, self._site.directory)]
        job, table = self._caller.job, mounts()
        of_slurm = [p for p in local if mount_root(p, table).endswith(f"/{job}/.{job}")]
        for place in [] if of_slurm else self._places_to_replace(payload, local):
            try:
                self._take(place)
            except (OSError, RequestRefused) as error:
                log.write(log.NOTICE, f"job {job}: it has the node's {place}: {error}")
        return of_slurm + [place for place, _, _ in self._taken]

    def _places_to_replace(self, payload: Payload, local: Sequence[str]) -> list[str]:
        site, environment = self._site, self._caller.environment
        script = b""
        with contextlib.suppress(OSError, RequestRefused):
            script = files.read(payload.argv[0], _MAX_SCRIPT_BYTES)
        # srun's steps run outside of the session's mounts and would not see files that the script
        # has written there.
        if site.tmp == "node" or _STEPS.search(script):
            return []
        texts = (*map(os.fsencode, payload.argv[1:]), *environment.values())
        text = b"\n".join((script, *texts))
        paths = [site.directory, site.scratch, site.stage, site.slurm_conf, payload.directory,
                 os.fsdecode(environment.get(b"HOME", b"")), *_streams()]  # fmt: skip
        return [
            place for place in local
            if not any(_is_in(str(path), place) for path in paths)
            and not any(self._is_there(f"{place}/{name}") for name in self._needed(text, place))
        ]  # fmt: skip

    def _needed(self, text: bytes, place: str) -> set[str]:
        """Return the names in a place that the job would miss, if they exist."""
        return {
            f"krb5cc_{self._caller.uid}",
            *_names_below(text, place, self._prolog_tmpdir(place)),
        }

    def _is_there(self, path: str) -> bool:
        """Return whether the file exists and belongs to the user or root."""
        with contextlib.suppress(OSError):
            return os.lstat(path).st_uid in (0, self._caller.uid)
        return False

    def _prolog_tmpdir(self, place: str) -> str:
        """Return the TMPDIR below the place that a prolog has made for the job, or "".

        A TMPDIR that all users share, or a link, does not count. It then keeps the job from having
        that place to itself.
        """
        text = os.fsdecode(self._caller.environment.get(b"TMPDIR", b""))
        path = os.path.normpath(text or "/")
        if path != place and _is_in(path, place):
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode) and status.st_uid == self._caller.uid:
                    return path
        return ""

    def close(self) -> None:
        """Remove the directories. If that fails, a later session removes them."""
        for place, path, lock in reversed(self._taken):
            with contextlib.suppress(OSError, RequestRefused):
                unmount(place)
                files.remove(path)
            os.close(lock)
        self._taken = []

    def _take(self, place: str) -> None:
        top = os.lstat(place)
        if not stat.S_ISDIR(top.st_mode) or top.st_uid != 0 or not top.st_mode & stat.S_ISVTX:
            raise RequestRefused(f"{place} is no sticky directory of root's")
        sweep(place)
        if not self._taken:
            unshare_mounts()
        path, lock = _make_locked(place, self._caller.job)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lock)
            descriptors = {
                kept_path: stack.enter_context(_opened(kept_path, self._caller))
                for kept_path in self._kept_visible(place)
            }
            directory = path / "own"
            directory.mkdir()
            directory.chmod(0o1777)  # mkdir would apply our umask
            mount_bind(str(directory), place)
            self._taken.append((place, path, os.dup(lock)))
            for kept_path, number in descriptors.items():
                if number is not None:
                    _show(place, kept_path, number)

    def _kept_visible(self, place: str) -> Iterator[str]:
        """Yield the node's directories that the job still sees: X11's sockets, and its TMPDIR from
        a prolog.
        """
        if tmpdir := self._prolog_tmpdir(place):
            yield tmpdir
        if self._is_there(f"{place}/{_X11}"):
            yield f"{place}/{_X11}"


def sweep(place: str) -> None:
    """Remove the directories that killed sessions have left in a place."""
    with contextlib.suppress(OSError):
        mounted = mount_points(mounts())  # do not touch mount points: they may hang
        with os.scandir(place) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES)]
        names = [name for name in names if name.startswith(PREFIX)]
        # Any user can create such names, so check a bounded random sample each time.
        for name in random.sample(names, min(len(names), _MAX_CHECKED)):
            if f"{place}/{name}" not in mounted:
                _sweep(Path(place, name))


def _sweep(path: Path) -> None:
    with contextlib.suppress(OSError, RequestRefused):
        # Do not open a user's directory: opening and locking takes far longer.
        lock = locked(path) if path.lstat().st_uid == 0 else None
        if lock is not None:
            try:
                if os.fstat(lock).st_uid == 0:  # in a sticky directory only root can rename it
                    files.remove(path)
            finally:
                os.close(lock)


def _make_locked(place: str, job: int) -> tuple[Path, int]:
    """Create a directory of root's and lock it; return path and lock.

    Another session may remove it before we lock it, so try again.
    """
    for _ in range(_MAX_TRIES):
        path = Path(place, f"{PREFIX}{job}-{secrets.token_hex(8)}")
        path.mkdir(mode=0o700)
        lock = locked(path)
        if lock is not None:
            return path, lock
    raise RequestRefused(f"{place}: other sessions remove each new directory")


def _is_in(path: str, place: str) -> bool:
    return f"{path}/".startswith(f"{place}/")


def _streams() -> Iterator[str]:
    """Yield the files of our standard streams, which are the job's."""
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{number}")


def _names_below(text: bytes, place: str, tmpdir: str) -> set[str]:
    """Return the first components below a place that a text mentions, except in ``tmpdir``.

    A name that continues in a variable or a pattern does not count.
    """
    names = set()
    for match in re.finditer(_BEFORE + re.escape(os.fsencode(place)) + _NAME, text):
        path = os.path.normpath(place + os.fsdecode(match[1]))
        is_tmpdir = bool(tmpdir) and (_is_in(path, tmpdir) or _is_in(tmpdir, path))
        name, below, _ = path.removeprefix(f"{place}/").partition("/")
        is_open = text.startswith(_OPEN_ENDED, match.end()) and not below
        if not (is_tmpdir or is_open):
            names.add(name)
    return names


@contextlib.contextmanager
def _opened(path: str, caller: Caller) -> Iterator[int | None]:
    """Yield a directory opened as the job's user; None if that fails."""
    number = None
    with contextlib.suppress(OSError), as_user(caller):
        number = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield number
    finally:
        if number is not None:
            os.close(number)


def _show(place: str, path: str, number: int) -> None:
    """Mount the open directory at its old path. Only root has written to the place so far."""
    directory = place
    for name in path.removeprefix(f"{place}/").split("/"):
        directory = f"{directory}/{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        os.chmod(directory, 0o755)  # noqa: S103 - whatever our umask is
    mount_bind(f"/proc/self/fd/{number}", path)
