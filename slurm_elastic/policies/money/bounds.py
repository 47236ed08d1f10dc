"""Whether a budget of the day or month is spent, or another bound lets no machine be started. Pure.
No bound stops a running job.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.model.causes.stops import BudgetSpent, OutsideTimes


class Window(NamedTuple):
    """From ``begin`` to ``end``, seconds after midnight UTC; it may pass midnight."""

    begin: int
    end: int

    def open(self, now: int) -> bool:
        """Whether ``now`` (Unix time) lies in it."""
        second = now % 86400
        if self.begin <= self.end:
            return self.begin <= second < self.end
        return second >= self.begin or second < self.end

    def __str__(self) -> str:
        """As the configuration has it."""
        begin, end = (f"{at // 3600:02}:{at % 3600 // 60:02}" for at in self)
        return f"{begin}-{end}"


class Bounds(Struct, frozen=True, kw_only=True):
    """The bounds that stop new machines, and never a running job. None: no bound.

    ``booting``: most machines that boot at a time; dollars of a day and a month; ``windows``: times
    of the day in which machines may be started (none: always).
    """

    machines: int | None = None
    booting: int | None = None
    per_day: float | None = None
    per_month: float | None = None
    windows: tuple[Window, ...] = ()


UNBOUNDED = Bounds()


class Spent(Struct, frozen=True, kw_only=True):
    """Dollars so far, of this day and this month, with what open leases will have cost."""

    day: float = 0.0
    month: float = 0.0


def stopped(now: int, bounds: Bounds, spent: Spent) -> BudgetSpent | OutsideTimes | None:
    """Why no machine may be started at all, or None."""
    if bounds.windows and not any(window.open(now) for window in bounds.windows):
        return OutsideTimes(times=tuple(map(str, bounds.windows)))
    if bounds.per_day is not None and spent.day >= bounds.per_day:
        return BudgetSpent(period="day", dollars=bounds.per_day)
    if bounds.per_month is not None and spent.month >= bounds.per_month:
        return BudgetSpent(period="month", dollars=bounds.per_month)
    return None
