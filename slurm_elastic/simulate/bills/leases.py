"""The ended leases of a pool's machines, and the bill for them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import cast

from slurm_elastic.base.billing import MINIMUM_S, billed_dollars
from slurm_elastic.simulate.bills.billing import Hourly, PerSecond, dollars
from slurm_elastic.simulate.core import compiled
from slurm_elastic.simulate.scenario import PoolModel, Sold


class Leases:
    """Leases (batch, end, machines, reclaimed) as columns; the bill is made when all have ended.

    ``starts`` and ``offers``: the start and the offer of each batch. The caller appends to these
    lists during the run.
    """

    def __init__(self, pool: PoolModel, starts: Sequence[int], offers: Sequence[int]) -> None:
        self._sold, self._billing, self._billed = pool.sold, pool.billing, pool.billing.billed
        self._starts, self._offers = starts, offers
        self._column = array("q")
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

    def columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """Return the columns (batch, end, machines), and the start of each batch."""
        return self.batch, self.end, self.count, self._start_column()

    def _start_column(self) -> array[int]:
        # Batches are only added, and only while the books are open.
        if len(self._column) != len(self._starts):
            self._column = array("q", self._starts)
        return self._column

    def machine_seconds(self) -> int:
        """Return the machine-seconds of all leases."""
        core = compiled()
        if core is not None:
            return int(core.leased(*self.columns()))
        starts = self._starts
        # A machine that the cloud took before paying began was not up.
        return sum([n * max(end - starts[batch], 0) for batch, end, n, _ in self.rows()])

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
        prices = [_flat(sold) for sold in self._sold]
        core = compiled()
        if core is not None and all(price is not None for price in prices):
            self._settle_in(core, array("d", cast("list[float]", prices)))
        else:
            self._settle(prices)

    def _settle_in(self, core: ModuleType, prices: array[float]) -> None:
        billing = self._billing
        refund = isinstance(billing, Hourly) and billing.refund
        minimum = billing.minimum if isinstance(billing, PerSecond) else int(MINIMUM_S)
        self.billed, on_demand, spot = core.settle(
            self.batch, self.end, self.count, self.reclaimed, self._start_column(),
            array("q", self._offers), prices, array("q", map(int, self._on_spot())),
            billing.lease, minimum, refund,
        )  # fmt: skip
        self.dollars |= {"on-demand": on_demand, "spot": spot}

    def _on_spot(self) -> list[bool]:
        return [sold.market is not None for sold in self._sold]

    def _settle(self, prices: Sequence[float | None]) -> None:
        total, paid, starts, offers = 0, [0.0, 0.0], self._starts, self._offers
        billed, on_spot = self._billed, self._on_spot()
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


def most_at_a_time(pools: Sequence[Leases]) -> int:
    """Return the most machines at a time over all pools."""
    core = compiled()
    if core is None:
        return peak(*[leases.steps() for leases in pools])
    return int(core.peak([leases.columns() for leases in pools]))


def peak(*pools: Mapping[int, int]) -> int:
    """Return the most machines at a time over all pools. ``pools``: the ``steps`` of each."""
    changes = dict(pools[0]) if pools else {}
    for steps in pools[1:]:
        for second, change in steps.items():
            changes[second] = changes.get(second, 0) + change
    # The changes of a second are one: a machine that ends as another begins is not counted twice.
    return max(accumulate(changes[second] for second in sorted(changes)), default=0)
