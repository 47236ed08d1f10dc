"""Sources of notices. Each source has its own poller, so a slow or dead source delays neither the
others nor the jobs. A notice is on the disk before it is acknowledged at its source.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.state import statedir
from slurm_elastic.state.ckptstate.orders import AnyOrder, NoticeOrder, dropped_at

log = logging.getLogger(__name__)

MAX_BYTES = 65_536
_COMMENT = re.compile(
    r"slurm-elastic:notice:(?P<kind>interruption|rebalance):(?P<time>[0-9]{1,12})"
    r":(?P<instance>[A-Za-z0-9._-]+)"
)
_NO_REGULAR_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""Errors of the open of a link, a socket or a device. Such an entry is certainly no notice."""
WRITING_TIMEOUT_S = 1.0
"""The age (s) up to which a file that cannot be parsed may still be being written."""


class SourceReading(Struct, frozen=True, kw_only=True):
    """One message of a source; ``handle`` acknowledges it. ``wrong``: why the message could not be
    parsed. We acknowledge it anyway, or the source would deliver it for ever. ``unreadable``: why
    the message could not be read now. It has no handle, so it stays at its source.

    ``announced`` (Unix time) tells announcements without a deadline apart: it is the same each time
    one announcement is delivered. 0: the source repeats the notice as long as it stands. None: the
    time when we saw it. ``file``: the identity of the file that the message was read from, if it
    was read from a file. Another file of the same name has another identity. ``given_at``: when
    our commands or services wrote the order (Unix time). None: unknown.
    """

    handle: str = ""
    file: str = ""
    announced: float | None = None
    notice: Notice | None = None
    order: AnyOrder | None = None
    wrong: str = ""
    unreadable: str = ""
    given_at: float | None = None


class NoticeSource(Protocol):
    """A place where notices come from."""

    name: str

    def read(self, now: float) -> Sequence[SourceReading]:
        """Read the news. Any exception means that the source cannot be read now."""
        ...

    def done(self, handles: Sequence[str]) -> None:
        """Acknowledge these messages, which are on our disk now, so that the source does not repeat
        them.
        """
        ...


class CloudNotices:
    """The notices that a cloud itself gives about our machines. The cloud repeats a notice until
    the machine is gone.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.name = f"notices of {provider.name}"

    def read(self, now: float) -> Sequence[SourceReading]:  # noqa: ARG002
        """Return all notices that the cloud gives now."""
        return [SourceReading(notice=notice, announced=0.0) for notice in self._provider.notices()]

    def done(self, handles: Sequence[str]) -> None:
        """Do nothing: a cloud's notices are not acknowledged."""


class NodeComments:
    """Comments that the agents of machines (programs/agent.py) write to their Slurm nodes.

    Only root on a node can do that, through munge. ``machines`` gives the live machines by id.
    """

    name = "notices on Slurm's nodes"

    def __init__(self, slurm: Slurm, machines: Callable[[], Collection[str]]) -> None:
        self._slurm = slurm
        self._machines = machines

    def read(self, now: float) -> Sequence[SourceReading]:
        """All standing notices. Slurm is asked only while there are machines."""
        live_ids = set(self._machines())
        if not live_ids:
            return []
        readings = [
            parse_comment_notice(node.comment, now) for node in self._slurm.nodes().values()
        ]
        # A comment outlives its machine, and must not apply to the next machine of that node.
        return [
            reading
            for reading in readings
            if reading and reading.notice and reading.notice.instance in live_ids
        ]

    def done(self, handles: Sequence[str]) -> None:
        """Do nothing: comments of nodes are not acknowledged."""


def parse_comment_notice(comment: str, seen: float) -> SourceReading | None:
    """The notice in ``slurm-elastic:notice:KIND:TIME:INSTANCE``; None for other comments."""
    match = _COMMENT.fullmatch(comment)
    if match is None:
        return None
    kind, announced_at = NoticeKind(match["kind"]), float(match["time"])
    deadline = announced_at or None if kind is NoticeKind.INTERRUPTION else None
    notice = Notice(instance=match["instance"], kind=kind, seen=seen, deadline=deadline)
    return SourceReading(notice=notice, announced=announced_at)


