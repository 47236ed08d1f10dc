"""The series of ``slurm-elastic status --day --json``: machines, dollars and jobs over hours or
days.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.model.memory import ChargedRun, Machine
from slurm_elastic.model.slurm import SlurmJob

DAY_S = 86400.0
DAY_STEP_S = 300.0  # between two points of a day
HOUR_S = 3600.0


class DaySpan(StrEnum):
    """How far back the series go."""

    HOUR = "1h"
    HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"

    @property
    def seconds(self) -> float:
        """The span's length."""
        return int(self[:-1]) * (DAY_S if self.endswith("d") else HOUR_S)

    @property
    def label(self) -> str:
        """The span in words."""
        if self is DaySpan.HOUR:
            return "hour"
        return f"{self[:-1]} {'days' if self.endswith('d') else 'hours'}"

    @property
    def step(self) -> float:
        """Seconds between two points. An hour, and for long spans a day, is a whole number of
        steps.
        """
        return {
            DaySpan.HOUR: 15.0,
            DaySpan.HOURS: 60.0,
            DaySpan.DAY: DAY_STEP_S,
            DaySpan.WEEK: 1800.0,
            DaySpan.MONTH: 7200.0,
        }[self]


class Peak(Struct, frozen=True, kw_only=True):
    """The highest value, and when it was first reached (Unix time; None: it was always 0)."""

    value: float
    at: float | None


class DayView(Struct, frozen=True, kw_only=True, rename={"most": "peaks", "step": "step_s"}):
    """Series with one value for each of ``points``.

    The first point is at ``begin`` (Unix time), the next ones follow each ``step`` seconds, the
    last is ``at``. A point stands for the time until the next point; the last point stands for its
    moment alone. A count is the highest of its time, dollars are the mean. By market: ``machines``
    are the paid machines, ``dollars`` their cost ($/h). ``booting``: machines that had not yet
    registered. ``running``: jobs on our nodes. ``waiting``: the jobs that wait at ``at``, counted
    from their submission (None: Slurm did not answer). ``most``: the peaks of ``machines`` and
    ``dollars`` over all markets, and of ``running``. ``private`` is as in ``Facts``.
    """

    at: float
    begin: float
    step: float
    points: int
    machines: dict[str, list[int]]
    dollars: dict[str, list[float]]
    booting: list[int]
    running: list[int]
    most: dict[str, Peak]
    waiting: list[int] | None = None
    private: tuple[str, ...] = ()
    version: int = 1


class HourView(NamedTuple):
    """One hour, or one day if the span is several days; the last row is the present.

    Counts are the highest of that time, ``dollars`` is the mean ($/h).
    """

    at: float
    machines: list[int]
    dollars: float
    booting: int
    running: int
    waiting: int | None


class _Level(NamedTuple):
    """A value that was constant from ``since`` until ``until`` (Unix times)."""

    since: float
    until: float
    value: float


