"""The table of a day: machines, cost and waiting jobs over time."""

from __future__ import annotations

import time

from rich.console import RenderableType

from slurm_elastic.base.local_time import zone
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.status_tables import dollars
from slurm_elastic.cli.reports.shortened import with_rest
from slurm_elastic.watch.view.attention import (
    private_note,
)
from slurm_elastic.watch.view.day import DAY_S, DaySpan, DayView, hours


def day_table(day: DayView, span: DaySpan = DaySpan.DAY) -> RenderableType:
    """One row for each of the last hours (or days), then the current numbers."""
    counted = ("$/h", "Booting", "Running", "Still waiting")
    right = tuple(name.capitalize() for name in (*day.machines, *counted))
    title = f"The last {span.label}, times in {zone(day.at)}"
    table = Rows(title, "From", *right, right=right)
    *past, current = hours(day)
    for period in (*past, current):
        label = (
            time.strftime("%d %H:%M", time.localtime(period.at)) if period is not current else "now"
        )
        machines = [str(count) for count in period.machines]
        waiting = "-" if period.waiting is None else str(period.waiting)
        counts = [str(period.booting), str(period.running), waiting]
        table.add(label, *machines, dollars(period.dollars), *counts)
    private = private_note(day.private) if day.private else ""
    each = "day" if day.at - day.begin > DAY_S else "hour"
    notes = (f"Counts: the maximum in each {each}; $/h: its mean.", _most(day), private)
    return with_rest(table, "\n".join(note for note in notes if note))


def _most(day: DayView) -> str:
    """The maximum of machines, cost and jobs, each with its time; "" if nothing ran."""
    formats = {
        "machines": "{:.0f} machines",
        "dollars": "{:.4f} $/h",
        "running": "{:.0f} running",
    }
    peaks = [
        f"{formats[name].format(peak.value)} ({time.strftime('%d %H:%M', time.localtime(peak.at))})"
        for name, peak in day.most.items()
        if peak.at is not None
    ]
    return "\n  ".join(("Maximum:", *peaks)) if peaks else ""
