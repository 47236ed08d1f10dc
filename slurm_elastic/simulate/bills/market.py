"""The spot market of a pool: the price of a machine, how many are available, when they are
reclaimed.

Until 2017 EC2 took a machine when the price exceeded the bid. Today it takes machines when it needs
the capacity, and only a trace can show how many machines were available.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from slurm_elastic.simulate.bills.billing import Curve

PLENTY = 2**40
NEVER = 2**62


class SpotMarket:
    """A spot market. ``curve``: the price. ``bid``: machines are lost above this price (None: never
    by price). ``available``: (time, number of machines from then on) (empty: any number).
    ``notice``: seconds from the cloud's warning to the loss. ``rebalance``: seconds from the
    cloud's recommendation to move, which names no time, to the loss (0: no recommendations).
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
        """Return how many machines are available at ``now``, including those in use."""
        return self._counts[max(bisect_right(self._times, now) - 1, 0)]

    def rooms(self, now: int) -> tuple[int, int]:
        """Return how many machines are available at ``now``, and when the number next changes."""
        index = bisect_right(self._times, now)
        until = self._times[index] if index < len(self._times) else NEVER
        return self.room(now), until

    def next_fall(self, now: int, machines: int) -> tuple[int, range]:
        """Return the next time at which fewer than ``machines`` are available, and the range of
        numbers of machines with the same answer.
        """
        counts, low = self._counts, PLENTY
        for index in range(bisect_right(self._times, now), len(counts)):
            if counts[index] < machines:
                return self._times[index], range(counts[index] + 1, low + 1)
            low = min(low, counts[index])
        return NEVER, range(low + 1)

    def prices(self, begin: int, now: int) -> tuple[tuple[float, float], ...]:
        """Return the price changes known at ``now``, from the price at ``begin`` on."""
        times, prices = self.curve.times, self.curve.prices
        first_index = max(bisect_right(times, begin) - 1, 0)
        end_index = max(bisect_right(times, now), first_index + 1)
        return tuple(zip(times[first_index:end_index], prices[first_index:end_index], strict=True))


def _steps(
    curve: Curve, bid: float | None, available: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """Return the available machines as steps (times, counts), from the price and the trace. Equal
    neighbours are merged.
    """
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
        # A price equal to the bid keeps the machine.
        if bid is not None and curve.at(when) > bid:
            count = 0
        if not counts or counts[-1] != count:
            times.append(when)
            counts.append(count)
    return times, counts
