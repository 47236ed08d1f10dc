"""A store whose files may fail: while they cannot be used it continues in memory.

A damaged view is rebuilt from the journal, and a lost journal from the view. After any other fault
the recent rows are copied to memory. Writes in memory wait there, and are appended to the journal
when the disk is back.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from slurm_elastic.state.heads import SupersededError
from slurm_elastic.state.store import view
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.journal import NOWHERE, Fact, Identity, Position, identity
from slurm_elastic.state.store.merging import MemoryMerge, WaitingFacts
from slurm_elastic.state.store.shared_journal import journal_of
from slurm_elastic.state.store.trouble import (
    ENOUGH_FREE_BYTES,
    RESERVE_BYTES,
    JournalError,
    Trouble,
    TroubleKind,
    kind_of,
    require_room,
    set_aside,
    trouble_of,
)
from slurm_elastic.state.store.view import Filler, Schema, transaction

log = logging.getLogger(__name__)

RETRY_AFTER_S = 10.0
"""Seconds between two tries to use the files again."""
READ_VIEW_EVERY_S = 60.0
"""Seconds between two readings of the view while it is in use."""
READ_SEGMENT_EVERY_S = 600.0
"""Seconds between two readings of the journal's segment in use."""
LOCK_TIMEOUT_S = 1.0
"""Seconds to wait for other processes during checks."""
COSTS_KEPT_S = 40 * 86400.0
"""Seconds after which a cost counts in no budget."""
TROUBLES = (sqlite3.Error, OSError)
_MENDED = (TroubleKind.CORRUPT, TroubleKind.LOST)


class Endurance(Struct, frozen=True):
    """``mode``: the name of the state without files in the log. ``effect``: its effect."""

    mode: str
    effect: str
    now: Callable[[], float]
    monotonic: Callable[[], float]


class Memory:
    """Replaces the disk while it cannot be used. ``waiting``: the facts to append to the disk."""

    def __init__(self, db: sqlite3.Connection, schema: Schema, number: int = 0) -> None:
        self.db, self._number, self._schema = db, number, schema
        self.filler = Filler(db, schema)
        self.waiting = WaitingFacts(schema)
        self.changed = True
        self.damage: BaseException | None = None

    def require_current(self) -> Memory:
        """Return this memory, because no other process changes it."""
        return self

    def close(self) -> None:
        """Close the database. The rows in it are lost."""
        self.db.close()

    @property
    def position(self) -> Position:
        """The number of the last line, where each write in memory counts as a line."""
        return Position(number=self._number)

    def appended(self, number: int) -> None:
        """The waiting facts are on the disk, up to the line of that number."""
        self.waiting = WaitingFacts(self._schema)
        self._number = number

    @contextlib.contextmanager
    def write(self, facts: list[Fact], _: Callable[[], float]) -> Iterator[sqlite3.Connection]:
        """Write facts, as ``Disk.write`` does."""
        with transaction(self.db):
            yield self.db
        if facts:
            self.waiting.add(facts)
            self._number += 1

    def put(self, batches: Sequence[Sequence[Fact]], _: Callable[[], float]) -> None:
        """Write batches of facts, as ``Disk.put`` does."""
        with transaction(self.db):
            for number, facts in enumerate(batches, self.position.number + 1):
                self.filler.facts(facts, number)
        for facts in batches:
            self.waiting.add(facts)
        self._number += len(batches)


