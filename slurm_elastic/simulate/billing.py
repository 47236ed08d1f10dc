"""The cost of a machine: the ways in which clouds count time, and the prices they count it at.

A lease runs from ``start`` to ``end`` (integer seconds). Prices are dollars per machine-hour; where
they move, each hour of a machine is charged at the price at that hour's beginning, as EC2's spot
market does it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

HOUR = 3600


class Curve:
    """A price over time: ``prices[i]`` holds from ``times[i]`` on, the first one also before."""

    def __init__(self, times: Sequence[int], prices: Sequence[float]) -> None:
        if not times or len(times) != len(prices):
            raise ValueError("a price curve needs as many prices as times, and at least one")
        if any(a >= b for a, b in pairwise(times)):
            raise ValueError("a price curve needs ascending times")
        self.times = list(times)
        self.prices = list(prices)

    @classmethod
    def flat(cls, price: float) -> Curve:
        """A price that never moves."""
        return cls([0], [price])

    def at(self, when: int) -> float:
        """The price at ``when``."""
        return self.prices[max(bisect_right(self.times, when) - 1, 0)]

    def next_change(self, when: int) -> int | None:
        """The first change after ``when``."""
        index = bisect_right(self.times, when)
        return self.times[index] if index < len(self.times) else None


class Hourly(Struct, frozen=True, tag="hourly"):
    """Each hour begun is paid; with ``refund`` not the last one if the provider took the machine
    (EC2's spot market until 2017-10). ``seconds``: of a cloud whose hour is another.
    """

    refund: bool = False
    seconds: int = HOUR

    @property
    def lease(self) -> int:
        """Seconds paid at a time."""
        return self.seconds

    def billed(self, start: int, end: int, *, reclaimed: bool = False) -> int:
        """Seconds that are paid."""
        if self.refund and reclaimed:
            return (end - start) // self.seconds * self.seconds
        return max(-(-(end - start) // self.seconds), 1) * self.seconds


class PerSecond(Struct, frozen=True, tag="per_second"):
    """Each second is paid, but at least ``minimum`` (EC2's Linux machines since 2017-10)."""

    minimum: int = 60

    @property
    def lease(self) -> int:
        """Seconds paid at a time."""
        return 1

    def billed(self, start: int, end: int, *, reclaimed: bool = False) -> int:  # noqa: ARG002
        """Seconds that are paid."""
        return max(end - start, self.minimum)


Billing = Hourly | PerSecond


def charge(billing: Billing, curve: Curve, start: int, end: int, *, reclaimed: bool) -> float:
    """Dollars for one machine's lease."""
    return dollars(curve, start, billing.billed(start, end, reclaimed=reclaimed))


def dollars(curve: Curve, start: int, seconds: int) -> float:
    """``seconds`` that are paid from ``start`` on, each hour at the price at its beginning."""
    if len(curve.times) == 1:
        return seconds / HOUR * curve.prices[0]
    total, at = 0.0, start
    while seconds > 0:
        part = min(seconds, HOUR)
        total += part / HOUR * curve.at(at)
        seconds -= part
        at += HOUR
    return total
