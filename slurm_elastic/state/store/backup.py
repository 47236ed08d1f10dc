"""A journal in one file, put back, and read through: what ``slurm-elastic journal`` does.

The file has a segment of each memory, one after the other: each begins with all rows that there
were and goes on with what was appended since.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
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
    Line,
    journal_of,
    line_of,
    read_line,
)
from slurm_elastic.state.store.view import (
    BUSY_TIMEOUT,
    Filler,
    Schema,
    begin_of,
    filled,
    open_scratch,
    require_known,
    rows_of,
)

Memory = tuple[Path, Schema]
"""The path of a view, beside whose directory ``journal`` its facts are."""


class Health(Struct, frozen=True, kw_only=True):
    """A journal as it was read: its segments, lines and facts, the last line, and what is wrong.
    ``missing`` are numbers of lines that none has, be it the last ones that the view had, and
    ``lacking`` rows of the newest beginning.
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
        """Whether nothing is lost; half a line at the end was never told of."""
        return not (self.missing or self.lacking or any(not one.torn for one in self.damages))


def verify(memory: Memory) -> Health:
    """Read every line."""
    journal = journal_of(memory[0])
    known = journal.applied().position.number  # before the lines, as more may be written
    damages: list[Damage] = []
    lines = facts = missing = lacking = last = beginning = 0
    for segment in journal.segments():
        for raw, _, whole in _standing(journal, segment, damages):
            line = read_line(raw) if whole else None
            if line is None:
                continue
            rows = sum(len(fact.rows) for fact in line.facts)
            if line.begin is not None:
                lacking, beginning = line.begin.rows, line.n
            elif line.n == beginning:
                lacking -= rows
            else:
                missing += max(line.n - last - 1, 0)
            lines, facts, last = lines + 1, facts + rows, line.n
    missing += max(known - last, 0)
    return Health(
        name=journal.name, segments=len(journal.segments()), lines=lines, facts=facts, last=last,
        damages=tuple(damages), missing=missing, lacking=lacking,
    )  # fmt: skip


