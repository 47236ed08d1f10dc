"""Export a journal to one file, restore it, and verify it: the code of ``slurm-elastic journal``.

The file has one segment of each memory. A segment begins with all rows of that moment, and the
lines that were appended after it follow.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.journal import (
    Applied,
    Damage,
    Journal,
    JournalLine,
    is_whole,
    line_of,
    read_line,
)
from slurm_elastic.state.store.shared_journal import journal_of
from slurm_elastic.state.store.view import (
    BUSY_TIMEOUT,
    Filler,
    Schema,
    begin_of,
    filled,
    open_scratch,
    require_known,
    rows_of,
    transaction,
)

log = logging.getLogger(__name__)

Memory = tuple[Path, Schema]
"""The path of a view, beside whose directory ``journal`` its facts are."""
Rights = Callable[[], AbstractContextManager[None]]
"""``Config.sharing``: SlurmUser's rights for as long as its files are used."""


class JournalHealth(Struct, frozen=True, kw_only=True):
    """The result of reading a journal: its segments, lines and facts, the last line, and its
    faults. ``missing``: the number of lost lines, also at the end if the view had them.
    ``lacking``: the number of rows that the begin of the newest segment lacks.
    """

    name: str
    segments: int
    lines: int
    facts: int
    last: int
    damages: tuple[Damage, ...]
    missing: int
    lacking: int

    @property
    def sound(self) -> bool:
        """Whether nothing is lost. Half a line at the end is no loss: its write never returned."""
        return not (self.missing or self.lacking or any(not one.torn for one in self.damages))


def verify(memory: Memory) -> JournalHealth:
    """Read every line of the journal, and return its faults and counts."""
    journal = journal_of(memory[0])
    applied_number = journal.applied().position.number  # before the lines, as more may be written
    damages: list[Damage] = []
    lines = facts = missing = lacking = last_number = beginning = 0
    for segment in journal.segments():
        for content, _, whole in _standing(journal, segment, damages):
            line = read_line(content) if whole else None
            if line is None:
                continue
            rows = sum(len(fact.rows) for fact in line.facts)
            # A segment begins with all rows of the memory. Earlier gaps no longer matter from there
            # on.
            if line.begin is not None:
                lacking, beginning = line.begin.rows, line.n
            elif line.n == beginning:
                lacking -= rows
            else:
                missing += max(line.n - last_number - 1, 0)
            lines, facts, last_number = lines + 1, facts + rows, line.n
    missing += max(applied_number - last_number, 0)
    return JournalHealth(
        name=journal.name, segments=len(journal.segments()), lines=lines, facts=facts,
        last=last_number, damages=tuple(damages), missing=missing, lacking=lacking,
    )  # fmt: skip


def _standing(
    journal: Journal, segment: int, damages: list[Damage]
) -> Iterator[tuple[bytes, int, bool]]:
    """The lines of a segment; none if its service has deleted it since the listing."""
    with contextlib.suppress(FileNotFoundError):
        yield from journal.read(segment, 0, damages)


def export(memories: Sequence[Memory], target: Path, rights: Rights = nullcontext) -> int:
    """Write the newest segment of each memory, each as of one moment; return the number of lines.
    If a segment is damaged, write the readable rows of the whole journal instead. Raises OSError
    for a device or a pipe.

    The memories are read with ``rights``, and the target is written with the caller's own.
    """
    writing.require_no_device(target)
    lines = 0
    with writing.draft(target) as draft:
        with writing.open_draft(draft) as file:
            with rights():
                for memory in memories:
                    lines += _copy(memory, file)
            if not lines:
                raise SlurmElasticError(f"there is no journal yet beside {memories[0][0]}")
            file.flush()
            os.fsync(file.fileno())
        # After the sync: a crash must not leave an export with the right name and half of its
        # lines.
        os.replace(draft, target)
    writing.sync_directory(target.absolute().parent)
    return lines