class Refuge:
    """The disk, or the memory that replaces it. It has no lock: the owner calls it under its own.
    ``damage``: the last error that a thread met; the next ``check`` handles it.
    """

    def __init__(self, path: Path, schema: Schema, endurance: Endurance) -> None:
        self._path, self._schema, self._how = path, schema, endurance
        self._base = view.open_memory(schema)
        self.trouble: Trouble | None = None
        self.since = 0.0
        self.damage: BaseException | None = None
        self._uncut: tuple[Position, bytes] | None = None
        now = endurance.monotonic()
        self._again = self._journal_look = float("-inf")
        self._look, self._read = (
            now,
            now + READ_SEGMENT_EVERY_S,
        )  # an older copy may lie beside a -wal
        self._found: Disk | Memory
        try:
            self._found = self._opened(view.BUSY_TIMEOUT)
        except TROUBLES as error:
            self._go_over(error, None)

    def close(self) -> None:
        """Close the disk, or the memory that replaces it."""
        self._found.close()
        self._base.close()

    def require_current(self) -> Disk | Memory:
        """The disk, with the view open that is there now, or memory."""
        return self._found.require_current()

    # faults

    def check(self) -> None:
        """Switch to memory if the files cannot be used, and back to them if they can."""
        if isinstance(self._found, Memory):
            self._try_to_return(self._found)
            return
        try:
            if isinstance(self.damage, sqlite3.Error) and _is_grave(self.damage):
                raise self.damage
            self._look_at(self._found)
        except TROUBLES as error:
            self.give_up(error)

    def _look_at(self, disk: Disk) -> None:
        self._require_room(RESERVE_BYTES)
        disk.require_current()
        disk.journal.behind(disk.position)
        clock = self._how.monotonic()
        if clock >= self._look:
            # A new connection, because the open one would answer from its cache.
            self._look = clock + READ_VIEW_EVERY_S
            with contextlib.closing(view.connect(self._path, "ro", LOCK_TIMEOUT_S)) as reader:
                view.require_sound(reader)
        if clock >= self._read:
            self._read = clock + READ_SEGMENT_EVERY_S
            if (damage := disk.damaged()) is not None:
                log.error(
                    "%s is damaged from byte %d on and starts over", damage.path, damage.begin
                )
                disk.begin_anew(self._how.now())

    def _require_room(self, size: int) -> None:
        """Raise OSError if there is no room for the view or for the journal, which two heads have
        in another directory.
        """
        require_room(self._path.parent, size)
        clock = self._how.monotonic()
        directory = self._path.parent / "journal"
        if clock < self._journal_look or not directory.is_symlink():
            return
        # NFS before 4.2 has no fallocate, so the C library writes the whole file: not each time.
        require_room(directory.resolve(), size)
        self._journal_look = clock + RETRY_AFTER_S

    def give_up(self, error: BaseException) -> bool:
        """Repair the files after they failed with ``error``, or continue in memory. Return False if
        the store is in memory already.
        """
        disk = self._found
        if isinstance(disk, Memory):
            return False
        self.damage = None
        if kind_of(error) in _MENDED:
            try:
                self._mend(error, disk)
            except TROUBLES as closer:
                error = closer
            else:
                log.warning("%s is used again", self._path)
                return True
        self._go_over(error, disk)
        return True

    def _mend(self, error: BaseException, disk: Disk) -> None:
        """Rebuild the view from the journal, or the journal from the view."""
        trouble = trouble_of(error, self._path)
        log.error("%s", trouble.text)
        if trouble.kind is TroubleKind.LOST:
            disk.begin_anew(self._how.now())
            return
        self._without_damage(disk.identity)
        self._found = self._opened(LOCK_TIMEOUT_S)
        disk.close()

    def _without_damage(self, damaged: Identity) -> None:
        """Rename a damaged view, unless another process has done so."""
        with contextlib.closing(journal_of(self._path)) as journal, journal.locked(LOCK_TIMEOUT_S):
            if identity(self._path) == damaged != NOWHERE:
                aside = set_aside(self._path, self._how.now())
                log.error("the damaged %s was set aside as %s", self._schema.name, aside)

    def _opened(self, patience: float) -> Disk:
        earlier = identity(self._path)
        try:
            disk = Disk(self._path, self._schema, timeout_s=patience)
        except sqlite3.DatabaseError as error:
            # Only a damaged view is set aside. After a lock or a full disk it is whole, and is
            # still needed.
            if kind_of(error) is not TroubleKind.CORRUPT:
                raise
            self._without_damage(earlier)
            disk = Disk(self._path, self._schema, timeout_s=patience)
        disk.timeout_s = view.BUSY_TIMEOUT
        _wait_for(disk.db, view.BUSY_TIMEOUT)
        return disk

    # into memory, and back

    def _go_over(self, error: BaseException, disk: Disk | None) -> None:
        self._uncut = None if disk is None else disk.journal.uncut
        rows, end = self._readable(disk) or (view.open_memory(self._schema), Position())
        last_number = end.number if disk is None else max(end.number, disk.position.number)
        self._found = Memory(rows, self._schema, max(last_number, view.least(rows, self._schema)))
        # The rows as they were when memory began. The return merges against them, because another
        # process may have written to the disk since.
        rows.backup(self._base)
        if disk is not None:
            disk.close()
        self.trouble = self._trouble_of(error)
        self.since = self._how.now()
        self._again = self._how.monotonic() + RETRY_AFTER_S
        self._say(self.trouble)

    def _readable(self, disk: Disk | None) -> tuple[sqlite3.Connection, Position] | None:
        """The rows that can be read, with the end of their lines; None if nothing can be read."""
        for read in (partial(self._of_view, disk), self._of_journal):
            memory = view.open_memory(self._schema)
            try:
                end = read(memory)
            except (*TROUBLES, IndexError) as error:
                log.warning("%s cannot be read now: %s", self._path, error)
                memory.close()
            else:
                return memory, end
        return None

    def _of_view(self, disk: Disk | None, memory: sqlite3.Connection) -> Position:
        # The open journal, because even a look at its directory's path may fail now.
        journal = journal_of(self._path) if disk is None else disk.journal
        applied = journal.applied()
        if disk is not None:
            source, end = disk.db, disk.position
        elif applied.boot == view.boot() and journal.is_newest:
            source, end = view.open_reader(self._path, self._schema), applied.position
        else:
            raise sqlite3.OperationalError("it is of another boot, or another head has written")
        try:
            _wait_for(source, LOCK_TIMEOUT_S)
            if view.number_of(source) < applied.position.number:
                raise sqlite3.OperationalError("it is an older copy")
            filler = Filler(memory, self._schema)
            view.copied(source, memory, self._schema, self._how.now() - COSTS_KEPT_S)
            with transaction(memory), contextlib.suppress(OSError):
                # Lines that the view lacks, except a failed write that could not be cut off: its
                # caller got an error.
                for line, place in journal.lines(end):
                    if self._uncut is not None and place[:2] > self._uncut[0][:2]:
                        break
                    if line is not None:
                        filler.facts(line.facts, line.n)
                    end = place
        finally:
            if disk is None:
                source.close()
        return end

    def _of_journal(self, memory: sqlite3.Connection) -> Position:
        end, _ = view.filled(memory, self._schema, journal_of(self._path))
        return end

    def _trouble_of(self, error: BaseException) -> Trouble:
        """The trouble of the error. sqlite reports some full disks as an I/O error."""
        trouble = trouble_of(error, self._path)
        if trouble.kind is TroubleKind.UNUSABLE:
            try:
                self._require_room(RESERVE_BYTES)
            except OSError as closer:
                return trouble_of(closer, self._path)
        return trouble

    def _try_to_return(self, memory: Memory) -> None:
        if self._how.monotonic() < self._again:
            return
        self._again = self._how.monotonic() + RETRY_AFTER_S
        try:
            self._journal_look = float("-inf")
            self._require_room(ENOUGH_FREE_BYTES)
            self._return(memory)
        except TROUBLES as error:
            trouble = self._trouble_of(error)
            # Log a trouble once, not at each try to return.
            if self.trouble is None or trouble.kind is not self.trouble.kind:
                self._say(trouble)
            self.trouble = trouble
            return
        log.warning("%s is used again after %.0f s", self._path, self._how.now() - self.since)
        self.trouble = self.damage = None
        memory.close()

    def _return(self, memory: Memory) -> None:
        journal = journal_of(self._path)
        journal.uncut = self._uncut
        # The caller of this write got an error, so the journal must not show it later.
        if self._uncut is not None:
            with contextlib.closing(journal), journal.locked(LOCK_TIMEOUT_S):
                journal.cut_left()
            self._uncut = None
        if not journal.segments() and not self._path.exists():
            with contextlib.closing(journal), journal.locked(LOCK_TIMEOUT_S):
                head = view.begin_of(memory.db, self._schema)
                rows = view.rows_of(memory.db, self._schema)
                number = memory.position.number
                journal.begin(head, rows, number, self._how.now())
            memory.appended(number)
            memory.db.backup(self._base)
        disk = self._opened(LOCK_TIMEOUT_S)
        try:
            # The view still has its counts from before. Lists that were read while the rows were in
            # memory changed them there, and such changes are not in the journal. Before the append:
            # an error after it would have the next try append the same facts, and counters twice.
            view.begin_counts_anew(disk.db, self._schema)
            if lines := memory.waiting.lines():
                with disk.turn():  # no other process may write between the merge and the append
                    merge = MemoryMerge(disk.db, self._base, self._schema)
                    merged = [
                        merged_facts for facts in lines if (merged_facts := merge.facts(facts))
                    ]
                    disk.put(merged, self._how.now)
        except BaseException as error:
            disk.close()
            if isinstance(error, sqlite3.Error) and kind_of(error) is TroubleKind.CORRUPT:
                self._without_damage(disk.identity)  # the next try rebuilds it from the journal
            raise
        self._found = disk

    def _say(self, trouble: Trouble) -> None:
        log.error(
            "%s: %s; %s; do: %s", self._how.mode, trouble.text, self._how.effect, trouble.remedy
        )


def _is_grave(error: sqlite3.Error) -> bool:
    """Whether to repair or give up the files for an error of any thread. Most writes come from
    workers, whose next try would fail as well.
    """
    if kind_of(error) in _MENDED:
        return True
    is_lost_head = isinstance(error.__cause__, SupersededError)
    return (
        isinstance(error, JournalError)
        and kind_of(error) is not TroubleKind.LOCKED
        and not is_lost_head
    )


def _wait_for(db: sqlite3.Connection, patience: float) -> None:
    """Set the seconds that the connection waits for other processes."""
    db.execute(f"pragma busy_timeout = {int(patience * 1000)}")
