"""The head's clock: whether it is wrong, and the age of times that it recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from slurm_elastic.base.age import known_age_s

AHEAD = 900.0
"""Seconds. No read of a cloud takes this long, and no cloud's clock differs from the head's by this
much. A time further ahead was recorded before the head's clock was set back.
"""


CLOCK_REMEDY = "timedatectl, chronyc tracking"
"""The commands that show the clock's error."""


class ClockSetBack(Struct, frozen=True, kw_only=True):
    """The host's clock was set back by at least ``by_s`` seconds."""

    by_s: float

    @property
    def finding(self) -> str:
        """The finding for people, without the remedy (``CLOCK_REMEDY``)."""
        return (
            f"The clock of this host is {self.by_s / 60:.0f} min behind the times that"
            " slurm-elasticd has recorded: ages and costs are wrong"
        )

    def __str__(self) -> str:
        return f"{self.finding}; do: {CLOCK_REMEDY}"


class ClockAhead(Struct, frozen=True, kw_only=True):
    """The host's clock was ahead of a cloud's by at least ``by_s`` seconds at the last launch."""

    by_s: float

    @property
    def finding(self) -> str:
        """The finding for people, without the remedy (``CLOCK_REMEDY``)."""
        return (
            f"The clock of this host was {self.by_s / 60:.0f} min ahead of the cloud's when the"
            " last machine was launched: if it still is, ages, costs and budgets are wrong"
        )

    def __str__(self) -> str:
        return f"{self.finding}; do: {CLOCK_REMEDY}"


def wrong_clock(
    times: Iterable[float], now: float, lead_s: float
) -> ClockSetBack | ClockAhead | None:
    """Return the fault of the clock: it was set back since the last of ``times``, or it was ahead
    of a cloud's clock by ``lead_s`` at the last launch. None if no fault is known.
    """
    ahead = ClockAhead(by_s=lead_s) if lead_s > AHEAD else None
    return set_back(times, now) or ahead


def set_back(times: Iterable[float], now: float) -> ClockSetBack | None:
    """Return by how much, at least, the clock was set back since the last of ``times`` was
    recorded; None if it may not have been.
    """
    ahead = max(times, default=now) - now
    return ClockSetBack(by_s=ahead) if ahead > AHEAD else None


def age(since: float, now: float) -> float:
    """Return the seconds from ``since`` to ``now``; infinity if the clock was set back in between,
    because a wait for an age would otherwise take the length of the step longer.
    """
    age_s = known_age_s(since, now, inf, skew_s=AHEAD)
    return inf if age_s is None else age_s