def _copy(memory: Memory, file: IO[bytes]) -> int:
    """Copy one memory. The lock is held only to find the segment's size: the target may be slow."""
    (path, schema), start = memory, file.tell()
    journal = journal_of(path)
    if not journal.segments():
        return 0
    with contextlib.closing(journal), journal.locked(BUSY_TIMEOUT):
        newest = journal.path(journal.segments()[-1]).open("rb")
        size = os.fstat(newest.fileno()).st_size
    with newest:
        lines = _copy_whole(newest, size, file)
    # A damaged line stops the copy. Then the readable rows replace what was written so far.
    if lines is not None:
        return lines
    file.truncate(start)
    file.seek(start)
    with contextlib.closing(open_scratch(schema)) as db:
        end, _ = filled(db, schema, journal)
        head, rows = begin_of(db, schema), rows_of(db, schema)
        lines = 0
        for content in journal.beginning(head, rows, end.number, time.time()):
            file.write(content)
            lines += 1
    return lines


def _copy_whole(source: BinaryIO, size: int, file: IO[bytes]) -> int | None:
    """Copy the whole lines among the first ``size`` bytes; return None if a line is damaged."""
    lines = 0
    for content in source:
        size -= len(content)
        if size < 0 or content[-1:] != b"\n":
            break
        if not is_whole(content):
            return None
        file.write(content)
        lines += 1
    return lines


class _Part(Struct, kw_only=True):
    """The lines of one memory in a file: the first line, the number of the last line, and the place
    of the lines in the file.
    """

    path: Path
    schema: Schema
    first: JournalLine
    last: int
    begin: int
    lines: int = 0


def put_back(
    source: Path, memories: Sequence[Memory], *, older: bool, rights: Rights = nullcontext
) -> int:
    """Restore the journals of these memories from the file, and rebuild their views; return the
    number of lines. Raises SlurmElasticError if a memory has lines that the file lacks, unless
    ``older`` is set.

    The source is opened with the caller's own rights, and the memories are written with ``rights``.
    """
    with _rereadable(source) as file, rights():
        parts = _parts(source, file, memories)
        # Check every memory before the first is written: a refusal in the middle would leave two
        # memories of different times.
        for memory_part in parts:
            _require_taken(source, file, memory_part)
            if not older:
                _require_newer(source, memory_part)
        for memory_part in parts:
            journal = journal_of(memory_part.path)
            with contextlib.closing(journal), journal.locked(BUSY_TIMEOUT):
                # First: after a crash between the two steps the next process rebuilds its view.
                _forget_view(journal)
                journal.segment_of(partial(_written, file, memory_part))
            # Open and close it once: that builds the view, and shows now whether the journal can be
            # applied.
            Disk(memory_part.path, memory_part.schema).close()
    return sum(memory_part.lines for memory_part in parts)


def _forget_view(journal: Journal) -> None:
    try:
        journal.note(Applied())
    except OSError as error:
        # pwrite(2) names no file. On a full disk this is the first write.
        raise OSError(error.errno, error.strerror, str(journal.turn)) from error


@contextlib.contextmanager
def _rereadable(source: Path) -> Iterator[BinaryIO]:
    """Open the source for several passes, line by line: it may be a large pipe."""
    with source.open("rb") as file, tempfile.TemporaryFile() as copy:
        if file.seekable():
            yield file
        else:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy


def _lines_of(file: BinaryIO, part: _Part) -> Iterator[JournalLine]:
    file.seek(0)
    for content in itertools.islice(file, part.begin, part.begin + part.lines):
        if (line := read_line(content)) is not None:
            yield line


def _written(file: BinaryIO, part: _Part, target: IO[bytes]) -> int:
    """Write the lines as a journal with a new origin, because no other journal has the lines that
    this head will append.
    """
    begun = part.first.begin
    head = begun and replace(
        begun, origin=secrets.token_hex(8), source=begun.origin, until=part.last
    )
    target.write(line_of(replace(part.first, begin=head)))
    for line in itertools.islice(_lines_of(file, part), 1, None):
        target.write(line_of(line))
    return part.last


