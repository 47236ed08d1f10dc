"""Where notices come from. A source is read by a poller of its own, so that a slow or dead one
holds up neither the others nor the jobs; what it tells is on the disk before it is acknowledged.
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
from slurm_elastic.state.ckptstate.orders import AnyOrder, NoticeOrder

log = logging.getLogger(__name__)

MAX_BYTES = 65_536
_COMMENT = re.compile(
    r"slurm-elastic:notice:(?P<kind>interruption|rebalance):(?P<time>[0-9]{1,12})"
    r":(?P<instance>[A-Za-z0-9-]+)"
)
WRITING_TIMEOUT_S = 1.0
"""Seconds after which a file that cannot be read is not being written any more."""


class SourceReading(Struct, frozen=True, kw_only=True):
    """The result of one reading of a source; ``handle`` acknowledges it. ``wrong``: what could not
    be understood, and is acknowledged all the same, as it would come back for ever.

    Without a deadline ``announced`` (Unix time) tells one announcement from the next:
    whenever the same one is told, it is the same (0: it is told as long as it stands; None: when it
    was seen).
    """

    handle: str = ""
    announced: float | None = None
    notice: Notice | None = None
    order: AnyOrder | None = None
    wrong: str = ""


class NoticeSource(Protocol):
    """Somewhere that notices come from."""

    name: str

    def read(self, now: float) -> Sequence[SourceReading]:
        """The news there; any exception means that it cannot be read now."""
        ...

    def done(self, handles: Sequence[str]) -> None:
        """These are on the disk here: they need not come again."""
        ...


class CloudNotices:
    """The notices that a cloud itself gives of our machines. It says so until they are gone."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.name = f"notices of {provider.name}"

    def read(self, now: float) -> Sequence[SourceReading]:  # noqa: ARG002
        """All standing ones."""
        return [SourceReading(notice=notice, announced=0.0) for notice in self._provider.notices()]

    def done(self, handles: Sequence[str]) -> None:
        """Nothing to acknowledge."""


class NodeComments:
    """The comments that agents on EC2's machines (programs/agent.py) put on their Slurm nodes.

    Root on a node may do that, over munge, and no user. ``machines`` gives the live ones by id.
    """

    name = "notices on Slurm's nodes"

    def __init__(self, slurm: Slurm, machines: Callable[[], Collection[str]]) -> None:
        self._slurm = slurm
        self._machines = machines

    def read(self, now: float) -> Sequence[SourceReading]:
        """All that stand; Slurm is only asked while there are machines."""
        alive = set(self._machines())
        if not alive:
            return []
        told = [parse_comment_notice(node.comment, now) for node in self._slurm.nodes().values()]
        # A comment outlives its machine, and the next machine of that node is not meant.
        return [t for t in told if t and t.notice and t.notice.instance in alive]

    def done(self, handles: Sequence[str]) -> None:
        """Nothing to acknowledge."""


def parse_comment_notice(comment: str, seen: float) -> SourceReading | None:
    """The warning in ``slurm-elastic:notice:KIND:TIME:INSTANCE``; None for other comments."""
    found = _COMMENT.fullmatch(comment)
    if found is None:
        return None
    kind, when = NoticeKind(found["kind"]), float(found["time"])
    deadline = when or None if kind is NoticeKind.INTERRUPTION else None
    notice = Notice(instance=found["instance"], kind=kind, seen=seen, deadline=deadline)
    return SourceReading(notice=notice, announced=when)


class DropDirectory:
    """Files ``*.json`` of operators and agents. Only root's and SlurmUser's own count.

    A thing that cannot be removed, such as a directory, is told once and left alone until it
    changes.
    """

    def __init__(self, path: Path, name: str = "", *, create: bool = False) -> None:
        self.name = name or f"notices in {path}"
        self._path = path
        self._staying: dict[str, tuple[int, int]] = {}
        if create:
            path.mkdir(mode=statedir.DIRECTORY, exist_ok=True)

    def read(self, now: float) -> Sequence[SourceReading]:
        """Each file, oldest name first."""
        paths = sorted(self._path.glob("*.json"))
        there = {str(path) for path in paths}
        self._staying = {name: was for name, was in self._staying.items() if name in there}
        fresh = [path for path in paths if self._staying.get(str(path)) != _version(path)]
        return [told for path in fresh if (told := _read_file(path, now))]

    def done(self, handles: Sequence[str]) -> None:
        """The files go."""
        for handle in handles:
            try:
                os.unlink(handle)
            except FileNotFoundError:
                pass
            except OSError as error:
                # What it says is kept by now: a file that stays is no failed reading.
                self._staying[handle] = _version(Path(handle))
                log.warning("read, but cannot be removed path=%s: %s", handle, error.strerror)


def _version(path: Path) -> tuple[int, int]:
    """The mark that changes with the file; (0, 0) where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _read_file(path: Path, now: float) -> SourceReading | None:
    handle = str(path)
    try:
        # Without waiting: the open of a pipe would last until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # our own trouble, not the file's: it is not to be removed for that
        return SourceReading(handle=handle, wrong=f"{path}: {error.strerror}")
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            return SourceReading(handle=handle, wrong=f"{path} is no file of root or SlurmUser")
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    try:
        order = msgspec.json.decode(text, type=AnyOrder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Whoever writes there without renaming may be in the middle of it.
        half = now - found.st_mtime < WRITING_TIMEOUT_S
        return None if half else SourceReading(handle=handle, wrong=f"{path}: {error}")
    if isinstance(order, NoticeOrder):
        return SourceReading(handle=handle, notice=_notice_of_order(order, now), order=order)
    return SourceReading(handle=handle, order=order)


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
