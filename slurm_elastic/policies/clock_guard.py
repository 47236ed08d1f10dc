"""The age of times by the head's clock, if they were written down before a step back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct

AHEAD = 900.0
"""Seconds. No read of a cloud takes so long, nor do its clock and the head's differ by so much:
what is dated later than that is from before the head's clock was set back.
"""


CLOCK_REMEDY = "timedatectl, chronyc tracking"
"""The commands that show what is wrong with the clock."""


class ClockSetBack(Struct, frozen=True, kw_only=True):
    """The clock of this host was set back by so many seconds at least."""

    by_s: float

    @property
    def finding(self) -> str:
        """For people, without what to do (``CLOCK_REMEDY``)."""
        return (
            f"The clock of this host is {self.by_s / 60:.0f} min behind what slurm-elasticd has"
            " written down: ages and costs are wrong"
        )

    def __str__(self) -> str:
        return f"{self.finding}; do: {CLOCK_REMEDY}"


def set_back(times: Iterable[float], now: float) -> ClockSetBack | None:
    """By how much the clock was set back at least since the last of these ``times`` was written
    down; None where it may not have been.
    """
    ahead = max(times, default=now) - now
    return ClockSetBack(by_s=ahead) if ahead > AHEAD else None


def age(since: float, now: float) -> float:
    """Seconds from ``since`` to ``now``; endless where the clock was set back meanwhile, as what
    waits for an age would wait for the length of that step, too.
    """
    return inf if since > now + AHEAD else now - since