def _require_taken(source: Path, file: BinaryIO, part: _Part) -> None:
    """Raise SlurmElasticError, or its subclass ConfigError, if a service could not apply the lines
    at its start.
    """
    begun, schema = part.first.begin, part.schema
    if begun is not None:
        require_known(begun.schema, source, schema)
    beginning = 0
    with contextlib.closing(open_scratch(schema)) as db, transaction(db):
        filler = Filler(db, schema)
        for line in _lines_of(file, part):
            if line.n == part.first.n:
                beginning += sum(len(fact.rows) for fact in line.facts)
            try:
                filler.facts(line.facts, line.n)
            except (sqlite3.Error, KeyError, TypeError, OverflowError) as error:
                raise SlurmElasticError(
                    f"{source}: line {line.n} of the {schema.name} cannot be taken ({error}), "
                    "expected an unchanged export"
                ) from error
    if begun is not None and (lacking := begun.rows - beginning) > 0:
        raise SlurmElasticError(
            f"{source} lacks {lacking} rows of the {schema.name}, expected an unchanged export"
        )


def _require_newer(source: Path, part: _Part) -> None:
    """Raise SlurmElasticError if this head has lines that the export lacks. A head that only
    restored an earlier export has no lines of its own.
    """
    memory = part.path, part.schema
    journal, health = journal_of(part.path), verify(memory)
    if _is_alone(memory):
        raise SlurmElasticError(
            f"{part.path} has rows of the {part.schema.name} that are in no journal. Only this "
            "head has these rows, and they would be lost (--older: accept that)"
        )
    if not health.facts:
        return
    begun, last = part.first.begin, journal.first(journal.segments()[-1])
    same = {journal.newest_head().origin}
    if last is not None and last.source and last.until == health.last:
        same.add(last.source)
    is_same = begun is not None and begun.origin in same
    if is_same and health.last <= part.last:
        return
    ends = f"{source} ends with line {part.last}" + ("" if is_same else " of another journal")
    raise SlurmElasticError(
        f"{journal.directory} has the {part.schema.name} up to line {health.last}, but {ends}. The "
        "lines that only this head has would be lost (--older: accept that)"
    )


def _is_alone(memory: Memory) -> bool:
    """Whether the file has rows that are in no journal, because the journal is gone."""
    path, _ = memory
    return path.exists() and not journal_of(path).segments()


def _parts(source: Path, file: BinaryIO, memories: Sequence[Memory]) -> list[_Part]:
    names = {memory[1].name: memory for memory in memories}
    segment = re.compile(rf"({'|'.join(re.escape(path.stem) for path, _ in memories)})-\d+\.jsonl")
    parts: list[_Part] = []
    for number, content in enumerate(file, 1):
        line = read_line(content)
        if content[-1:] != b"\n" and segment.fullmatch(source.name):
            log.warning("%s: an incomplete last line is ignored; its write never finished", source)
            break
        if line is None:
            raise SlurmElasticError(
                f"{source}: line {number} is damaged, expected an unchanged export: use another "
                "export, or export the same journal again"
            )
        if line.begin is not None:
            if line.begin.memory not in names:
                raise SlurmElasticError(
                    f"{source}: line {number} begins a {line.begin.memory}, expected one of "
                    f"{', '.join(names)}"
                )
            path, schema = names[line.begin.memory]
            begin = number - 1
            parts.append(_Part(path=path, schema=schema, first=line, last=line.n, begin=begin))
        if not parts:
            raise SlurmElasticError(
                f"{source}: line {number} begins no journal, expected an export"
            )
        parts[-1].lines += 1
        parts[-1].last = line.n
    if not parts:
        raise SlurmElasticError(f"{source} is empty, expected an export")
    return parts
