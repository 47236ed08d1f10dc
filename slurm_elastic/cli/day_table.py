"""The table of a day: when how much was spent."""

from __future__ import annotations

import time

from rich.console import RenderableType

from slurm_elastic.base.local_time import zone
from slurm_elastic.cli.columns import Rows
from slurm_elastic.cli.shortened import with_rest
from slurm_elastic.cli.status_tables import dollars
from slurm_elastic.watch.view.attention import (
    private_note,
)
from slurm_elastic.watch.view.day import DayView, Span, hours


def day_table(day: DayView, span: Span = Span.DAY) -> RenderableType:
    """The last hours or days, a row an hour or a day, and what there is now."""
    counted = ("$/h", "Booting", "Running", "Still waiting")
    right = tuple(name.capitalize() for name in (*day.machines, *counted))
    title = f"The last {span.told}, times in {zone(day.at)}"
    table = Rows(title, "From", *right, right=right)
    *past, last = hours(day)
    for one in (*past, last):
        at = time.strftime("%d %H:%M", time.localtime(one.at)) if one is not last else "now"
        machines = [str(count) for count in one.machines]
        waiting = "-" if one.waiting is None else str(one.waiting)
        counts = [str(one.booting), str(one.running), waiting]
        table.add(at, *machines, dollars(one.dollars), *counts)
    private = private_note(day.private) if day.private else ""
    notes = ("Counts: the most at once in each hour; $/h: its mean.", _most(day), private)
    return with_rest(table, "\n".join(note for note in notes if note))


def _most(day: DayView) -> str:
    """How many there were at most, and when; empty: nothing was."""
    told = {
        "machines": "{:.0f} machines",
        "dollars": "{:.4f} $/h",
        "running": "{:.0f} running",
    }
    found = [
        f"{told[name].format(peak.value)} ({time.strftime('%d %H:%M', time.localtime(peak.at))})"
        for name, peak in day.most.items()
        if peak.at is not None
    ]
    return "\n  ".join(("At most at once:", *found)) if found else ""
