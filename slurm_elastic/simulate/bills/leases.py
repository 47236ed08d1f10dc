"""The ended leases of a pool's machines, and the bill for them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from slurm_elastic.base.billing import billed_dollars
from slurm_elastic.simulate.bills.billing import dollars
from slurm_elastic.simulate.scenario import PoolModel, Sold


class Leases:
    """Leases (batch, end, machines, reclaimed) as columns; the bill is made when all have ended.

    ``starts`` and ``offers``: the start and the offer of each batch. The caller appends to these
    lists during the run.
    """

    def __init__(self, pool: PoolModel, starts: Sequence[int], offers: Sequence[int]) -> None:
        self._sold, self._billed = pool.sold, pool.billing.billed
        self._starts, self._offers = starts, offers
        self.batch = array("q")
        self.end = array("q")
        self.count = array("q")
        self.reclaimed = array("b")
        self.billed = 0
        self.dollars = {"on-demand": 0.0, "spot": 0.0, "reserved": 0.0}
        self._repriced: Mapping[int, float] = {}

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Return (batch, end, machines, reclaimed) of each lease."""
        return zip(self.batch, self.end, self.count, self.reclaimed, strict=True)

    def steps(self) -> dict[int, int]:
        """Return the change of the number of machines (paid and standing), by second."""
        starts, changes = self._starts, dict[int, int]()
        for batch, end, count in zip(self.batch, self.end, self.count, strict=True):
            start = starts[batch]
            if start <= end:  # else reclaimed during its boot, and never paid
                changes[start] = changes.get(start, 0) + count
                changes[end] = changes.get(end, 0) - count
        return changes

    def settle(self) -> None:
        """Make the bill for all leases. Call it when all have ended."""
        total, paid, starts, offers = 0, [0.0, 0.0], self._starts, self._offers
        billed, prices = self._billed, [_flat(sold) for sold in self._sold]
        on_spot = [sold.market is not None for sold in self._sold]
        for batch, end, count, reclaimed in self.rows():
            start, offer = starts[batch], offers[batch]
            if start > end:
                continue  # reclaimed during its boot, if paying begins at the end of the boot
            price = prices[offer]
            if price is None:
                seconds, cost = self.bill(batch, end, reclaimed=bool(reclaimed))
            else:
                seconds = billed(start, end, reclaimed=bool(reclaimed))
                cost = billed_dollars(price, seconds)
            total += count * seconds
            paid[on_spot[offer]] += count * cost
        self.billed = total
        self.dollars |= {"on-demand": paid[0], "spot": paid[1]}

    def reprice(self, dollars: Mapping[int, float], *, on_reservation: Sequence[int]) -> None:
        """Set what leases (by number) really cost if the site holds reservations: all machines of
        a lease together. ``on_reservation``: by offer, whether its machines are bought on one.
        """
        self._repriced = dollars
        paid = {"on-demand": 0.0, "reserved": 0.0}
        for number, cost in dollars.items():
            is_reserved = on_reservation[self._offers[self.batch[number]]]
            paid["reserved" if is_reserved else "on-demand"] += cost
        self.dollars |= paid

    def costs(self) -> Iterator[tuple[int, int, float]]:
        """Return (batch, end, dollars of all its machines) of each lease."""
        for number, (batch, end, count, reclaimed) in enumerate(self.rows()):
            cost = self._repriced.get(number)
            if cost is None:
                cost = count * self.bill(batch, end, reclaimed=bool(reclaimed))[1]
            yield batch, end, cost

    def bill(self, batch: int, end: int, *, reclaimed: bool) -> tuple[int, float]:
        """Return the paid seconds and the dollars for a machine of a batch that ended at
        ``end``.
        """
        start = self._starts[batch]
        if start > end:
            return 0, 0.0
        seconds = self._billed(start, end, reclaimed=reclaimed)
        sold = self._sold[self._offers[batch]]
        if sold.market is None:
            return seconds, billed_dollars(sold.offer.price, seconds)
        return seconds, dollars(sold.market.curve, start, seconds)


def _flat(sold: Sold) -> float | None:
    """Return an offer's price if it never changes, else None."""
    if sold.market is None:
        return sold.offer.price
    prices = sold.market.curve.prices
    return prices[0] if len(prices) == 1 else None


def peak(*pools: Mapping[int, int]) -> int:
    """Return the most machines at a time over all pools. ``pools``: the ``steps`` of each."""
    changes = dict(pools[0]) if pools else {}
    for steps in pools[1:]:
        for second, change in steps.items():
            changes[second] = changes.get(second, 0) + change
    # The changes of a second are one: a machine that ends as another begins is not counted twice.
    return max(accumulate(changes[second] for second in sorted(changes)), default=0)