class _Series:
    """A value over time, added up from things that each have a begin and an end."""

    def __init__(self, now: float, span: DaySpan) -> None:
        self._begin, self._now, self._step = now - span.seconds, now, span.step
        self._bins = int(span.seconds / span.step)
        self._changes: list[tuple[float, float]] = []

    def add(self, since: float, until: float | None, value: float = 1.0) -> None:
        """Add a thing that lasted from ``since`` until ``until`` (None: it lasts)."""
        since = max(since, self._begin)
        if until is None:
            self._changes.append((since, value))
        elif until > since:
            self._changes += [(since, value), (until, -value)]

    def highest(self) -> list[int]:
        """Return the highest value of each point's time."""
        highest_values = [0.0] * (self._bins + 1)
        for level in self._levels():
            for n in self._points(level):
                highest_values[n] = max(highest_values[n], level.value)
        return [round(value) for value in highest_values]

    def means(self) -> list[float]:
        """Return the mean over each point's time; for the last point, the present value."""
        mean_values = [0.0] * (self._bins + 1)
        for level in self._levels():
            for n in self._points(level):
                point_at = self._begin + n * self._step
                inside = min(level.until, point_at + self._step) - max(level.since, point_at)
                mean_values[n] += level.value * (1.0 if n == self._bins else inside / self._step)
        return [round(value, 6) for value in mean_values]

    def peak(self) -> Peak:
        """Return the highest value of the whole span, and when it was first reached."""
        levels = (level for level in self._levels() if level.value > 0)
        top = max(levels, key=lambda level: level.value, default=None)
        return Peak(value=0.0, at=None) if top is None else Peak(value=top.value, at=top.since)

    def _levels(self) -> list[_Level]:
        """Return the levels in order of time; the last one ends after now."""
        changes = sorted(change for change in self._changes if change[0] <= self._now)
        levels, total = [], 0.0
        for n, (at, value) in enumerate(changes):
            total += value
            until = changes[n + 1][0] if n + 1 < len(changes) else self._now + self._step
            if until > at:
                # Rounded: adding and subtracting float prices leaves tiny remainders.
                levels.append(_Level(at, until, round(total, 9)))
        return levels

    def _points(self, level: _Level) -> range:
        """Return the points whose time overlaps the level."""
        first = int((level.since - self._begin) // self._step)
        if level.until > self._now:
            return range(first, self._bins + 1)
        return range(first, -int(-(level.until - self._begin) // self._step))


def day_view(
    machines: Sequence[Machine], runs: Iterable[ChargedRun], now: float,
    private: tuple[str, ...] = (),
    span: DaySpan = DaySpan.DAY,
) -> DayView:  # fmt: skip
    """Return the series of the machines and runs that fall, at least partly, within the span."""
    markets = sorted({str(machine.instance.market) for machine in machines})
    paid = {market: _Series(now, span) for market in markets}
    dollars = {market: _Series(now, span) for market in markets}
    all_machines, price, booting, running = (_Series(now, span) for _ in range(4))
    for machine in machines:
        instance = machine.instance
        for series in (paid[instance.market], all_machines):
            series.add(instance.launched, machine.ended_at)
        for series in (dollars[instance.market], price):
            series.add(instance.launched, machine.ended_at, instance.price)
        boot_ends = [
            at for at in (machine.registered_at, machine.retired_at, machine.ended_at) if at
        ]
        booting.add(instance.launched, min(boot_ends, default=None))
    for run in runs:
        running.add(run.begin, run.end)
    return DayView(
        at=now,
        begin=now - span.seconds,
        step=span.step,
        points=int(span.seconds / span.step) + 1,
        machines={market: series.highest() for market, series in paid.items()},
        dollars={market: series.means() for market, series in dollars.items()},
        booting=booting.highest(),
        running=running.highest(),
        most={"machines": all_machines.peak(), "dollars": price.peak(), "running": running.peak()},
        private=private,
    )


def still_waiting(jobs: Iterable[SlurmJob], now: float, span: DaySpan = DaySpan.DAY) -> list[int]:
    """Return for each point how many of the jobs that wait now had been submitted before the
    point's end.
    """
    waiting = _Series(now, span)
    for job in jobs:
        if "PENDING" in job.states:
            waiting.add(job.submit, None, job.tasks)
    return waiting.highest()


def hours(day: DayView) -> list[HourView]:
    """Return one row for each hour, or for each day of a longer span, the oldest first."""
    points_per_row = round((HOUR_S if day.at - day.begin <= DAY_S else DAY_S) / day.step)
    rows = []
    for first_point in range(0, day.points, points_per_row):
        points = slice(first_point, first_point + points_per_row)
        dollars = [sum(prices[points]) / len(prices[points]) for prices in day.dollars.values()]
        rows.append(
            HourView(
                at=day.begin + first_point * day.step,
                machines=[max(counts[points]) for counts in day.machines.values()],
                dollars=sum(dollars),
                booting=max(day.booting[points]),
                running=max(day.running[points]),
                waiting=None if day.waiting is None else max(day.waiting[points]),
            )
        )
    return rows
