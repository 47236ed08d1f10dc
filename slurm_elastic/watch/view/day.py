"""The last 24 hours as series: machines, dollars an hour, jobs. Pure.

``DayView`` as JSON is the document of ``slurm-elastic status --day --json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.model.memory import Machine, Run
from slurm_elastic.model.slurm import SlurmJob

SPAN = 86400.0
STEP = 300.0
"""Seconds between two points."""
BINS = int(SPAN / STEP)
HOUR = 3600.0


class Peak(Struct, frozen=True, kw_only=True):
    """The most that there was at once, and since when (None: there was nothing)."""

    value: float
    at: float | None


class DayView(Struct, frozen=True, kw_only=True):
    """A value for each of ``points``: the first at ``begin`` (Unix time), one each ``step`` s, the
    last one ``at``. A point stands for the time until the next one, the last for its moment alone:
    counts are the most at once in that time, dollars the mean over it. By market: ``machines``
    that were paid, and what they cost in ``dollars`` an hour. ``booting``: machines that had not
    registered yet. ``running``: jobs on our nodes. ``waiting``: jobs that wait now, from their
    submission on (None: Slurm did not say). ``most``: of ``machines`` and ``dollars`` over all
    markets, and of ``running``. ``private`` as in ``Facts``.
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
    """An hour of the day: counts are the most at once in it, ``dollars`` its mean; of the hour that
    begins now, as it is now.
    """

    at: float
    machines: list[int]
    dollars: float
    booting: int
    running: int
    waiting: int | None


class _Level(NamedTuple):
    """How much there was from ``since`` on, before ``until``."""

    since: float
    until: float
    value: float


class _Series:
    """How much there was at once, by the beginnings and ends of what there was."""

    def __init__(self, now: float) -> None:
        self._begin, self._now = now - SPAN, now
        self._changes: list[tuple[float, float]] = []

    def add(self, since: float, until: float | None, value: float = 1.0) -> None:
        """It was so from ``since`` on, before ``until`` (None: it still is)."""
        since = max(since, self._begin)
        if until is None:
            self._changes.append((since, value))
        elif until > since:
            self._changes += [(since, value), (until, -value)]

    def most(self) -> list[int]:
        """The most at once in the time of each point."""
        found = [0.0] * (BINS + 1)
        for level in self._levels():
            for n in self._points(level):
                found[n] = max(found[n], level.value)
        return [round(value) for value in found]

    def means(self) -> list[float]:
        """The mean over the time of each point; of the last, what there is."""
        found = [0.0] * (BINS + 1)
        for level in self._levels():
            for n in self._points(level):
                at = self._begin + n * STEP
                inside = min(level.until, at + STEP) - max(level.since, at)
                found[n] += level.value * (1.0 if n == BINS else inside / STEP)
        return [round(value, 6) for value in found]

    def peak(self) -> Peak:
        """The most at once of all time, and when that was first reached."""
        levels = (level for level in self._levels() if level.value > 0)
        top = max(levels, key=lambda level: level.value, default=None)
        return Peak(value=0.0, at=None) if top is None else Peak(value=top.value, at=top.since)

    def _levels(self) -> list[_Level]:
        """One after the other; the last one lasts beyond now."""
        changes = sorted(change for change in self._changes if change[0] <= self._now)
        found, total = [], 0.0
        for n, (at, value) in enumerate(changes):
            total += value
            until = changes[n + 1][0] if n + 1 < len(changes) else self._now + STEP
            if until > at:
                found.append(_Level(at, until, round(total, 9)))
        return found

    def _points(self, level: _Level) -> range:
        """The points of whose time the level has a part."""
        first = int((level.since - self._begin) // STEP)
        last = BINS if level.until > self._now else -int(-(level.until - self._begin) // STEP) - 1
        return range(first, last + 1)


def day_view(
    machines: Sequence[Machine], runs: Iterable[Run], now: float, private: tuple[str, ...] = ()
) -> DayView:
    """By the machines and runs of which some part is within the last 24 hours."""
    markets = sorted({str(machine.instance.market) for machine in machines})
    paid = {market: _Series(now) for market in markets}
    dollars = {market: _Series(now) for market in markets}
    every, price, booting, running = (_Series(now) for _ in range(4))
    for machine in machines:
        one = machine.instance
        for series in (paid[one.market], every):
            series.add(one.launched, machine.ended)
        for series in (dollars[one.market], price):
            series.add(one.launched, machine.ended, one.price)
        up = [at for at in (machine.registered, machine.suspending, machine.ended) if at]
        booting.add(one.launched, min(up, default=None))
    for run in runs:
        running.add(run.begin, run.end)
    return DayView(
        at=now,
        begin=now - SPAN,
        step=STEP,
        points=BINS + 1,
        machines={market: series.most() for market, series in paid.items()},
        dollars={market: series.means() for market, series in dollars.items()},
        booting=booting.most(),
        running=running.most(),
        most={"machines": every.peak(), "dollars": price.peak(), "running": running.peak()},
        private=private,
    )


def still_waiting(jobs: Iterable[SlurmJob], now: float) -> list[int]:
    """How many of the jobs that wait now had been submitted in the time of each point."""
    found = _Series(now)
    for job in jobs:
        if "PENDING" in job.states:
            found.add(job.submit, None, job.tasks)
    return found.most()


def hours(day: DayView) -> list[HourView]:
    """Hour by hour, the oldest first; the last one is now."""
    each = round(HOUR / day.step)
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
