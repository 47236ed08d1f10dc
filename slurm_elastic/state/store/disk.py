"""A journal and its view, opened together, for one thread at a time.

Under the journal's lock a writer first applies the lines that others have appended. It then appends
a line, syncs it, and changes the view, in this order. After a crash in between, the next writer
applies the missing lines, because ``NAME.applied`` has the last line that the view has.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from slurm_elastic.base import writing
from slurm_elastic.state.store import view
from slurm_elastic.state.store.journal import (
    NOWHERE,
    Applied,
    Damage,
    Fact,
    Identity,
    Position,
    identity,
)
from slurm_elastic.state.store.shared_journal import is_there, journal_of
from slurm_elastic.state.store.trouble import (
    JournalError,
    LostFileError,
    TroubleKind,
    kind_of,
    note_may_count,
    set_aside,
)
from slurm_elastic.state.store.view import Filler, Schema, transaction

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
"""Bytes of lines after which a new segment begins, plus BYTES_PER_FIRST_ROW per first row."""
BYTES_PER_FIRST_ROW = 1000
CLOSED: Identity = (-1, -1)
"""The identity of no file."""


class Disk:
    """The journal and the view of one memory, open. ``begins``: whether to create missing files.
    sqlite3.Error passes through, JournalError among them. ``changed``: whether the rows of the view
    may have changed since the owner reset it. ``timeout_s``: seconds to wait for other processes.
    """

    def __init__(
        self, path: Path, schema: Schema, *, begins: bool = True, timeout_s: float | None = None
    ) -> None:
        self.path, self.schema, self.begins = path, schema, begins
        self.timeout_s = view.BUSY_TIMEOUT if timeout_s is None else timeout_s
        self.journal = journal_of(path)
        self.position = Position()
        self.changed: bool
        self.damage: BaseException | None = None
        self.identity, self._boot = CLOSED, view.boot()
        self._wal, self._beside = path.with_name(f"{path.name}-wal"), NOWHERE
        self._alone = self._closed = False
        self.db: sqlite3.Connection
        try:
            self.require_current()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files; closing twice is no error."""
        self._closed = True
        if self.identity != CLOSED:
            self.db.close()
        self.journal.close()

    def require_current(self) -> Disk:
        """Open the view that is at the path now, rebuilt if necessary; return the disk itself."""
        if not self._alone and identity(self.path) != self.identity:
            with self.turn():
                pass
        return self

    def _open(self, *, torn: bool = False) -> None:
        if self.identity != CLOSED:
            self.db.close()
            self.identity = CLOSED
        is_new = not self.journal.segments() and not self.path.exists()
        if not self.journal.segments():
            self._begin()
        try:
            if torn or not self._is_sound():
                self._anew(is_new=is_new)
            self._take(view.open_writer(self.path, self.timeout_s))
        except sqlite3.DatabaseError as error:
            if kind_of(error) is TroubleKind.CORRUPT:
                aside = set_aside(self.path, time.time())
                log.error(  # noqa: TRY400 - the file is at fault, not the code
                    "the damaged %s was set aside as %s", self.schema.name, aside
                )
            elif getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_IOERR:
                raise  # an I/O error is left: another process lost -wal, so rebuild the view
            self._anew()
            self._take(view.open_writer(self.path, self.timeout_s))
        self.position = self.journal.applied().position
        try:
            self._take_in()
            self._require_whole()
        except LostFileError as error:
            log.error("%s; a new segment starts from %s", error, self.path)  # noqa: TRY400 - no defect
            self._begin_of_view(time.time())
        # In a segment of its own schema an earlier release would accept this release's lines.
        if self.journal.is_outdated(self.position.segment, self.schema.version):
            self._begin_of_view(time.time())

    def _require_whole(self) -> None:
        """Raise LostFileError if the view is ahead of the journal, because an older copy of the
        journal was put in its place.
        """
        if view.number_of(self.db) > self.position.number:
            end = self.journal.path(self.position.segment)
            raise LostFileError(2, "it ends before its view", str(end))

    def _is_sound(self) -> bool:
        """Whether the existing view has the rows that ``NAME.applied`` says."""
        if not self.path.exists():
            return False
        with contextlib.closing(view.connect(self.path)) as db:
            version = view.version_of(db, self.path, self.schema)
            number = view.number_of(db)
        applied = self.journal.applied()
        is_same = applied.view == identity(self.path) and applied.boot == self._boot
        is_same = is_same and applied.epoch == self.journal.epoch
        # A lower number: the view was replaced by an older copy.
        is_whole = number >= applied.position.number
        return is_same and is_whole and version == self.schema.version

    def _begin(self) -> None:
        """Write the first segment: from a view whose journal is gone, or empty."""
        if not self.begins:
            raise sqlite3.OperationalError(f"there is no {self.schema.name} at the moment")
        is_view = self.path.exists() and view.has_rows(self.path, self.schema)
        with contextlib.closing(
            view.connect(self.path) if is_view else view.open_memory(self.schema)
        ) as rows:
            number = max(self.journal.applied().position.number, view.least(rows, self.schema))
            self.journal.begin(
                view.begin_of(rows, self.schema), view.rows_of(rows, self.schema), number,
                time.time(),
            )  # fmt: skip

    def _anew(self, *, is_new: bool = False) -> None:
        """Rebuild the view from the journal. ``is_new``: the journal has just been begun."""
        # The process that named a segment may have been killed before it synced the directory.
        writing.require_synced(self.journal.directory)
        began = time.monotonic()
        applied_number = self.journal.applied().position.number
        position, damages = view.made_anew(self.path, self.schema, self.journal)
        self._say(damages)
        if position.number < applied_number:
            log.error(
                "the journal %s ends with line %d but had %d: the records after it are lost",
                self.journal.path(position.segment), position.number, applied_number,
            )  # fmt: skip
        view_identity = identity(self.path)
        epoch = self.journal.epoch
        self.journal.note(
            Applied(position=position, view=view_identity, boot=self._boot, epoch=epoch)
        )
        if is_new:
            log.info("%s is new", self.path)
            return
        log.info("%s was rebuilt from its journal in %.1f s", self.path, time.monotonic() - began)

    def _take(self, connection: sqlite3.Connection) -> None:
        self.db, self.identity = connection, identity(self.path)
        self._beside = identity(self._wal)
        self.filler = Filler(connection, self.schema)
        self.changed = True

    def _note(self, position: Position) -> None:
        """Write the position to the view, then to ``NAME.applied``. If the write to the view fails,
        neither gets the position. The next writer then applies the last lines again, which changes
        nothing.
        """
        self.position = position
        with contextlib.suppress(sqlite3.Error, OSError):
            view.set_number(self.db, position.number)
            view_identity, epoch = self.identity, self.journal.epoch
            self.journal.note(
                Applied(position=position, view=view_identity, boot=self._boot, epoch=epoch)
            )

    def _say(self, damages: Sequence[Damage]) -> None:
        for damage in damages:
            if not damage.torn:
                log.error(
                    "the journal %s is damaged in bytes %d to %d, and the records there are lost; "
                    "do: slurm-elastic journal verify",
                    damage.path, damage.begin, damage.end,
                )  # fmt: skip

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the journal's lock, with the lines of all other processes applied; an inner turn is
        a part of the outer one.
        """
        if self._alone:
            yield
            return
        with contextlib.ExitStack() as stack:
            with JournalError.of_system():  # not around the body, which may raise its own OSErrors
                stack.enter_context(self.journal.locked(self.timeout_s))
                self._catch_up()
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def _catch_up(self) -> None:
        self.journal.cut_left()  # first: the lines of a failed write must not be applied
        if identity(self.path) != self.identity:
            self._open()
        elif identity(self._wal) != self._beside:  # others write to another -wal
            self._open(torn=True)
        applied = self.journal.applied()
        if applied.position != self.position:
            if applied.view != self.identity:
                self._open()
            else:
                self.position = applied.position
            self.changed = True
        if self.journal.behind(self.position):
            self._take_in()

    def _take_in(self) -> None:
        """Under the lock: apply the lines that the view lacks, and cut off half a line at the end.
        A new segment counts even if its writer was killed before it noted the segment.
        """
        if not self.journal.behind(self.position):
            return
        damages: list[Damage] = []
        end = self.position
        with transaction(self.db):
            for line, place in self.journal.lines(self.position, damages):
                if line is not None:
                    self.filler.facts(line.facts, line.n)
                end = place
        self._say(damages)
        end = view.past_damage(end, damages, self.journal)
        if end.segment != self.position.segment:  # a killed writer may not have synced its name
            writing.require_synced(self.journal.directory)
        if os.stat(self.journal.path(end.segment)).st_size > end.offset:
            self.journal.cut(end.segment, end.offset)
        self._note(end)
        self.changed = True

    # writes

    @contextlib.contextmanager
    def write(self, facts: list[Fact], now: Callable[[], float]) -> Iterator[sqlite3.Connection]:
        """A transaction of the view. Before its commit ``facts`` are appended to the journal as one
        line. If the commit fails the line is cut off again, because the writer gets an error.
        """
        with self.turn():
            end = self.position
            try:
                with transaction(self.db):
                    yield self.db
                    if facts:
                        end = self._append([facts], now())
            except sqlite3.Error:
                self._cut()
                raise
            if facts:
                self._note(end)

    def put(self, batches: Sequence[Sequence[Fact]], now: Callable[[], float]) -> None:
        """Append a line to the journal for each batch, then change the view. If the view refuses,
        the lines are cut off again.
        """
        with self.turn():
            end = self._append(batches, now())
            # One row is one statement, which sqlite commits by itself.
            is_single_row = [len(fact.rows) for facts in batches for fact in facts] == [1]
            try:
                with contextlib.nullcontext() if is_single_row else transaction(self.db):
                    for number, facts in enumerate(batches, self.position.number + 1):
                        self.filler.facts(facts, number)
            except Exception:  # also OverflowError, for an integer that sqlite cannot store
                self._cut()
                raise
            self._note(end)

    def _append(self, batches: Sequence[Sequence[Fact]], now: float) -> Position:
        with JournalError.of_system():
            return self.journal.append(self.position, batches, now)

    def _cut(self) -> None:
        with JournalError.of_system():
            try:
                self.journal.cut(self.position.segment, self.position.offset)
            except OSError as error:
                if self.journal.uncut is not None:
                    note_may_count(error)
                raise

    # a new segment

    def shorten(self, lock: contextlib.AbstractContextManager[object], now: float) -> None:
        """Begin a new segment if the current segment is long. ``lock`` is the owner's lock. The
        owner can write while the rows are copied: they are read as of one moment, and the lines
        that were appended after that moment follow them.
        """
        if not self._is_long():
            return
        with (
            contextlib.ExitStack() as opened,
            contextlib.suppress(_BegunElsewhereError),
            JournalError.of_system(),
        ):
            with self._turn_of(lock):  # the view that is there then is this journal's
                start = self.position
                reader = view.connect(self.path, "ro", self.timeout_s)
                opened.callback(reader.close)
                reader.execute("begin")
                head = view.begin_of(reader, self.schema)
            with contextlib.ExitStack() as turn:

                def rest(file: IO[bytes]) -> int:
                    turn.enter_context(self._turn_of(lock))
                    if self.position.segment != start.segment:
                        raise _BegunElsewhereError
                    for content, _, whole in self.journal.read(start.segment, start.offset):
                        if whole:
                            file.write(content)
                    return self.position.number

                rows = view.rows_of(reader, self.schema)
                self._note(self.journal.begin(head, rows, start.number, now, rest))

    @contextlib.contextmanager
    def _turn_of(self, lock: contextlib.AbstractContextManager[object]) -> Iterator[None]:
        with lock:
            if self._closed:
                raise _BegunElsewhereError
            with self.turn():
                yield

    def _is_long(self) -> bool:
        if self.position.offset < SEGMENT_BYTES:
            return False
        head = self.journal.first(self.position.segment)
        rows = 0 if head is None else head.rows
        return self.position.offset > SEGMENT_BYTES + rows * BYTES_PER_FIRST_ROW

    def begin_anew(self, now: float) -> None:
        """Begin a segment with the view's rows, after lines of the journal were damaged or lost."""
        with JournalError.of_system(), self.journal.locked(self.timeout_s):
            self._take_in_others()
            self._begin_of_view(now)
            if identity(self.path) != self.identity:
                self._open()

    def _begin_of_view(self, now: float) -> None:
        head, rows = view.begin_of(self.db, self.schema), view.rows_of(self.db, self.schema)
        number = max(self.position.number, view.least(self.db, self.schema))
        self._note(self.journal.begin(head, rows, number, now))

    def _take_in_others(self) -> None:
        """Apply the lines of other processes, as far as their files exist."""
        applied = self.journal.applied()
        if applied.view == identity(self.path) != self.identity:
            self._take(view.open_writer(self.path, self.timeout_s))
        if applied.view == self.identity:
            self.position = applied.position
        with contextlib.suppress(LostFileError):
            self._take_in()

    def damaged(self) -> Damage | None:
        """The first damage of the current segment; reads the whole segment."""
        damages: list[Damage] = []
        for _ in self.journal.read(self.position.segment, 0, damages):
            if damages and not damages[0].torn:
                return damages[0]
        return None


