"""The journal: facts that cannot be read again elsewhere, one JSON line for each write. The line is
on the disk before its effect.

A line is a batch of facts: whole rows, or the keys of deleted rows. The facts of a line count
together or not at all, and applying a line twice changes nothing. Each line has its number, the
time and a checksum, so that damaged lines are found::

    {"crc":"8e0d1c55","n":71,"at":1800000000.5,"facts":[{"put":"machines","rows":[{"id":"i-1",...}]}]}

Files (segments) are ``NAME-NNNNNN.jsonl``. Each segment begins with all rows that existed, so it
needs no other segment. The previous segment is kept until the next one begins. A writer has the
lock of ``NAME.applied``. This file records which line the view (``state.store.view``) applied last.
A line's ``epoch`` is 0 except with two heads (``state.store.shared_journal``).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct

from slurm_elastic.base import ownfile, writing
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.state import statedir
from slurm_elastic.state.store.trouble import LostFileError, locked_error, note_may_count

log = logging.getLogger(__name__)

_CRC = b'{"crc":"'
_HEAD = len(_CRC) + 8
_POLL = 0.01
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_APPLIED = 4096
"""Maximum number of bytes to read of ``NAME.applied``, which has 256 or a few more."""


class Fact(Struct, frozen=True, omit_defaults=True):
    """Whole rows of the table ``put``, or keys of rows deleted from the table ``drop``."""

    rows: list[dict[str, Any]]
    put: str = ""
    drop: str = ""


class Begin(Struct, frozen=True):
    """The head of a segment: the number of ``rows`` that follow, and the ``schema`` of the tables.
    ``origin``: a random id that all segments of one journal share. A journal restored from a backup
    names the backup's origin (``source``) and its last line (``until``) in each segment.
    """

    memory: str
    schema: int
    rows: int
    origin: str = ""
    source: str = ""
    until: int = 0


class JournalLine(Struct, frozen=True, omit_defaults=True):
    """A line. The first rows of a segment have the number of the last line of the old segment."""

    n: int
    at: float = 0.0
    epoch: int = 0
    begin: Begin | None = None
    facts: tuple[Fact, ...] = ()


class Position(NamedTuple):
    """A place after a line: its segment, the bytes up to there, and the line's number."""

    segment: int = 0
    offset: int = 0
    number: int = 0


class Damage(Struct, frozen=True, kw_only=True):
    """Bytes of a segment without a valid line. ``torn``: half a line, from an unfinished write."""

    path: Path
    line: int
    begin: int
    end: int
    torn: bool


Identity = tuple[int, int]
"""The device and the inode number of a file; a file that replaces it has another identity."""
NOWHERE: Identity = (0, 0)


def identity(file: Path | int) -> Identity:
    """The identity of the file at a path or behind a descriptor; NOWHERE if there is no file."""
    try:
        status = os.stat(file)
    except OSError:
        return NOWHERE
    return status.st_dev, status.st_ino


class Applied(Struct, frozen=True, kw_only=True):
    """How far the view is: the ``position`` after the last line that it applied, the identity of
    the ``view`` file, the boot of this host, and with two heads the epoch.
    """

    position: Position = Position()
    view: Identity = NOWHERE
    boot: str = ""
    epoch: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JournalLine).decode
_decode_applied = msgspec.json.Decoder(Applied).decode


def line_of(line: JournalLine) -> bytes:
    """The bytes of the line, with its checksum."""
    content = b"," + _encode(line)[1:]
    return b'%s%08x"%s\n' % (_CRC, zlib.crc32(content), content)


def read_line(raw: bytes) -> JournalLine | None:
    """The line; None if it is damaged."""
    if not is_whole(raw):
        return None
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, RecursionError):  # thousands of nested brackets
        return None


def is_whole(raw: bytes) -> bool:
    """Whether the line's checksum is right."""
    rest = raw[_HEAD + 1 : -1]
    return raw[-1:] == b"\n" and raw[: _HEAD + 1] == b'%s%08x"' % (_CRC, zlib.crc32(rest))


def _make_directory(directory: Path) -> None:
    owner = writing.owner_in(directory.parent)
    directory.mkdir(mode=statedir.DIRECTORY, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _give(descriptor, statedir.DIRECTORY, owner)
    finally:
        os.close(descriptor)
    writing.sync_directory(directory.parent)


def _give(descriptor: int, mode: int, owner: writing.Owner | None) -> None:
    """Set the mode, whatever the umask, and the owner."""
    os.fchmod(descriptor, mode)
    if owner is not None and owner != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, *owner)


