"""The spot market of one pool: what a machine costs, how many are available, when they are taken.
Until 2017 a machine was lost when the price exceeded the bid; since then when the cloud needs the
room, and a trace says how many machines were available.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from slurm_elastic.simulate.billing import Curve

PLENTY = 2**40
NEVER = 2**62


class SpotMarket:
    """``curve``: the price. ``bid``: machines are lost above it (None: never by price).
    ``available``: (time, machines), how many there are from then on (empty: any number).
    ``notice``: seconds between the cloud's warning and the loss. ``rebalance``: seconds between its
    recommendation to move away, which names no time, and the loss (0: it gives none).
    """

    def __init__(
        self,
        curve: Curve,
        *,
        bid: float | None = None,
        available: Sequence[tuple[int, int]] = (),
        notice: int = 120,
        rebalance: int = 0,
    ) -> None:
        self.curve = curve
        self.bid, self.available = bid, available
        self.notice, self.rebalance = notice, rebalance
        self._times, self._counts = _steps(curve, bid, available)

    def room(self, now: int) -> int:
        """How many machines can be had or kept at ``now``."""
        return self._counts[max(bisect_right(self._times, now) - 1, 0)]

    def rooms(self, now: int) -> tuple[int, int]:
        """How many machines can be had or kept at ``now``, and until when that holds."""
        index = bisect_right(self._times, now)
        until = self._times[index] if index < len(self._times) else NEVER
        return self.room(now), until

    def next_fall(self, now: int, machines: int) -> tuple[int, range]:
        """When fewer than ``machines`` can be kept, and all numbers for which that holds."""
        counts, low = self._counts, PLENTY
        for index in range(bisect_right(self._times, now), len(counts)):
            if counts[index] < machines:
                return self._times[index], range(counts[index] + 1, low + 1)
            low = min(low, counts[index])
        return NEVER, range(low + 1)

    def prices(self, begin: int, now: int) -> tuple[tuple[float, float], ...]:
        """The price changes that are known at ``now``, from the one that held at ``begin`` on."""
        times, prices = self.curve.times, self.curve.prices
        first = max(bisect_right(times, begin) - 1, 0)
        last = max(bisect_right(times, now), first + 1)
        return tuple(zip(times[first:last], prices[first:last], strict=True))


def _steps(
    curve: Curve, bid: float | None, available: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """How many machines can be had, as steps, by price and by availability, without repetitions."""
    changes = {when for when, _ in available}
    if bid is not None:
        changes.update(curve.times)
    times: list[int] = []
    counts: list[int] = []
    starts = [when for when, _ in available]
    for when in sorted(changes or {0}):
        count = PLENTY
        if available:
            count = available[max(bisect_right(starts, when) - 1, 0)][1]
        if bid is not None and curve.at(when) > bid:
            count = 0
        if not counts or counts[-1] != count:
            times.append(when)
            counts.append(count)
    return times, counts
