"""Spot price histories in CSV files, in the forms of public archives and of ``aws ec2`` exports.

A header names the columns: ``timestamp`` (ISO 8601 or Unix time), ``price`` (or
``price_usd_per_hour``), and, in files with several offers, ``type`` (or ``instance_type``) and
``zone`` (or ``az``). A file without the last two columns is about one offer, which the file's name
contains: ``m3.medium_us-east-1a_2015.csv``. Files that end in ``.gz`` are decompressed.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, reason_of

_COLUMNS = {
    "timestamp": ("timestamp", "time"),
    "price": ("price", "price_usd_per_hour", "spotprice"),
    "type": ("type", "instance_type", "instancetype"),
    "zone": ("zone", "az", "availabilityzone", "availability_zone"),
}
LATEST = 2.0**33
"""A later time than this (the year 2242) is no Unix time of a price, but milliseconds or an error.
"""
_STEM = re.compile(r"(?P<type>[a-z0-9-]+\.[a-z0-9-]+)_(?P<zone>[a-z0-9-]+)(_.*)?\.csv(\.gz)?")


class Series(Struct, frozen=True):
    """The prices of one offer: ``times`` (Unix time, ascending), and ``prices`` ($/h) that hold
    from then on.
    """

    times: tuple[float, ...]
    prices: tuple[float, ...]

    def at(self, when: float) -> tuple[float, float]:
        """The price at ``when`` and the time since which it holds; before the first point, the
        first price.
        """
        index = max(bisect_right(self.times, when) - 1, 0)
        return self.prices[index], self.times[index]


class PriceTrace(Struct, frozen=True):
    """Prices by (instance type, zone)."""

    series: Mapping[tuple[str, str], Series]

    @property
    def start(self) -> float:
        """The earliest time (Unix time); 0 if the trace is empty."""
        return min((s.times[0] for s in self.series.values()), default=0.0)

    @property
    def end(self) -> float:
        """The latest time (Unix time); 0 if the trace is empty."""
        return max((s.times[-1] for s in self.series.values()), default=0.0)


def load_trace(path: Path) -> PriceTrace:
    """The trace in ``path``. ConfigError, with the line, if it cannot be read."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            return _parse(csv.reader(file), path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ConfigError(f"price trace {path} cannot be read: {reason_of(error)}") from error


def _parse(rows: Iterator[list[str]], path: Path) -> PriceTrace:
    columns = _columns(next(rows, []), path)
    points: dict[tuple[str, str], dict[float, float]] = {}
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        key, when, price = _point(row, columns, path, number)
        points.setdefault(key, {})[when] = price
    if not points:
        raise ConfigError(f"price trace {path} holds no price")
    return PriceTrace({key: series_of(values) for key, values in points.items()})


def _columns(header: list[str], path: Path) -> dict[str, int | str]:
    """The index of each value in a row. A file with one offer has no columns for the type and the
    zone, so the result has the type and the zone themselves.
    """
    names = [name.strip().lower() for name in header]
    columns: dict[str, int | str] = {}
    for column, aliases in _COLUMNS.items():
        position = next((names.index(alias) for alias in aliases if alias in names), None)
        if position is not None:
            columns[column] = position
    name_match = _STEM.fullmatch(path.name)
    if name_match and "type" not in columns and "zone" not in columns:
        columns |= {"type": name_match["type"], "zone": name_match["zone"]}
    missing = [column for column in _COLUMNS if column not in columns]
    if missing:
        raise ConfigError(f"price trace {path}: line 1: no column {' nor '.join(missing)}")
    return columns


def _point(
    row: list[str], columns: Mapping[str, int | str], path: Path, number: int
) -> tuple[tuple[str, str], float, float]:
    try:
        cells = {
            name: row[where].strip() if isinstance(where, int) else where
            for name, where in columns.items()
        }
        when, price = _time(cells["timestamp"]), float(cells["price"])
    except (IndexError, ValueError, OverflowError) as error:
        raise ConfigError(f"price trace {path}: line {number}: {error}") from error
    if not 0 <= when < LATEST:
        raise ConfigError(f"price trace {path}: line {number}: {when:g} is not a Unix time")
    if not 0 <= price < float("inf"):
        raise ConfigError(f"price trace {path}: line {number}: {price} is not a price")
    return (cells["type"], cells["zone"]), when, price


def _time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def series_of(points: Mapping[float, float]) -> Series:
    """The series of these prices by time; there must be at least one."""
    times = tuple(sorted(points))
    return Series(times, tuple(points[when] for when in times))