class Journal:
    """The segments of one memory, for one thread at a time; OSError passes through. ``epoch``: the
    epoch of this writer with two heads, else 0.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": "to read or write the segments, of all processes"}

    epoch = 0

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.turn = directory / f"{name}.applied"
        self._lock, self._locked = -1, NOWHERE
        self._open, self._opened = (0, -1), NOWHERE
        self.uncut: tuple[Position, bytes] | None = None

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._lock, self._open[1]):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock, self._open = -1, (0, -1)

    def path(self, segment: int) -> Path:
        """The file of that segment."""
        return self.directory / f"{self.name}-{segment:06d}.jsonl"

    def segments(self) -> list[int]:
        """The numbers of the existing segments, oldest first."""
        named = re.compile(rf"{re.escape(self.name)}-(\d{{6,}})\.jsonl")
        try:
            matches = [named.fullmatch(name) for name in os.listdir(self.directory)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(match[1]) for match in matches if match)

    @contextlib.contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Hold the lock among all processes. Raises OSError after ``patience`` seconds."""
        if self._lock < 0 or self._locked != identity(self.turn):
            self._open_lock()
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise locked_error(self.turn) from None
                time.sleep(_POLL)
            else:
                if self._locked == identity(self.turn):
                    break
                self._open_lock()  # the file was replaced before this process got the lock
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _open_lock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if not self.directory.is_dir():
            _make_directory(self.directory)
        try:
            self._lock = os.open(self.turn, _FLAGS | os.O_EXCL, statedir.FILE)
        except FileExistsError:
            self._lock = ownfile.opened(self.turn, os.O_RDWR | os.O_CREAT, statedir.FILE)
        else:
            _give(self._lock, statedir.FILE, writing.owner_in(self.directory))
        self._locked = identity(self._lock)

    def require_reachable(self) -> None:
        """Raise JournalError if the segments cannot be looked for. Without a second head they are
        beside the view.
        """

    @property
    def is_newest(self) -> bool:
        """Whether no other head has written since the view was made."""
        return True

    def applied(self) -> Applied:
        """The state of the view; the default if ``NAME.applied`` cannot be read."""
        try:
            return _decode_applied(self._applied())
        except (OSError, msgspec.MsgspecError, RecursionError):
            return Applied()

    def _applied(self) -> bytes:
        if self._lock >= 0:
            return os.pread(self._lock, _APPLIED, 0)
        with ownfile.reader(self.turn) as file:
            return file.read(_APPLIED)

    def note(self, applied: Applied) -> None:
        """Record the state of the view, under the lock. Not synced: a boot rebuilds the view."""
        content = _encode(applied)
        os.pwrite(self._lock, content.ljust(256), 0)

    # lines

    def behind(self, position: Position) -> bool:
        """Whether others have written after ``position``. Raises LostFileError if lines before it
        are gone.
        """
        path = self.path(position.segment)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            if self.segments()[-1:] > [position.segment]:
                return True
            raise LostFileError(2, "it was removed", str(path)) from None
        if size < position.offset:
            raise LostFileError(2, "its end is gone", str(path))
        return size > position.offset or self.path(position.segment + 1).exists()

    def append(self, end: Position, batches: Sequence[Sequence[Fact]], now: float) -> Position:
        """Append a line per batch at ``end`` and sync them. After an error, cut them off again.
        If that fails, too, the error says that the lines may count all the same.
        """
        lines = [
            line_of(JournalLine(n=number, at=now, epoch=self.epoch, facts=tuple(facts)))
            for number, facts in enumerate(batches, end.number + 1)
        ]
        content = b"".join(lines)
        descriptor = self._descriptor(end.segment)
        try:
            unwritten = content
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
            os.fsync(descriptor)
        except OSError as error:
            error.filename = error.filename or os.path.realpath(self.path(end.segment))
            with contextlib.suppress(OSError):
                self.cut(end.segment, end.offset)
            if self.uncut is not None:
                note_may_count(error)
            raise
        return Position(end.segment, end.offset + len(content), end.number + len(lines))

    def _descriptor(self, segment: int) -> int:
        number, descriptor = self._open
        path = self.path(segment)
        if number == segment and descriptor >= 0 and self._opened == identity(path):
            return descriptor
        if descriptor >= 0:
            os.close(descriptor)
        self._open = (0, -1)
        descriptor = ownfile.opened(path, os.O_RDWR | os.O_APPEND)
        self._open, self._opened = (segment, descriptor), identity(descriptor)
        return descriptor

    def lines(
        self, since: Position, damages: list[Damage] | None = None
    ) -> Iterator[tuple[JournalLine | None, Position]]:
        """All lines after ``since``, each with the position after it. None stands for a line of a
        later segment that repeats an earlier line. Invalid bytes are appended to ``damages``.
        """
        for segment in self.segments():
            if segment < since.segment:
                continue
            is_later = segment > since.segment and since.offset > 0
            begin = 0 if segment > since.segment else since.offset
            for content, end, whole in self.read(segment, begin, damages):
                line = read_line(content) if whole else None
                if line is None:
                    continue
                is_known = is_later and line.n <= since.number
                yield None if is_known else line, Position(segment, end, max(line.n, since.number))

    def read(
        self, segment: int, begin: int = 0, damages: list[Damage] | None = None
    ) -> Iterator[tuple[bytes, int, bool]]:
        """The segment's lines as bytes, the offset after each line, and whether it is whole."""
        end = begin
        with ownfile.reader(self.path(segment)) as file:
            file.seek(begin)
            for number, raw in enumerate(file, 1):
                start, end = end, end + len(raw)
                whole = is_whole(raw)
                if not whole and damages is not None:
                    torn = raw[-1:] != b"\n"
                    damages.append(
                        Damage(
                            path=self.path(segment), line=number, begin=start, end=end, torn=torn
                        )
                    )
                yield raw, end, whole

    def cut(self, segment: int, size: int) -> None:
        """Cut the segment at ``size``: the rest belongs to a write that failed. If the file cannot
        be truncated, overwrite the rest with zero bytes: they are no line, and the next writer
        (``disk``) cuts them off. If that fails as well, ``uncut`` records the rest.
        """
        descriptor = self._descriptor(segment)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            # Recorded first: if the overwriting fails, too, whole lines of a failed write remain.
            self.uncut = Position(segment, size), self._after(segment, size)
            other = ownfile.opened(self.path(segment), os.O_WRONLY)  # ours would append
            with os.fdopen(other, "wb", buffering=0) as file:
                file.seek(size)
                file.write(bytes(max(os.fstat(descriptor).st_size - size, 0)))
            self.uncut = None
            raise
        self.uncut = None

    def cut_left(self) -> None:
        """Under the lock: cut the bytes of ``uncut``, unless another process has applied them."""
        if self.uncut is None:
            return
        (segment, size, _), leftover = self.uncut
        is_taken = self.applied().position[:2] > (segment, size)
        if leftover and not is_taken and self._after(segment, size) == leftover:
            self.cut(segment, size)
        self.uncut = None

    def _after(self, segment: int, offset: int) -> bytes:
        with contextlib.suppress(OSError), ownfile.reader(self.path(segment)) as file:
            file.seek(offset)
            return file.read()
        return b""

    # segments

    def begin(
        self,
        begin: Begin,
        facts: Iterable[Fact],
        number: int,
        now: float,
        rest: Callable[[IO[bytes]], int] | None = None,
    ) -> Position:
        """Begin a new segment with these rows, after the line ``number``. ``rest`` appends the
        lines that were written since, and returns the number of the last line.
        """

        def written(file: IO[bytes]) -> int:
            file.writelines(self.beginning(begin, facts, number, now))
            return number if rest is None else rest(file)

        return self.segment_of(written)

    def beginning(
        self, begin: Begin, facts: Iterable[Fact], number: int, now: float
    ) -> Iterator[bytes]:
        """The first lines of a segment."""
        newest = self.newest_head()
        origin = newest.origin or secrets.token_hex(8)
        head = Begin(begin.memory, begin.schema, begin.rows, origin, newest.source, newest.until)
        yield line_of(JournalLine(n=number, at=now, epoch=self.epoch, begin=head))
        for fact in facts:
            yield line_of(JournalLine(n=number, facts=(fact,)))

    def segment_of(self, written: Callable[[IO[bytes]], int]) -> Position:
        """Begin a new segment. ``written`` writes its content and returns the number of the last
        line. Its name makes the segment a part of the journal, even if a later step fails here:
        the next writer continues in it.
        """
        segment = (self.segments() or [0])[-1] + 1
        # All drafts have one name, so a later segment replaces the draft of a killed program.
        drafts = self.directory / f"{self.name}.jsonl"
        with writing.draft(drafts, owner=writing.owner_in(self.directory)) as draft:
            with writing.open_draft(draft) as file:
                number = written(file)
                file.flush()
                os.fsync(file.fileno())  # first: the name stands for a whole segment
                size = file.tell()
            self._give_name(draft, segment)
        writing.require_synced(self.directory)  # the new name, before an old segment is deleted
        for old in self.segments()[:-2]:
            with contextlib.suppress(OSError):  # the next one tries again
                self.path(old).unlink()
        return Position(segment, size, number)

    def _give_name(self, draft: Path, segment: int) -> None:
        """Make the draft a segment. The lock keeps all other writers of the journal away."""
        os.rename(draft, self.path(segment))

    def first(self, segment: int) -> Begin | None:
        """The head of the segment; None if it is damaged."""
        line = next((read_line(content) for content, _, _ in self.read(segment)), None)
        return None if line is None else line.begin

    def is_outdated(self, segment: int, schema: int) -> bool:
        """Whether the segment was begun in an earlier epoch, or for an earlier schema."""
        line = next((read_line(content) for content, _, _ in self.read(segment)), None)
        begun_for = line.begin.schema if line and line.begin else schema
        return self.epoch > (0 if line is None else line.epoch) or schema > begun_for

    def newest_head(self) -> Begin:
        """The newest readable head of a segment; an empty one if no head can be read."""
        heads = (self.first(segment) for segment in reversed(self.segments()))
        return next((head for head in heads if head is not None), Begin("", 0, 0))