def _standing(
    journal: Journal, segment: int, damages: list[Damage]
) -> Iterator[tuple[bytes, int, bool]]:
    """The lines of a segment; none of one that its service has let go meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        yield from journal.read(segment, 0, damages)


def export(memories: Sequence[Memory], target: Path) -> int:
    """Write the newest segment of each, all as of one moment each; how many lines. Of one that is
    damaged it is what can be read of all, as a start would take it.
    """
    lines = 0
    with writing.draft(target) as draft:
        with draft.open("wb") as file:
            for memory in memories:
                lines += _copy(memory, file)
            if not lines:
                raise SlurmElasticError(f"there is no journal yet beside {memories[0][0]}")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    writing.sync_directory(target.absolute().parent)
    return lines


def _copy(memory: Memory, file: BinaryIO) -> int:
    journal, schema = journal_of(memory[0]), memory[1]
    if not journal.segments():
        return 0
    lines, start = 0, file.tell()
    damages: list[Damage] = []
    with contextlib.closing(journal), journal.locked(BUSY_TIMEOUT):
        for raw, _, whole in journal.read(journal.segments()[-1], 0, damages):
            if whole:
                file.write(raw)
                lines += 1
        if all(one.torn for one in damages):
            return lines
        file.truncate(start)
        file.seek(start)
        with contextlib.closing(open_scratch(schema)) as db:
            end, _ = filled(db, schema, journal)
            head, rows = begin_of(db, schema), rows_of(db, schema)
            found = list(journal.beginning(head, rows, end.number, time.time()))
        file.writelines(found)
    return len(found)


def put_back(source: Path, memories: Sequence[Memory], *, older: bool) -> int:
    """Make the file's lines the journals of these; how many lines. SlurmElasticError where one has
    lines of its own that the file lacks, but for ``older``. Views are made anew at the next start.
    """
    found = _parts(source, memories)
    for (path, schema), lines in found:
        _require_taken(source, schema, lines)
        if not older:
            _require_newer(source, (path, schema), lines)
    for (path, schema), lines in found:
        journal = journal_of(path)
        with contextlib.closing(journal), journal.locked(BUSY_TIMEOUT):
            journal.note(Applied())  # first: whoever comes next makes its view of what is there
            journal.segment_of(partial(_written, lines))
        Disk(path, schema).close()
    return sum(len(lines) for _, lines in found)


def _written(lines: Sequence[Line], file: IO[bytes]) -> int:
    """They go on as a journal of their own: what that head writes from now on, no other one has."""
    begun = lines[0].begin
    head = begun and replace(
        begun, origin=secrets.token_hex(8), source=begun.origin, until=lines[-1].n
    )
    for line in (replace(lines[0], begin=head), *lines[1:]):
        file.write(line_of(line))
    return lines[-1].n


def _require_taken(source: Path, schema: Schema, lines: Sequence[Line]) -> None:
    """SlurmElasticError, ConfigError among them, for what no start could take."""
    begun = lines[0].begin
    if begun is not None:
        require_known(begun.schema, source, schema)
        beginning = (fact for line in lines if line.n == lines[0].n for fact in line.facts)
        if (lacking := begun.rows - sum(len(fact.rows) for fact in beginning)) > 0:
            raise SlurmElasticError(
                f"{source} lacks {lacking} rows of the {schema.name}, expected an export as it was"
            )
    with contextlib.closing(open_scratch(schema)) as db:
        filler = Filler(db, schema)
        for line in lines:
            try:
                filler.facts(line.facts, line.n)
            except (sqlite3.Error, KeyError, TypeError) as error:
                raise SlurmElasticError(
                    f"{source}: line {line.n} of the {schema.name} cannot be taken ({error}), "
                    "expected an export as it was"
                ) from error


def _require_newer(source: Path, memory: Memory, lines: Sequence[Line]) -> None:
    """SlurmElasticError where this head knows what the export lacks. A head that has only had an
    earlier export put back knows nothing of its own.
    """
    journal, health = journal_of(memory[0]), verify(memory)
    if not health.facts:
        return
    begun, last = lines[0].begin, journal.first(journal.segments()[-1])
    same = {journal.origin()}
    if last is not None and last.source and last.until == health.last:
        same.add(last.source)
    is_same = begun is not None and begun.origin in same
    if is_same and health.last <= lines[-1].n:
        return
    ends = f"{source} ends with line {lines[-1].n}" + ("" if is_same else " of another journal")
    raise SlurmElasticError(
        f"{journal.directory} has line {health.last} of the {memory[1].name}, {ends}: what only "
        "this head knows would be lost (--older: take it)"
    )


def _parts(source: Path, memories: Sequence[Memory]) -> list[tuple[Memory, list[Line]]]:
    names = {memory[1].name: memory for memory in memories}
    found: list[tuple[Memory, list[Line]]] = []
    for number, line in enumerate(_lines(source), 1):
        if line is None:
            raise SlurmElasticError(
                f"{source}: line {number} is damaged, expected an export as it was: take another "
                "one, or make one of the journal that it was made of"
            )
        if line.begin is not None:
            if line.begin.memory not in names:
                raise SlurmElasticError(
                    f"{source}: line {number} begins a {line.begin.memory}, expected one of "
                    f"{', '.join(names)}"
                )
            found.append((names[line.begin.memory], []))
        if not found:
            raise SlurmElasticError(
                f"{source}: line {number} begins no journal, expected an export"
            )
        found[-1][1].append(line)
    if not found:
        raise SlurmElasticError(f"{source} is empty, expected an export")
    return found


def _lines(source: Path) -> Iterator[Line | None]:
    with source.open("rb") as file:
        for raw in file:
            yield read_line(raw)
