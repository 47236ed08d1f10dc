"""Two heads on one memory (``ha.directory``): which of them may write, and the directories that
they share.

Slurm decides which head acts (``slurm.client.acting``). A head that begins to act creates the next
file ``epoch-NNNNNN`` in the shared directory with link(2), which is exclusive on NFS, too. Each
write and each call of a cloud first checks for a higher epoch. So a head that was suspended and
wakes up finds that it no longer acts. The shared directory also has the data of both heads, and
``state_dir`` of each head has links to it. The sqlite files stay on each head.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.state import statedir
from slurm_elastic.state.state_files import shared_names

SHARED = shared_names(directories=True)
"""Directories of the state directory that both heads share."""
SHARED_FILES = shared_names(directories=False)
LAST_EPOCH = "last-epoch"
"""The file in ``state_dir`` with the highest number of an epoch that this head has seen in the
shared directory. An older copy of the directory is recognised by it, but not a copy from after the
last takeover: its number is the same.
"""
_NAME = re.compile(r"epoch-(\d{6,12})")


class SupersededError(OSError):
    """Another head acts: this head must not write to the ledger or call a cloud."""


class Epoch(Struct, frozen=True, kw_only=True):
    """The span in which ``host`` acts, since ``at`` (Unix time). The host is "" if the file cannot
    be read, as an NFS server (async) or a full disk may leave it.
    """

    number: int
    host: str
    at: float

    @property
    def holder(self) -> str:
        """The host, for people."""
        return self.host or f"a host that the file epoch-{self.number:06d} does not name"


class Epochs:
    """The epochs in a shared directory. OSError passes through, because a head that cannot read
    them must not act.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def number(self) -> int:
        """The number of the newest epoch; 0 if no head has ever acted."""
        # Use a listing, because an NFS client asks its server for it (nfs(5), cto). Do not open one
        # file again and again from threads instead: on Linux 6.1 such an open never returned
        # (NFSv4.2, nfs-ganesha; measured).
        matches = [_NAME.fullmatch(name) for name in os.listdir(self.directory)]
        return max((int(match[1]) for match in matches if match), default=0)

    def newest(self) -> Epoch | None:
        """The newest epoch; None if no head has ever acted."""
        number = self.number()
        if not number:
            return None
        content = self._path(number).read_bytes()
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.structs.replace(msgspec.json.decode(content, type=Epoch), number=number)
        # The number is in the name, so the next head that acts takes the next one.
        return Epoch(number=number, host="", at=0.0)

    def take(self, host: str) -> Epoch:
        """The epoch in which ``host`` acts from now on: the newest if it is its own, else a new
        one.
        """
        while True:
            newest = self.newest()
            # Both services of a host act in one epoch, also after a restart.
            if newest is not None and newest.host == host:
                return newest
            number = 1 if newest is None else newest.number + 1
            epoch = Epoch(number=number, host=host, at=time.time())
            # ``create`` fails if the file exists: the other head has taken this number since it was
            # read.
            if writing.create(self._path(number), msgspec.json.encode(epoch)):
                self._forget(number)
                return epoch

    def _path(self, number: int) -> Path:
        return self.directory / f"epoch-{number:06d}"

    def _forget(self, number: int) -> None:
        """Delete the files of older epochs: only the highest number counts."""
        # Down to the first gap: older files were deleted when the epoch before began.
        for old in range(number - 1, 0, -1):
            try:
                self._path(old).unlink()
            except FileNotFoundError:
                return


class OtherHead:
    """Whether the other head acts, for a service of ``host`` that takes no epoch of its own."""

    def __init__(self, epochs: Epochs, host: str) -> None:
        self._epochs, self._host = epochs, host
        self._newest: Epoch | None = None

    def acting(self) -> str:
        """The name of the other host that acts; "" if this host acts, or no host has ever acted.
        OSError if the directory is away or names no host: then the caller knows nothing.
        """
        number = self._epochs.number()
        # ``Epochs.number`` has the reason why the file of an epoch is not opened again and again.
        if self._newest is None or self._newest.number != number:
            self._newest = self._epochs.newest()
        if self._newest is None:
            return ""
        if not self._newest.host:
            unnamed = self._newest
            self._newest = None
            raise OSError(f"{unnamed.holder} acts")
        return "" if self._newest.host == self._host else self._newest.host


