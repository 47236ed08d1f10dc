"""The age of times by the head's clock, if they were written down before a step back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

AHEAD = 900.0
"""Seconds. No read of a cloud takes so long, nor do its clock and the head's differ by so much:
what is dated later than that is from before the head's clock was set back.
"""


def set_back(times: Iterable[float], now: float) -> float:
    """By how many seconds at least the clock was set back since the last of these ``times`` was
    written down; 0 where that may be none.
    """
    ahead = max(times, default=now) - now
    return ahead if ahead > AHEAD else 0.0


def age(since: float, now: float) -> float:
    """Seconds from ``since`` to ``now``; endless where the clock was set back meanwhile, as what
    waits for an age would wait for the length of that step, too.
    """
    return inf if since > now + AHEAD else now - since
