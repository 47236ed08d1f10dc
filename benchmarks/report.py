"""The one form of all benchmarks' results: a table to read and JSON to keep.

::

    {"name": ..., "machine": ...,
     "rows": [{"case", "ours", "reference", "unit", "ratio", "goal", "ok"}]}

``reference`` is a peer or a floor measured in the same run, so that ``ratio`` = ours / reference
means the same on another machine. ``goal`` is a sentence such as ``ratio <= 0.2``, ``ok`` whether
it is met; both are null for a row that only informs.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, structs
from rich import box
from rich.console import Console
from rich.table import Table

Value = TypeVar("Value")


class Row(Struct, frozen=True, kw_only=True):
    """One measured case. Made by the functions below."""

    case: str
    ours: float
    reference: float | None
    unit: str
    ratio: float | None
    goal: str | None
    ok: bool | None


class Report(Struct, frozen=True, kw_only=True):
    """The findings of one benchmark."""

    name: str
    machine: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether every goal is met."""
        return all(row.ok is not False for row in self.rows)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def show(self, console: Console | None = None) -> None:
        """As a table on stdout."""
        table = Table(
            title=self.name,
            caption=self.machine,
            caption_justify="left",
            box=box.SIMPLE,
            padding=(0, 1, 0, 0),
            title_justify="left",
        )
        for name in ("case", "ours", "reference", "unit", "ratio", "goal", "ok"):
            number = name in ("ours", "reference", "ratio")
            table.add_column(
                name,
                justify="right" if number else "left",
                no_wrap=name not in ("case", "unit"),
                max_width=14 if name == "unit" else None,
            )
        for row in self.rows:
            table.add_row(
                row.case,
                _number(row.ours),
                _number(row.reference),
                row.unit,
                _number(row.ratio),
                row.goal or "",
                {True: "yes", False: "[bold red]NO[/]", None: ""}[row.ok],
            )
        (console or Console()).print(table)


def report(name: str, rows: Sequence[Row]) -> Report:
    """The report of a benchmark that ran here."""
    return Report(name=name, machine=machine(), rows=tuple(rows))


def compared(
    case: str, ours: float, reference: float, unit: str, *, at_most: float | None = None
) -> Row:
    """Ours beside a peer or a floor; with ``at_most`` the ratio has a goal."""
    ratio = ours / reference if reference else None
    return Row(
        case=case,
        ours=ours,
        reference=reference,
        unit=unit,
        ratio=ratio,
        goal=None if at_most is None else f"ratio <= {at_most:g}",
        ok=None if at_most is None else ratio is not None and ratio <= at_most,
    )


def bounded(case: str, ours: float, limit: float, unit: str) -> Row:
    """Ours beside a limit it shall not exceed (calls, API requests)."""
    return Row(
        case=case,
        ours=ours,
        reference=limit,
        unit=unit,
        ratio=ours / limit if limit else None,
        goal=f"<= {limit:g}",
        ok=ours <= limit,
    )


def within(case: str, ours: float, reference: float, unit: str, tolerance: float) -> Row:
    """Ours beside a published figure, from which it may differ by ``tolerance`` (same unit)."""
    return Row(
        case=case,
        ours=ours,
        reference=reference,
        unit=unit,
        ratio=ours / reference if reference else None,
        goal=f"+-{tolerance:g}" if tolerance else "exact",
        ok=abs(ours - reference) <= tolerance + 1e-9,
    )


def at_least(case: str, ours: float, reference: float, unit: str, ratio: float) -> Row:
    """Ours beside a peer or a floor, of which it shall reach a share."""
    reached = ours / reference
    return Row(
        case=case,
        ours=ours,
        reference=reference,
        unit=unit,
        ratio=reached,
        goal=f"ratio >= {ratio:g}",
        ok=reached >= ratio,
    )


def holds(case: str, ours: float, unit: str, *, ok: bool, goal: str) -> Row:
    """A figure with a condition that a sentence says."""
    return Row(case=case, ours=ours, reference=None, unit=unit, ratio=None, goal=goal, ok=ok)


def noted(case: str, ours: float, unit: str) -> Row:
    """A figure without a counterpart."""
    return Row(case=case, ours=ours, reference=None, unit=unit, ratio=None, goal=None, ok=None)


def identity(case: str, ours: float, reference: float, unit: str, tolerance: float = 0) -> Row:
    """A figure that the row's own inputs decide. It shows that we count right, and no more: it is
    no goal that is met, yet a difference is a bug.
    """
    row = within(case, ours, reference, unit, tolerance)
    return structs.replace(row, goal="identity", ok=None if row.ok else False)


def ranged(
    case: str, parameter: str, found: Mapping[Value, float], unit: str, paper: float | None = None
) -> list[Row]:
    """The least and the greatest of a figure over a parameter that a paper does not give."""
    rows = []
    for name, take in (("least", min), ("most", max)):
        at = take(found, key=found.__getitem__)
        row = noted(f"{case}: {name}, {parameter} {at}", found[at], unit)
        ratio = found[at] / paper if paper else None
        rows.append(structs.replace(row, reference=paper, ratio=ratio))
    return rows


def spread(case: str, values: Sequence[float], unit: str, of: str) -> list[Row]:
    """The least, middle and greatest of a figure over many cases, ``of`` what they are."""
    ends = (("least", min), ("median", median), ("most", max)) if values else ()
    return [
        noted(f"{case}, {name} of {len(values)} {of}", take(values), unit) for name, take in ends
    ]


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value that ``fraction`` of ``values`` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(fraction * len(ordered) + 0.5) - 1))]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def machine() -> str:
    """This machine in one line: processors, kernel, Python, Slurm."""
    parts = [
        f"{os.cpu_count()} x {_processor()}",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
    ]
    if slurmctld := shutil.which("slurmctld", path="/usr/sbin:/usr/local/sbin"):
        done = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, check=False)
        parts.append(done.stdout.strip())
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
