"""Whether a budget of the day or month, or another bound, forbids new machines. No bound stops a
running job. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.model.causes.stops import BudgetSpent, OutsideTimes


class Window(NamedTuple):
    """From ``begin`` to ``end``, in seconds after midnight UTC; it may pass midnight."""

    begin: int
    end: int

    def open(self, now: int) -> bool:
        """Whether ``now`` (Unix s) lies in the window."""
        second = now % 86400
        # A window such as 20:00-06:00 passes midnight.
        if self.begin <= self.end:
            return self.begin <= second < self.end
        return second >= self.begin or second < self.end

    def __str__(self) -> str:
        """The window in the form of the configuration."""
        begin, end = (f"{second // 3600:02}:{second % 3600 // 60:02}" for second in self)
        return f"{begin}-{end}"


class Bounds(Struct, frozen=True, kw_only=True):
    """The bounds that forbid new machines, and never stop a running job. None: no bound.

    ``machines``: maximum of machines; ``booting``: maximum of machines that boot at a time;
    ``per_day``, ``per_month``: dollars; ``windows``: times of the day in which machines may start
    (empty: always).
    """

    machines: int | None = None
    booting: int | None = None
    per_day: float | None = None
    per_month: float | None = None
    windows: tuple[Window, ...] = ()


UNBOUNDED = Bounds()


class Spent(Struct, frozen=True, kw_only=True):
    """Dollars spent in this day and this month, including the full cost of open leases."""

    day: float = 0.0
    month: float = 0.0


def stopped(now: int, bounds: Bounds, spent: Spent) -> BudgetSpent | OutsideTimes | None:
    """Return why no machine may start at all; None if one may."""
    if bounds.windows and not any(window.open(now) for window in bounds.windows):
        return OutsideTimes(times=tuple(map(str, bounds.windows)))
    if bounds.per_day is not None and spent.day >= bounds.per_day:
        return BudgetSpent(period="day", dollars=bounds.per_day)
    if bounds.per_month is not None and spent.month >= bounds.per_month:
        return BudgetSpent(period="month", dollars=bounds.per_month)
    return None


def end_of_day_and_month(now: float) -> tuple[float, float]:
    """Return when this day and this month end (Unix time), in UTC."""
    day, month = begin_of_day_and_month(now)
    # Every month has ended 32 days after its begin, and the month after it has not.
    return day + 86400, begin_of_day_and_month(month + 32 * 86400)[1]


def begin_of_day_and_month(now: float) -> tuple[float, float]:
    """Return when this day and this month began (Unix time), in UTC."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today.timestamp(), today.replace(day=1).timestamp()