class Fence(Struct, frozen=True, kw_only=True):
    """Allows this process to act in its ``epoch`` until a higher one exists. Epoch 0 belongs to no
    head and allows nothing.
    """

    epochs: Epochs
    epoch: int
    host: str

    @classmethod
    def of(cls, directory: Path) -> Fence:
        """The fence for services that start on this host now."""
        epochs, host = Epochs(directory), os.uname().nodename
        try:
            newest = epochs.newest()
        except OSError:
            newest = None
        is_own = newest is not None and newest.host == host
        return cls(
            epochs=epochs, epoch=newest.number if newest is not None and is_own else 0, host=host
        )

    def require(self) -> None:
        """Raise SupersededError if another head acts, or has begun an epoch after this one."""
        # The directory is read at each call: a head that was frozen must notice at once that the
        # other head acts. A remembered answer would let it buy a machine twice.
        if self.epoch and self.epochs.number() == self.epoch:
            return
        newest = self.epochs.newest()
        if newest is None:
            raise SupersededError("no head acts: start slurm-elasticd on both heads")
        holder = f"{newest.holder} (epoch {newest.number})"
        raise SupersededError(f"{holder} acts, not {self.host}: do it there")

    @property
    def newest(self) -> int:
        """The number of the newest epoch of any head; 0 if there is none or it is unreadable."""
        try:
            return self.epochs.number()
        except OSError:
            return 0


def last_seen(state: Path) -> int:
    """The highest number of an epoch that this head has seen; 0 if it has seen none. OSError if
    that cannot be read: then an older copy of the shared directory would look like the right one.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        # 20 bytes are enough for the 12 digits of a number.
        return int((state / LAST_EPOCH).read_bytes()[:20])
    return 0


def note_seen(state: Path, number: int) -> None:
    """Record the number of an epoch that this head sees, if it is the highest so far."""
    with contextlib.suppress(OSError):  # a full disk, which end-only reports
        if number > last_seen(state):
            writing.replace(state / LAST_EPOCH, f"{number}\n".encode())


def fence_at(journal: Path) -> Fence:
    """The fence of a directory ``journal`` that is a link into a shared one."""
    return Fence.of(journal.resolve().parent)


def link(state: Path, directory: Path) -> None:
    """Create the shared files in ``directory``, and links to them in ``state``. Raises ConfigError
    if this head has files of its own in the place of a link.
    """
    if directory == state or state in directory.parents:
        raise ConfigError(
            f"ha.directory: {directory} is in state_dir, which each head has for itself"
        )
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=statedir.DIRECTORY, exist_ok=True)
    for name in SHARED:
        shared = directory / name
        shared.mkdir(mode=statedir.DIRECTORY, exist_ok=True)
        _link(state / name, shared)
    for name in SHARED_FILES:
        _link(state / name, directory / name)


def _link(path: Path, shared: Path) -> None:
    if path.is_symlink() and Path(os.readlink(path)) == shared:
        return
    # A directory without files holds no memory. A start without ``ha`` made it, so it may go.
    if path.is_dir() and not path.is_symlink() and not _content(path):
        # In reverse order a directory comes after its contents.
        for empty in sorted(path.rglob("*"), reverse=True):
            empty.rmdir()
        path.rmdir()
    if path.is_symlink():
        # Never `mv`: it would put this link into the place of the file that it was copied to.
        raise ConfigError(
            f"ha.directory: {path} leads to {os.readlink(path)}, expected {shared}: stop the "
            f"services on both heads, copy its content to {shared} if it is not there yet, then "
            f"`rm {path}`"
        )
    if path.exists():
        raise ConfigError(
            f"ha.directory: {path} has what this head alone knows, expected a link to {shared}: "
            f"stop the services on both heads, then `mv -T {path} {shared}`"
        )
    path.symlink_to(shared)


def _content(path: Path) -> Iterable[Path]:
    return [entry for entry in path.rglob("*") if not entry.is_dir()]


def require_unshared(state: Path) -> None:
    """Raise ConfigError if links to a shared directory exist but ``ha.directory`` is not set."""
    links = [path for name in (*SHARED, *SHARED_FILES) if _leads_to_shared(path := state / name)]
    if links:
        # All at once: a link that stays fails when the shared directory is unmounted.
        names = ", ".join(path.name for path in links)
        directory = os.path.dirname(os.readlink(links[0]))
        raise ConfigError(
            f"ha.directory: not set, and {names} of {state} lead into {directory}, which two heads "
            "shared: set it, or put copies of them in the place of these links"
        )


def _leads_to_shared(path: Path) -> bool:
    """Whether it is a link that ``link`` has made. The site may have links of its own."""
    if not path.is_symlink():
        return False
    if path.name == SHARED[0] or not path.exists():
        return True
    try:
        return Epochs(Path(os.readlink(path)).parent).number() > 0
    except OSError:
        return True
