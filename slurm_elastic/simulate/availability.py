"""When spot machines were available: reads traces from files, and says which pool goes by which
trace.

Two formats are read, plain or packed by gzip. That of the "Can't Be Late" paper (NSDI 2024) has
``metadata.gap_seconds`` and ``data``: how many machines there were at each tick (if it has only 0
and 1: whether there were any). The other one has lifetimes of machines, ``{NAME:
{"time_in_sec":...},...}``. We let the lifetimes follow one another with a minute in between.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from slurm_elastic.base.errors import ConfigError, why

MOST_POINTS = 10_000_000  # most points of a trace that is repeated over the history
_MINUTE = 60
_ZONE = re.compile(r"(?<![a-z])[a-z]{2}(?:-[a-z]+)+-\d[a-z](?![a-z0-9])")


class Span(Struct, frozen=True):
    """The time of the history: the Unix time of its second 0, and its first and last second."""

    origin: int
    begin: int
    end: int


class Availability(Struct, frozen=True):
    """How many spot machines there were at each tick, ``gap`` seconds apart."""

    gap: int
    counts: tuple[int, ...]


class Supply(Struct, frozen=True):
    """One trace. ``pool``: the only one that it is for, if any; ``zone``: as its file says."""

    name: str
    trace: Availability
    pool: str | None = None
    zone: str | None = None


class _Metadata(Struct):
    gap_seconds: float


class _Trace(Struct):
    metadata: _Metadata
    data: list[float]


class _Life(Struct):
    time_in_sec: Annotated[float, Meta(ge=0, le=10**9)]


def load_supply(text: str) -> Supply:
    """Reads ``FILE`` or ``POOL=FILE``; ConfigError if the file is missing or cannot be read."""
    pool, equals, file = text.partition("=")
    if not equals or not pool or Path(text).exists():
        pool, file = "", text
    zone = _ZONE.search(Path(file).name)
    return Supply(file, load_availability(Path(file)), pool or None, zone[0] if zone else None)


def load_availability(path: Path) -> Availability:
    """The trace in ``path``, in either format."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        return _decoded(raw, path)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"availability trace {path} cannot be read: {why(error)}") from error


def _decoded(raw: bytes, path: Path) -> Availability:
    try:
        document = msgspec.json.decode(raw, type=_Trace)
    except msgspec.ValidationError as error:
        return Availability(_MINUTE, _one_by_one(_lives(raw, error), path))
    gap = round(document.metadata.gap_seconds)
    if gap < 1 or not document.data:
        raise ConfigError(f"availability trace {path} holds no tick")
    return Availability(gap, tuple(max(int(count), 0) for count in document.data))


def _lives(raw: bytes, error: msgspec.ValidationError) -> list[float]:
    """Lifetimes in seconds; the message also has ``error``, that of the other format."""
    try:
        document = msgspec.json.decode(raw, type=dict[str, _Life])
    except msgspec.ValidationError as other:
        raise msgspec.ValidationError(
            f"found neither gap_seconds and data ({error}) nor lifetimes ({other})"
        ) from None
    if not document:
        raise error
    return [life.time_in_sec for life in document.values()]


def _one_by_one(lives: Sequence[float], path: Path) -> tuple[int, ...]:
    """Machines minute by minute: plenty while each lifetime lasts, then none for a minute."""
    minutes = [max(round(seconds / _MINUTE), 1) for seconds in lives]
    if sum(minutes) + len(minutes) > MOST_POINTS:
        raise ConfigError(
            f"availability trace {path} lasts {sum(minutes):,} minutes, which is too long"
        )
    counts: list[int] = []
    # So a machine is as likely to be lost within an hour as those of the file were, though all of a
    # pool are lost together.
    for length in minutes:
        counts += [1] * length
        counts.append(0)
    return tuple(counts)


def supplies_of(pool: str, zone: str, supplies: Sequence[Supply]) -> list[Supply]:
    """The traces of a pool: its own, else those of its spot price's zone, else those for any."""
    own = [one for one in supplies if one.pool == pool]
    common = [one for one in supplies if one.pool is None]
    return own or [one for one in common if one.zone == zone] or common


def available(supplies: Sequence[Supply], span: Span) -> list[tuple[int, int]]:
    """(second, machines from then on) on the history's clock; traces repeat and add up."""
    changes: dict[int, int] = {}
    for supply in supplies:
        level = 0
        for when, count in _repeated(supply.trace, span):
            changes[when] = changes.get(when, 0) + count - level
            level = count
    points, total = [], 0
    for when in sorted(changes):
        total += changes[when]
        points.append((when, total))
    return points


def bearable(points: int, what: str, length: int, span: Span) -> None:
    """ConfigError if a short trace of ``length`` seconds would have to be repeated too often."""
    if points > MOST_POINTS:
        days = (span.end - span.begin) / 86400
        raise ConfigError(
            f"{what}: a trace of {length} s, repeated over the {days:,.0f} days of the history, has"
            f" {points:,} points, expected at most {MOST_POINTS:,}"
        )


def _repeated(trace: Availability, span: Span) -> list[tuple[int, int]]:
    # A trace of 0 and 1 alone says only whether there were any.
    plenty = 2**30 if max(trace.counts) <= 1 else 1
    ticks = -(-(span.end - span.begin) // trace.gap) + 1
    bearable(ticks, "availability", trace.gap * len(trace.counts), span)
    points: list[tuple[int, int]] = []
    for tick in range(ticks):
        count = trace.counts[tick % len(trace.counts)] * plenty
        if not points or points[-1][1] != count:
            points.append((span.begin + tick * trace.gap, count))
    return points
