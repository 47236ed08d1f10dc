"""Gives a job temporary directories to itself: in place of the node's /tmp, /var/tmp and /dev/shm
it sees directories of its own on the same file systems, so that everything in them is the job's.

Root makes each of them in a directory that users cannot enter, and mounts it for the session and
its children. It is locked as long as one of these lives, and removed at the end; each session also
removes what killed ones have left.

A place stays the node's if the job would miss something there: its directory, home or output, or,
if it is its user's or root's, the user's ticket cache or a file that its script, arguments or
environment name. Files of others do not count: anybody may put them there.
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
from .site import Refused, Site
from .tempfiles import PLACES

PREFIX = "slurm-elastic-own-"
_SCRIPT = 16 << 20
_STEPS = re.compile(rb"\bsrun\b")
_BEFORE, _NAME = rb"(?<![\w./-])", rb"(/[\w.+@%=~/-]+)"
_OPEN_ENDED = (b"$", b"*", b"?", b"{", b"[", b"`")
_X11 = ".X11-unix"
_TRIES = 3
_MAX_ENTRIES, _MAX_LOOKED_AT = 200_000, 1000


class PrivateTmp:
    """The directories of one job; none before ``take``."""

    def __init__(self, site: Site, caller: Caller) -> None:
        self._site = site
        self._caller = caller
        self._taken: list[tuple[str, Path, int]] = []

    def take(self, payload: Payload) -> list[str]:
        """Mount its own directories where it may have them. Returns the places that it has to
        itself then, by us or by Slurm's job_container/tmpfs.
        """
        local = [place for place in PLACES if is_local(place, self._site.directory)]
        job, found = self._caller.job, mounts()
        of_slurm = [p for p in local if mount_root(p, found).endswith(f"/{job}/.{job}")]
        for place in [] if of_slurm else self._wanted(payload, local):
            try:
                self._take(place)
            except (OSError, Refused) as error:
                log.tell(log.NOTICE, f"job {job}: it has the node's {place}: {error}")
        return of_slurm + [place for place, _, _ in self._taken]

    def _wanted(self, payload: Payload, local: Sequence[str]) -> list[str]:
        site, environment = self._site, self._caller.environment
        script = b""
        with contextlib.suppress(OSError, Refused):
            script = files.read(payload.argv[0], _SCRIPT)
        # Steps run outside of the session's mounts, and would miss what the script has written
        # there.
        if site.tmp == "node" or _STEPS.search(script):
            return []
        words = (*map(os.fsencode, payload.argv[1:]), *environment.values())
        text = b"\n".join((script, *words))
        paths = [site.directory, site.scratch, site.stage, site.slurm_conf, payload.directory,
                 os.fsdecode(environment.get(b"HOME", b"")), *_streams()]  # fmt: skip
        return [
            place for place in local
            if not any(_is_in(str(path), place) for path in paths)
            and not any(self._is_there(f"{place}/{name}") for name in self._missed(text, place))
        ]  # fmt: skip

    def _missed(self, text: bytes, place: str) -> set[str]:
        """The names in a place that the job would miss, if they exist."""
        return {f"krb5cc_{self._caller.uid}", *_named(text, place, self._given(place))}

    def _is_there(self, path: str) -> bool:
        """Whether there is such a file, and it is not another user's."""
        with contextlib.suppress(OSError):
            return os.lstat(path).st_uid in (0, self._caller.uid)
        return False

    def _given(self, place: str) -> str:
        """The TMPDIR in a place that a prolog has made for the job; empty if there is none. One
        that all users share, or a link, keeps the job from having that place to itself.
        """
        text = os.fsdecode(self._caller.environment.get(b"TMPDIR", b""))
        path = os.path.normpath(text or "/")
        if path != place and _is_in(path, place):
            with contextlib.suppress(OSError):
                there = os.lstat(path)
                if stat.S_ISDIR(there.st_mode) and there.st_uid == self._caller.uid:
                    return path
        return ""

    def close(self) -> None:
        """Remove them; a later session removes what we cannot remove now."""
        for place, path, lock in reversed(self._taken):
            with contextlib.suppress(OSError, Refused):
                unmount(place)
                files.remove(path)
            os.close(lock)
        self._taken = []

    def _take(self, place: str) -> None:
        top = os.lstat(place)
        if not stat.S_ISDIR(top.st_mode) or top.st_uid != 0 or not top.st_mode & stat.S_ISVTX:
            raise Refused(f"{place} is no sticky directory of root's")
        sweep(place)
        if not self._taken:
            unshare_mounts()
        path, lock = _made(place, self._caller.job)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lock)
            shown = {
                one: stack.enter_context(_opened(one, self._caller)) for one in self._shown(place)
            }
            own = path / "own"
            own.mkdir()
            own.chmod(0o1777)
            mount_bind(str(own), place)
            self._taken.append((place, path, os.dup(lock)))
            for one, number in shown.items():
                if number is not None:
                    _show(place, one, number)

    def _shown(self, place: str) -> Iterator[str]:
        """The directories of the node that the job still sees: X11's sockets, and the TMPDIR that a
        prolog has made for it.
        """
        if given := self._given(place):
            yield given
        if self._is_there(f"{place}/{_X11}"):
            yield f"{place}/{_X11}"