class _BegunElsewhereError(Exception):
    """Another process began a segment during the copy, or the owner closed this disk."""


class Elsewhere:
    """The disk of another service, which may be missing: a call then raises sqlite3.Error, and a
    later call tries again. Only the first call creates missing files. Later the other service may
    still have the rows of lost files in memory.
    """

    RETRY_AFTER_S = 5.0
    """Seconds between two tries to open the disk."""
    LOCK_TIMEOUT_S = 1.0
    """Seconds to wait for other processes. It is short because jobs wait for the caller."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path, self._schema = path, schema
        self._disk: Disk | None = None
        self._begins = True
        self._again = float("-inf")
        self.damage: BaseException | None = None

    def require_current(self) -> Disk:
        """The disk, with the view open that is there now."""
        try:
            return self._current()
        except OSError as error:
            # ESTALE: the shared directory of two heads (NFS) may disappear between two calls.
            raise sqlite3.OperationalError(
                f"the {self._schema.name} cannot be opened: {error}"
            ) from error

    def _current(self) -> Disk:
        begins, self._begins = self._begins, False
        if not begins and not is_there(self._path):
            raise sqlite3.OperationalError(f"there is no {self._schema.name} at the moment")
        if self._disk is None or not self._path.exists():
            if time.monotonic() < self._again:
                raise sqlite3.OperationalError(
                    f"the {self._schema.name} could not be opened just now"
                )
            self._again = time.monotonic() + self.RETRY_AFTER_S
            self.close()
            self._disk = Disk(
                self._path, self._schema, begins=begins, timeout_s=self.LOCK_TIMEOUT_S
            )
            self._disk.begins = False
            self._again = float("-inf")
        return self._disk.require_current()

    def close(self) -> None:
        """Close the other service's files."""
        if self._disk is not None:
            self._disk.close()
        self._disk = None