class DropDirectory:
    """Files ``*.json`` of operators and agents. Only files of root or SlurmUser count.

    An entry that cannot be removed, such as a directory, is reported once and ignored until it
    changes.
    """

    def __init__(self, path: Path, name: str = "", *, create: bool = False) -> None:
        self.name = name or f"notices in {path}"
        self._path = path
        self._create = create
        self._versions_left: dict[str, tuple[int, int]] = {}
        self._read_versions: dict[str, tuple[int, int]] = {}
        self._create_if_ours()

    def _create_if_ours(self) -> None:
        if self._create:
            self._path.mkdir(mode=statedir.DIRECTORY, exist_ok=True)

    def read(self, now: float) -> Sequence[SourceReading]:
        """Read each new file, in the order of their names. OSError if the directory is missing or
        may not be read.
        """
        self._create_if_ours()
        # Not by glob, which finds nothing in a directory that is missing, not mounted or closed.
        paths = [self._path / n for n in sorted(os.listdir(self._path)) if n.endswith(".json")]
        # Forget the files that are gone: a new file of the same name must be read.
        existing_names = {str(path) for path in paths}
        self._versions_left = {
            name: version for name, version in self._versions_left.items() if name in existing_names
        }
        new_paths = [path for path in paths if self._versions_left.get(str(path)) != _version(path)]
        readings = []
        self._read_versions = {}
        for path in new_paths:
            # Before the read: a file that replaces this one in between is read twice, not lost.
            version = _version(path)
            if reading := _read_file(path, now):
                self._read_versions[reading.handle] = version
                readings.append(reading)
        return readings

    def done(self, handles: Sequence[str]) -> None:
        """Remove the files. A file that has replaced one since then is unread, and stays."""
        for handle in handles:
            if self._read_versions.pop(handle, None) != _version(Path(handle)):
                continue
            try:
                os.unlink(handle)
            except FileNotFoundError:
                pass
            except OSError as error:
                # Its order is on our disk already, so a file that stays is no failed reading.
                self._versions_left[handle] = _version(Path(handle))
                log.warning(
                    "a file was read but cannot be removed path=%s: %s", handle, error.strerror
                )


def _version(path: Path) -> tuple[int, int]:
    """A value that changes with the file; (0, 0) if there is no file."""
    try:
        return _version_of(path.lstat())
    except OSError:
        return 0, 0


def _version_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _read_file(path: Path, now: float) -> SourceReading | None:
    handle = str(path)
    try:
        # O_NONBLOCK, because the open of a pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # Our process lacks resources, so the other files cannot be opened either.
        if error.errno in _NO_REGULAR_FILE:
            return SourceReading(handle=handle, wrong=f"{path}: {error.strerror}")
        return _unreadable(path, error)
    try:
        # Ask the open file and not its path: the path may name another file since the open.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            return SourceReading(handle=handle, wrong=f"{path} is no file of root or SlurmUser")
        with open(descriptor, "rb", closefd=False) as file:
            # Bounded, because an agent may write a file of any size. A cut file is no valid JSON.
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        return _unreadable(path, error)
    finally:
        os.close(descriptor)
    try:
        order = msgspec.json.decode(content, type=AnyOrder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # A program that writes in place, without a rename, may not have finished.
        is_half_written = now - status.st_mtime < WRITING_TIMEOUT_S
        return None if is_half_written else SourceReading(handle=handle, wrong=f"{path}: {error}")
    # Agents use a name again, for example the node's. The name alone would make the second warning
    # look like the first one.
    inode, mtime_ns = _version_of(status)
    file_id = f"{path.name}:{inode}:{mtime_ns}"
    notice = _notice_of_order(order, now) if isinstance(order, NoticeOrder) else None
    return SourceReading(
        handle=handle, file=file_id, notice=notice, order=order, given_at=dropped_at(path)
    )


def _unreadable(path: Path, error: OSError) -> SourceReading:
    """A file that may hold a good notice: its rights or its file server may be mended."""
    advice = ": SlurmUser must be able to read it" if isinstance(error, PermissionError) else ""
    return SourceReading(unreadable=f"{path}: {error.strerror}{advice}")


def _notice_of_order(order: NoticeOrder, seen: float) -> Notice:
    kind = NoticeKind.INTERRUPTION
    if order.departure:
        kind = NoticeKind.DEPARTURE
    elif order.rebalance:
        kind = NoticeKind.REBALANCE
    return Notice(
        instance="", node=order.node, kind=kind, seen=seen, deadline=order.deadline,
        reason=order.reason,
    )  # fmt: skip