def sweep(place: str) -> None:
    """Remove what killed sessions have left in a place, and nothing else."""
    with contextlib.suppress(OSError):
        mounted = mount_points(mounts())  # a file system that hangs would hold us up
        with os.scandir(place) as entries:
            names = [one.name for one in itertools.islice(entries, _MAX_ENTRIES)]
        names = [name for name in names if name.startswith(PREFIX)]
        # Any user can put such names there, so we look at some of them, each time at others.
        for name in random.sample(names, min(len(names), _MAX_LOOKED_AT)):
            if f"{place}/{name}" not in mounted:
                _sweep(Path(place, name))


def _sweep(path: Path) -> None:
    with contextlib.suppress(OSError, Refused):
        # Nothing of a user's is opened, and to open and lock it takes far longer.
        lock = locked(path) if path.lstat().st_uid == 0 else None
        if lock is not None:
            try:
                if os.fstat(lock).st_uid == 0:  # in a sticky directory only root renames it
                    files.remove(path)
            finally:
                os.close(lock)


def _made(place: str, job: int) -> tuple[Path, int]:
    """A new directory of root's, and its lock; another session may remove it before we lock it."""
    for _ in range(_TRIES):
        path = Path(place, f"{PREFIX}{job}-{secrets.token_hex(8)}")
        path.mkdir(mode=0o700)
        lock = locked(path)
        if lock is not None:
            return path, lock
    raise Refused(f"{place}: others remove what is made there")


def _is_in(path: str, place: str) -> bool:
    return f"{path}/".startswith(f"{place}/")


def _streams() -> Iterator[str]:
    """The files that our standard streams are, which are the job's."""
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{number}")


def _named(text: bytes, place: str, given: str) -> set[str]:
    """The first names below a place that a text mentions, except the TMPDIR that was ``given``. A
    name that goes on in a variable or a pattern does not count.
    """
    found = set()
    for match in re.finditer(_BEFORE + re.escape(os.fsencode(place)) + _NAME, text):
        path = os.path.normpath(place + os.fsdecode(match[1]))
        is_given = bool(given) and (_is_in(path, given) or _is_in(given, path))
        first, below, _ = path.removeprefix(f"{place}/").partition("/")
        is_open = text.startswith(_OPEN_ENDED, match.end()) and not below
        if not (is_given or is_open):
            found.add(first)
    return found


@contextlib.contextmanager
def _opened(path: str, caller: Caller) -> Iterator[int | None]:
    """A directory as the job's user finds it; None if there is none."""
    number = None
    with contextlib.suppress(OSError), as_user(caller):
        number = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield number
    finally:
        if number is not None:
            os.close(number)


def _show(place: str, path: str, number: int) -> None:
    """Mount the open directory at its old path, in a place that only root has written to so far."""
    at = place
    for name in path.removeprefix(f"{place}/").split("/"):
        at = f"{at}/{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(at)
        os.chmod(at, 0o755)  # noqa: S103 - whatever our umask is
    mount_bind(f"/proc/self/fd/{number}", path)
