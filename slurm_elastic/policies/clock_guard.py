"""The age of times by the head's clock, if they were written down before a step back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

AHEAD = 900.0
"""Seconds. No read of a cloud takes so long, nor do its clock and the head's differ by so much:
what is dated later than that is from before the head's clock was set back.
"""


def set_back(times: Iterable[float], now: float) -> str:
    """In words, by how much the clock was set back at least since the last of these ``times`` was
    written down; "" where it may not have been.
    """
    ahead = max(times, default=now) - now
    if ahead <= AHEAD:
        return ""
    return (
        f"The clock of this host is {ahead / 60:.0f} min behind what slurm-elasticd has written "
        "down: ages and costs are wrong; do: timedatectl, chronyc tracking"
    )


def age(since: float, now: float) -> float:
    """Seconds from ``since`` to ``now``; endless where the clock was set back meanwhile, as what
    waits for an age would wait for the length of that step, too.
    """
    return inf if since > now + AHEAD else now - since
