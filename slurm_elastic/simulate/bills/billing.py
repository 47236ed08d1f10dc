"""The cost of machines: how clouds count time, and at which prices.

A lease runs from ``start`` to ``end`` (whole seconds). Prices are dollars per machine-hour. If the
price changes, each hour of a machine costs the price at the hour's beginning, as on EC2's spot
market.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from slurm_elastic.base.billing import billed_dollars, paid_seconds
from slurm_elastic.policies.policy_text import Policy, Whole, WholeOver, parse_policy

HOUR = 3600


class Curve:
    """A price over time: ``prices[i]`` holds from ``times[i]`` on, ``prices[0]`` also before it."""

    def __init__(self, times: Sequence[int], prices: Sequence[float]) -> None:
        if not times or len(times) != len(prices):
            raise ValueError("a price curve needs as many prices as times, and at least one")
        if any(a >= b for a, b in pairwise(times)):
            raise ValueError("a price curve needs ascending times")
        self.times = list(times)
        self.prices = list(prices)

    @classmethod
    def flat(cls, price: float) -> Curve:
        """Return a curve with a constant price."""
        return cls([0], [price])

    def at(self, when: int) -> float:
        """Return the price at ``when``."""
        return self.prices[max(bisect_right(self.times, when) - 1, 0)]

    def next_change(self, when: int) -> int | None:
        """Return the time of the first change after ``when``; None if there is none."""
        index = bisect_right(self.times, when)
        return self.times[index] if index < len(self.times) else None


class Hourly(Policy, frozen=True, tag="hourly"):
    """Each started hour is paid. With ``refund`` the last hour is free if the cloud
    reclaimed the machine (EC2's spot market until 2017-10). ``seconds``: the length of the cloud's
    hour.
    """

    refund: bool = False
    seconds: WholeOver = HOUR

    @property
    def lease(self) -> int:
        """Seconds that are paid at a time."""
        return self.seconds

    @property
    def minimum(self) -> int:
        """The least number of paid seconds."""
        return self.seconds

    def billed(self, start: int, end: int, *, reclaimed: bool = False) -> int:
        """Return the paid seconds of a lease."""
        if self.refund and reclaimed:
            return (end - start) // self.seconds * self.seconds
        return int(paid_seconds(end - start, self.seconds))


class PerSecond(Policy, frozen=True, tag="per_second"):
    """Each second is paid, but at least ``minimum`` (EC2's Linux machines since 2017-10)."""

    minimum: Whole = 60

    @property
    def lease(self) -> int:
        """Seconds that are paid at a time."""
        return 1

    def billed(self, start: int, end: int, *, reclaimed: bool = False) -> int:  # noqa: ARG002
        """Return the paid seconds of a lease."""
        return int(paid_seconds(end - start, self.lease, self.minimum))


Billing = Hourly | PerSecond


def parse(text: str) -> Billing:
    """Parse ``per_second(minimum=60)`` or ``hourly(refund=true, seconds=3600)``. Raises ValueError
    for any other text.
    """
    billing: Billing = parse_policy(text, {"per_second": PerSecond, "hourly": _hourly})
    return billing


def _hourly(refund: object = "true", seconds: int = HOUR) -> Hourly:
    word = str(refund).lower()
    if word not in ("true", "false"):
        raise ValueError(f"refund is {refund!r}, expected true or false")
    return Hourly(refund=word == "true", seconds=seconds)


def dollars(curve: Curve, start: int, seconds: int) -> float:
    """Return the dollars for ``seconds`` from ``start`` on. Each hour costs the price at its
    beginning.
    """
    if len(curve.times) == 1:
        return billed_dollars(curve.prices[0], seconds)
    total, hour_start = 0.0, start
    while seconds > 0:
        hour_seconds = min(seconds, HOUR)
        total += billed_dollars(curve.at(hour_start), hour_seconds)
        seconds -= hour_seconds
        hour_start += HOUR
    return total
