"""Spot price histories in CSV files, as the public archives and ``aws ec2`` exports have them.

A header names the columns: ``timestamp`` (ISO 8601, or Unix time), ``price`` (or
``price_usd_per_hour``), and, in files of more than one offer, ``type`` (or ``instance_type``) and
``zone`` (or ``az``). A file without these two is of one offer, named by the file:
``m3.medium_us-east-1a_2015.csv``. Files that end in ``.gz`` are unpacked on the way.
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

from slurm_elastic.base.errors import ConfigError, why

_COLUMNS = {
    "timestamp": ("timestamp", "time"),
    "price": ("price", "price_usd_per_hour", "spotprice"),
    "type": ("type", "instance_type", "instancetype"),
    "zone": ("zone", "az", "availabilityzone", "availability_zone"),
}
LATEST = 2.0**33
"""No Unix time of a price is so late (the year 2242)."""
_STEM = re.compile(r"(?P<type>[a-z0-9-]+\.[a-z0-9-]+)_(?P<zone>[a-z0-9-]+)(_.*)?\.csv(\.gz)?")


class Series(Struct, frozen=True):
    """One offer's prices: ``times`` (Unix time, ascending) and ``prices`` ($/h) from then on."""

    times: tuple[float, ...]
    prices: tuple[float, ...]

    def at(self, when: float) -> tuple[float, float]:
        """The price at ``when`` and since when it holds; before the first point, the first."""
        index = max(bisect_right(self.times, when) - 1, 0)
        return self.prices[index], self.times[index]


class PriceTrace(Struct, frozen=True):
    """Prices by (instance type, zone)."""

    series: Mapping[tuple[str, str], Series]

    @property
    def start(self) -> float:
        """The first point in time (Unix time); 0 of an empty trace."""
        return min((s.times[0] for s in self.series.values()), default=0.0)

    @property
    def end(self) -> float:
        """The last point in time (Unix time); 0 of an empty trace."""
        return max((s.times[-1] for s in self.series.values()), default=0.0)


def load_trace(path: Path) -> PriceTrace:
    """The trace in ``path``; ConfigError with the line where it cannot be read."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            return _parse(csv.reader(file), path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ConfigError(f"price trace {path} cannot be read: {why(error)}") from error


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
    """Where each value stands in a row; or, of one offer's file, the value itself."""
    names = [name.strip().lower() for name in header]
    found: dict[str, int | str] = {}
    for column, aliases in _COLUMNS.items():
        position = next((names.index(alias) for alias in aliases if alias in names), None)
        if position is not None:
            found[column] = position
    named = _STEM.fullmatch(path.name)
    if named and "type" not in found and "zone" not in found:
        found |= {"type": named["type"], "zone": named["zone"]}
    missing = [column for column in _COLUMNS if column not in found]
    if missing:
        raise ConfigError(f"price trace {path}: line 1: no column {' nor '.join(missing)}")
    return found


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
    """The series of these prices by time; there is at least one."""
    times = tuple(sorted(points))
    return Series(times, tuple(points[when] for when in times))
