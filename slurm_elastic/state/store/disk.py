"""A journal and its view as one open thing, for one thread at a time.

Under the journal's lock a writer first takes in what others have appended; then a line is appended
and synced, and the view changed. A crash between is made up for by the next writer, as
``NAME.applied`` says after which line the view stands.
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
from slurm_elastic.state.store.before import carry_over, is_before, put_by
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
from slurm_elastic.state.store.trouble import JournalError, Kind, LostFileError, kind_of, set_aside
from slurm_elastic.state.store.view import Filler, Schema, transaction

log = logging.getLogger(__name__)

LONG = 16 << 20
"""Bytes of lines from which on a new segment is begun, beside ROW for each of its first rows."""
ROW = 1000
CLOSED: Identity = (-1, -1)
"""The identity of no file."""


class Disk:
    """``begins``: whether there may be none yet. sqlite3.Error passes through, JournalError among
    them. ``changed``: whether the view may have other rows than at the last look of its owner;
    ``patience``: seconds to wait for others.
    """

    def __init__(
        self, path: Path, schema: Schema, *, begins: bool = True, patience: float | None = None
    ) -> None:
        self.path, self.schema, self.begins = path, schema, begins
        self.patience = view.BUSY_TIMEOUT if patience is None else patience
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
        """Itself, with the view open that is at its path, made anew where it has to be."""
        if not self._alone and identity(self.path) != self.identity:
            with self.turn():
                pass
        return self

    def _open(self, *, torn: bool = False) -> None:
        if self.identity != CLOSED:
            self.db.close()
            self.identity = CLOSED
        begins = not self.journal.segments()
        if begins:
            self._begin()
        try:
            if torn or not self._is_sound():
                self._anew(taken=begins)
            self._take(view.open_writer(self.path, self.patience))
        except sqlite3.DatabaseError as error:
            if kind_of(error) is Kind.CORRUPT:
                aside = set_aside(self.path, time.time())
                log.error(  # noqa: TRY400 - what is wrong is the file, not the code
                    "the damaged %s was set aside as %s", self.schema.name, aside
                )
            elif getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_IOERR:
                raise  # and where -wal went under another process the file is made anew
            self._anew(taken=begins)
            self._take(view.open_writer(self.path, self.patience))
        self.position = self.journal.applied().position
        try:
            self._take_in()
            self._require_whole()
        except LostFileError as error:
            log.error("%s; it is begun anew of %s", error, self.path)  # noqa: TRY400 - no defect
            self._begin_of_view(time.time())
        epoch = self.journal.epoch
        if epoch and epoch > self.journal.epoch_of(self.position.segment):
            self._begin_of_view(time.time())

    def _require_whole(self) -> None:
        """LostFileError where a copy of the journal was put beside a view that knows more."""
        if view.number_of(self.db) > self.position.number:
            end = self.journal.path(self.position.segment)
            raise LostFileError(2, "it ends before its view", str(end))

    def _is_sound(self) -> bool:
        """Whether the view that is there has what is said of it."""
        if not self.path.exists():
            return False
        with contextlib.closing(view.connect(self.path)) as db:
            version = view.version_of(db, self.path, self.schema)
            number = view.number_of(db)
        applied = self.journal.applied()
        is_same = applied.view == identity(self.path) and applied.boot == self._boot
        is_same = is_same and applied.epoch == self.journal.epoch
        # An older copy may have been put into its place.
        is_whole = number >= applied.position.number
        return is_same and is_whole and version == self.schema.version

    def _begin(self) -> None:
        """The first segment: of a view whose journal is gone, of the file of a release that had no
        journal, or of nothing.
        """
        if not self.begins:
            raise sqlite3.OperationalError(f"there is no {self.schema.name} at the moment")
        is_view = self.path.exists() and not is_before(self.path, self.schema)
        with contextlib.closing(
            view.connect(self.path) if is_view else view.open_memory(self.schema)
        ) as rows:
            if self.path.exists() and not is_view:
                carry_over(self.path, self.schema, rows)
            number = max(self.journal.applied().position.number, view.least(rows, self.schema))
            self.journal.begin(
                view.begin_of(rows, self.schema), view.rows_of(rows, self.schema), number,
                time.time(),
            )  # fmt: skip

    def _anew(self, *, taken: bool) -> None:
        """``taken``: the rows of a file of before are in the journal since just now."""
        with contextlib.suppress(sqlite3.DatabaseError):
            if self.path.exists() and is_before(self.path, self.schema):
                put_by(self.path, None if taken else self.journal)
        # A segment may be there whose maker was killed before its name was on the disk.
        writing.require_synced(self.journal.directory)
        began = time.monotonic()
        known = self.journal.applied().position.number
        position, damages = view.made_anew(self.path, self.schema, self.journal)
        self._say(damages)
        if position.number < known:
            log.error(
                "the journal %s ends with line %d and had %d: what was said after it is lost",
                self.journal.path(position.segment), position.number, known,
            )  # fmt: skip
        made = identity(self.path)
        epoch = self.journal.epoch
        self.journal.note(Applied(position=position, view=made, boot=self._boot, epoch=epoch))
        log.info("%s was made of its journal in %.1f s", self.path, time.monotonic() - began)

    def _take(self, connection: sqlite3.Connection) -> None:
        self.db, self.identity = connection, identity(self.path)
        self._beside = identity(self._wal)
        self.filler = Filler(connection, self.schema)
        self.changed = True

    def _note(self, position: Position) -> None:
        """Both say how far the view has come. Where the view cannot, neither does, and the next one
        takes the last lines in once more, which changes nothing.
        """
        self.position = position
        with contextlib.suppress(sqlite3.Error, OSError):
            view.set_number(self.db, position.number)
            mine, epoch = self.identity, self.journal.epoch
            self.journal.note(Applied(position=position, view=mine, boot=self._boot, epoch=epoch))

    def _say(self, damages: Sequence[Damage]) -> None:
        for one in damages:
            if not one.torn:
                log.error(
                    "the journal %s is damaged in bytes %d to %d: what was said there is not "
                    "known; do: slurm-elastic journal verify", one.path, one.begin, one.end,
                )  # fmt: skip

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Alone among all processes, with all that they have written; inside another one a part of
        that.
        """
        if self._alone:
            yield
            return
        with contextlib.ExitStack() as alone:
            with JournalError.of_system():  # and not what the caller meets meanwhile
                alone.enter_context(self.journal.locked(self.patience))
                self._catch_up()
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def _catch_up(self) -> None:
        self.journal.cut_left()
        if identity(self.path) != self.identity:
            self._open()
        elif identity(self._wal) != self._beside:  # others do not write to that of ours
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
        """Under the lock: apply what the journal has beyond the view, and cut off half a line. A
        segment that was begun by one that did not come to say so is gone on with.
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
        if end.segment != self.position.segment:
            writing.require_synced(self.journal.directory)
        if os.stat(self.journal.path(end.segment)).st_size > end.offset:
            self.journal.cut(end.segment, end.offset)
        self._note(end)
        self.changed = True

    # what is written

    @contextlib.contextmanager
    def write(self, facts: list[Fact], now: Callable[[], float]) -> Iterator[sqlite3.Connection]:
        """A transaction of the view; what ``facts`` has at its end is a line of the journal first.
        What the view refuses is not in the journal either, as its writer is told that it failed.
        """
        with self.turn():
            at = self.position
            try:
                with transaction(self.db):
                    yield self.db
                    if facts:
                        at = self._append([facts], now())
            except sqlite3.Error:
                self._cut()
                raise
            if facts:
                self._note(at)

    def put(self, batches: Sequence[Sequence[Fact]], now: Callable[[], float]) -> None:
        """A line of the journal for each, then the view; the same else."""
        with self.turn():
            at = self._append(batches, now())
            one = [len(fact.rows) for facts in batches for fact in facts] == [1]
            try:
                with contextlib.nullcontext() if one else transaction(self.db):
                    for number, facts in enumerate(batches, self.position.number + 1):
                        self.filler.facts(facts, number)
            except Exception:  # also of a value that sqlite has no room for
                self._cut()
                raise
            self._note(at)

    def _append(self, batches: Sequence[Sequence[Fact]], now: float) -> Position:
        with JournalError.of_system():
            return self.journal.append(self.position, batches, now)

    def _cut(self) -> None:
        with JournalError.of_system():
            self.journal.cut(self.position.segment, self.position.offset)

    # a new segment

    def shorten(self, lock: contextlib.AbstractContextManager[object], now: float) -> None:
        """Begin a new segment where one is due. ``lock`` is its owner's, who goes on meanwhile: the
        rows are read as of one moment, and what comes after it follows them.
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
                reader = view.connect(self.path, "ro", self.patience)
                opened.callback(reader.close)
                reader.execute("begin")
                head = view.begin_of(reader, self.schema)
            with contextlib.ExitStack() as turn:

                def rest(file: IO[bytes]) -> int:
                    turn.enter_context(self._turn_of(lock))
                    if self.position.segment != start.segment:
                        raise _BegunElsewhereError
                    for raw, _, whole in self.journal.read(start.segment, start.offset):
                        if whole:
                            file.write(raw)
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
        if self.position.offset < LONG:
            return False
        first = self.journal.first(self.position.segment)
        rows = 0 if first is None else first.rows
        return self.position.offset > LONG + rows * ROW

    def begin_anew(self, now: float) -> None:
        """A segment of the view's rows, as the journal's own lines are damaged or gone."""
        with JournalError.of_system(), self.journal.locked(self.patience):
            self._take_in_others()
            self._begin_of_view(now)
            if identity(self.path) != self.identity:
                self._open()

    def _begin_of_view(self, now: float) -> None:
        head, rows = view.begin_of(self.db, self.schema), view.rows_of(self.db, self.schema)
        number = max(self.position.number, view.least(self.db, self.schema))
        self._note(self.journal.begin(head, rows, number, now))

    def _take_in_others(self) -> None:
        """What others have written by now, as far as it is there."""
        applied = self.journal.applied()
        if applied.view == identity(self.path) != self.identity:
            self._take(view.open_writer(self.path, self.patience))
        if applied.view == self.identity:
            self.position = applied.position
        with contextlib.suppress(LostFileError):
            self._take_in()

    def damaged(self) -> Damage | None:
        """The first damage of the segment in use, all of which is read for that."""
        damages: list[Damage] = []
        for _ in self.journal.read(self.position.segment, 0, damages):
            if damages and not damages[0].torn:
                return damages[0]
        return None


class _BegunElsewhereError(Exception):
    """Another process has begun a segment meanwhile, or its owner has given this disk up."""


class Elsewhere:
    """A disk that is another service's, which may be away: sqlite3.Error where there is none at the
    moment; a later call looks again. Only the first one makes what is not there: what is lost later
    the other service may have still.
    """

    AGAIN = 5.0
    """Seconds between two tries to open it."""
    SHORT = 1.0
    """Seconds to wait for others then: jobs must not wait for it."""

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
            # A directory that two heads share may go while it is looked at (ESTALE).
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
            self._again = time.monotonic() + self.AGAIN
            self.close()
            self._disk = Disk(self._path, self._schema, begins=begins, patience=self.SHORT)
            self._disk.begins = False
            self._again = float("-inf")
        return self._disk.require_current()

    def close(self) -> None:
        """Let it go."""
        if self._disk is not None:
            self._disk.close()
        self._disk = None
