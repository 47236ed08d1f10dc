"""The last hours or days as series, which is what ``slurm-elastic status --day --json`` prints.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.model.memory import Machine, Run
from slurm_elastic.model.slurm import SlurmJob

SPAN = 86400.0
STEP = 300.0  # seconds between two points of a day
HOUR = 3600.0


class Span(StrEnum):
    """How far back it goes."""

    HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"

    @property
    def seconds(self) -> float:
        """Its length."""
        return int(self[:-1]) * (SPAN if self.endswith("d") else HOUR)

    @property
    def told(self) -> str:
        """The same for people."""
        return f"{self[:-1]} {'days' if self.endswith('d') else 'hours'}"

    @property
    def step(self) -> float:
        """Seconds between two points; rows of a table are whole numbers of these."""
        return {Span.HOURS: 60.0, Span.DAY: STEP, Span.WEEK: 1800.0, Span.MONTH: 7200.0}[self]


class Peak(Struct, frozen=True, kw_only=True):
    """The most that there was at once, and when it began (None: there was nothing)."""

    value: float
    at: float | None


class DayView(Struct, frozen=True, kw_only=True):
    """A value for each of ``points``: the first at ``begin`` (Unix time), then one each ``step``
    seconds, the last one ``at``. A point stands for the time until the next one, the last for its
    moment alone. Counts are the most at once in that time, dollars the mean. By market:
    ``machines`` that were paid, and what they cost in ``dollars`` an hour. ``booting``: machines
    that had not registered yet. ``running``: jobs on our nodes. ``waiting``: jobs that wait now,
    from their submission on (None: Slurm did not say). ``most``: of ``machines`` and ``dollars``
    over all markets, and of ``running``. ``private`` is as in ``Facts``.
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
    """An hour, or of several days a day: the most at once, ``dollars`` the mean; the last: now."""

    at: float
    machines: list[int]
    dollars: float
    booting: int
    running: int
    waiting: int | None


class _Level(NamedTuple):
    """How much there was from ``since`` on, until ``until``."""

    since: float
    until: float
    value: float


class _Series:
    """How much there was at once, from when each thing began and ended."""

    def __init__(self, now: float, span: Span) -> None:
        self._begin, self._now, self._step = now - span.seconds, now, span.step
        self._bins = int(span.seconds / span.step)
        self._changes: list[tuple[float, float]] = []

    def add(self, since: float, until: float | None, value: float = 1.0) -> None:
        """Add what lasted from ``since`` until ``until`` (None: it lasts)."""
        since = max(since, self._begin)
        if until is None:
            self._changes.append((since, value))
        elif until > since:
            self._changes += [(since, value), (until, -value)]

    def most(self) -> list[int]:
        """The most at once in each point's time."""
        found = [0.0] * (self._bins + 1)
        for level in self._levels():
            for n in self._points(level):
                found[n] = max(found[n], level.value)
        return [round(value) for value in found]

    def means(self) -> list[float]:
        """The mean over each point's time; for the last point, the present value."""
        found = [0.0] * (self._bins + 1)
        for level in self._levels():
            for n in self._points(level):
                at = self._begin + n * self._step
                inside = min(level.until, at + self._step) - max(level.since, at)
                found[n] += level.value * (1.0 if n == self._bins else inside / self._step)
        return [round(value, 6) for value in found]

    def peak(self) -> Peak:
        """The most at once in all the time, and when that was first reached."""
        levels = (level for level in self._levels() if level.value > 0)
        top = max(levels, key=lambda level: level.value, default=None)
        return Peak(value=0.0, at=None) if top is None else Peak(value=top.value, at=top.since)

    def _levels(self) -> list[_Level]:
        """One after the other; the last one lasts beyond now."""
        changes = sorted(change for change in self._changes if change[0] <= self._now)
        found, total = [], 0.0
        for n, (at, value) in enumerate(changes):
            total += value
            until = changes[n + 1][0] if n + 1 < len(changes) else self._now + self._step
            if until > at:
                # Rounded, as prices that were added and taken off again may leave a little.
                found.append(_Level(at, until, round(total, 9)))
        return found

    def _points(self, level: _Level) -> range:
        """The points whose time the level touches."""
        first = int((level.since - self._begin) // self._step)
        if level.until > self._now:
            return range(first, self._bins + 1)
        return range(first, -int(-(level.until - self._begin) // self._step))


def day_view(
    machines: Sequence[Machine], runs: Iterable[Run], now: float, private: tuple[str, ...] = (),
    span: Span = Span.DAY,
) -> DayView:  # fmt: skip
    """From the machines and runs that fall, at least partly, within the span."""
    markets = sorted({str(machine.instance.market) for machine in machines})
    paid = {market: _Series(now, span) for market in markets}
    dollars = {market: _Series(now, span) for market in markets}
    every, price, booting, running = (_Series(now, span) for _ in range(4))
    for machine in machines:
        one = machine.instance
        for series in (paid[one.market], every):
            series.add(one.launched, machine.ended_at)
        for series in (dollars[one.market], price):
            series.add(one.launched, machine.ended_at, one.price)
        up = [at for at in (machine.registered_at, machine.retired_at, machine.ended_at) if at]
        booting.add(one.launched, min(up, default=None))
    for run in runs:
        running.add(run.begin, run.end)
    return DayView(
        at=now,
        begin=now - span.seconds,
        step=span.step,
        points=int(span.seconds / span.step) + 1,
        machines={market: series.most() for market, series in paid.items()},
        dollars={market: series.means() for market, series in dollars.items()},
        booting=booting.most(),
        running=running.most(),
        most={"machines": every.peak(), "dollars": price.peak(), "running": running.peak()},
        private=private,
    )


def still_waiting(jobs: Iterable[SlurmJob], now: float, span: Span = Span.DAY) -> list[int]:
    """How many of the jobs that wait now had been submitted in each point's time."""
    found = _Series(now, span)
    for job in jobs:
        if "PENDING" in job.states:
            found.add(job.submit, None, job.tasks)
    return found.most()


def hours(day: DayView) -> list[HourView]:
    """Hour by hour, or day by day, the oldest first; the last one is now."""
    each = round((HOUR if day.at - day.begin <= SPAN else SPAN) / day.step)
    found = []
    for first in range(0, day.points, each):
        points = slice(first, first + each)
        dollars = [sum(prices[points]) / len(prices[points]) for prices in day.dollars.values()]
        found.append(
            HourView(
                at=day.begin + first * day.step,
                machines=[max(counts[points]) for counts in day.machines.values()],
                dollars=sum(dollars),
                booting=max(day.booting[points]),
                running=max(day.running[points]),
                waiting=None if day.waiting is None else max(day.waiting[points]),
            )
        )
    return found
