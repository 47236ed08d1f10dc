"""When spot machines were available: reads traces from files, and assigns them to pools.

Two formats are read, plain or compressed by gzip. The format of the "Can't Be Late" paper (NSDI
2024) has ``metadata.gap_seconds`` and ``data``: the number of available machines at each tick, or,
if all numbers are 0 or 1, whether any were available. The other format has lifetimes of machines,
``{NAME: {"time_in_sec":...},...}``. We line the lifetimes up with a gap of one minute.
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

from slurm_elastic.base.errors import ConfigError, reason_of

MAX_POINTS = 10_000_000  # of a trace, after it was repeated over the history
_MINUTE_S = 60
_ZONE = re.compile(r"(?<![a-z])[a-z]{2}(?:-[a-z]+)+-\d[a-z](?![a-z0-9])")


class HistorySpan(Struct, frozen=True):
    """The time range of a history: the Unix time of its second 0, its first and last second."""

    origin: int
    begin: int
    end: int


class Availability(Struct, frozen=True):
    """The number of available spot machines at each tick, ``gap`` seconds apart."""

    gap: int
    counts: tuple[int, ...]


class Supply(Struct, frozen=True):
    """A trace. ``pool``: the only pool that uses it (None: any); ``zone``: from its file's name."""

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
    """Read the trace that ``FILE`` or ``POOL=FILE`` names. Raises ConfigError if the file is
    missing or cannot be read.
    """
    pool, equals, file = text.partition("=")
    if not equals or not pool or Path(text).exists():
        pool, file = "", text
    zone = _ZONE.search(Path(file).name)
    return Supply(file, load_availability(Path(file)), pool or None, zone[0] if zone else None)


def load_availability(path: Path) -> Availability:
    """Read a trace of either format. Raises ConfigError if it cannot be read."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return _decode(content, path)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"availability trace {path} cannot be read: {reason_of(error)}"
        ) from error


def _decode(content: bytes, path: Path) -> Availability:
    try:
        document = msgspec.json.decode(content, type=_Trace)
    except msgspec.ValidationError as error:
        return Availability(_MINUTE_S, _line_up(_decode_lifetimes(content, error), path))
    gap = round(document.metadata.gap_seconds)
    if gap < 1 or not document.data:
        raise ConfigError(f"availability trace {path} holds no tick")
    return Availability(gap, tuple(max(int(count), 0) for count in document.data))


def _decode_lifetimes(content: bytes, error: msgspec.ValidationError) -> list[float]:
    """Return lifetimes in seconds. ``error``: why the file is not of the other format; a message
    names both reasons.
    """
    try:
        document = msgspec.json.decode(content, type=dict[str, _Life])
    except msgspec.ValidationError as other:
        raise msgspec.ValidationError(
            f"found neither gap_seconds and data ({error}) nor lifetimes ({other})"
        ) from None
    if not document:
        raise error
    return [life.time_in_sec for life in document.values()]


def _line_up(lives: Sequence[float], path: Path) -> tuple[int, ...]:
    """Return the counts per minute: 1 (any number) during each lifetime, then 0 for a minute."""
    minutes = [max(round(seconds / _MINUTE_S), 1) for seconds in lives]
    if sum(minutes) + len(minutes) > MAX_POINTS:
        raise ConfigError(
            f"availability trace {path} lasts {sum(minutes):,} minutes, which is too long"
        )
    counts: list[int] = []
    # A machine is then as likely to be lost within an hour as a machine of the file, although all
    # machines of a pool are lost together.
    for length in minutes:
        counts += [1] * length
        counts.append(0)
    return tuple(counts)


def supplies_of(pool: str, zone: str, supplies: Sequence[Supply]) -> list[Supply]:
    """Return the traces of a pool: its own; if it has none, the common traces of its spot price's
    zone; if there are none, all common traces.
    """
    pool_supplies = [supply for supply in supplies if supply.pool == pool]
    common = [supply for supply in supplies if supply.pool is None]
    return pool_supplies or [supply for supply in common if supply.zone == zone] or common


def available(supplies: Sequence[Supply], span: HistorySpan) -> list[tuple[int, int]]:
    """Return (second of the history, machines available from then on). Short traces are repeated,
    and several traces are added up.
    """
    changes: dict[int, int] = {}
    for supply in supplies:
        level = 0
        for when, count in _repeat(supply.trace, span):
            changes[when] = changes.get(when, 0) + count - level
            level = count
    points, total = [], 0
    for when in sorted(changes):
        total += changes[when]
        points.append((when, total))
    return points


def check_point_count(points: int, subject: str, length: int, span: HistorySpan) -> None:
    """Raise ConfigError if a trace of ``length`` seconds would have to be repeated too often."""
    if points > MAX_POINTS:
        days = (span.end - span.begin) / 86400
        raise ConfigError(
            f"{subject}: a trace of {length} s, repeated over the {days:,.0f} days of the history,"
            f" has {points:,} points, expected at most {MAX_POINTS:,}"
        )


def _repeat(trace: Availability, span: HistorySpan) -> list[tuple[int, int]]:
    # A trace of only 0 and 1 does not count machines, so 1 stands for any number.
    plenty = 2**30 if max(trace.counts) <= 1 else 1
    ticks = -(-(span.end - span.begin) // trace.gap) + 1
    check_point_count(ticks, "availability", trace.gap * len(trace.counts), span)
    points: list[tuple[int, int]] = []
    for tick in range(ticks):
        count = trace.counts[tick % len(trace.counts)] * plenty
        if not points or points[-1][1] != count:
            points.append((span.begin + tick * trace.gap, count))
    return points
