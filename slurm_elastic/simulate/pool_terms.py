"""The terms of a simulated site's pools over time, as slurm-elasticd publishes them.

Terms are read again only when they may have changed: a price, a cool-down, or the room under a
limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.launch.pool_order import COSTS, MARKET, PoolTerms, PricedRoom
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.scenario import Clock, PoolModel

Lane = tuple[int, PoolMachines, Sequence[int]]  # a pool's number, machines, and need of each job


def partition_of(pool: PoolModel) -> str:
    """Return the partition of a pool: its cloud. Machines that are always paid have a partition of
    their own, because they cost a job nothing, whatever their cloud charges for others.
    """
    if pool.machines == pool.standing:
        return f"{pool.name} (standing)"
    return pool.sold[0].offer.cloud if pool.wanted is None else pool.wanted.cloud


class TermsTable:
    """``terms``: of these pools, in the order of the file. ``number`` counts their changes.
    ``until``: the next second at which prices or cool-downs change.
    """

    def __init__(self, lanes: Sequence[Lane], ranking: Sequence[str], purchases: Purchases) -> None:
        self._lanes, self._purchases = lanes, purchases
        self._standing = {
            pool: _standing_terms(machines.pool, ranking)
            for pool, machines, _ in lanes
            if machines.pool.machines == machines.pool.standing
        }
        # Nodes beyond the need of the largest job change no order.
        self._most = [
            max((need for need in needs if need <= machines.max_machines), default=1)
            for _, machines, needs in lanes
        ]
        self.terms: list[PoolTerms] = []
        self.number = 0
        self.until = -1
        self._read_terms: list[PoolTerms] = []
        self._version = self._slack = -1
        self._launched = self._released = 0

    def refresh(self, now: int) -> None:
        """Bring the terms up to date."""
        if (
            now >= self.until
            or self._version != self._purchases.version
            or not (self._purchases.unlimited or self._is_usage_known())
        ):
            self._read(now)
        # A cloud that sells nothing now can still serve a job on an idle machine.
        terms = [
            row if row.unavailable is None or not row.offers or not lane[1].idle
            else replace(row, unavailable=None)
            for row, lane in zip(self._read_terms, self._lanes, strict=True)
        ]  # fmt: skip
        if terms != self.terms:
            self.terms = terms
            self.number += 1

    def _read(self, now: int) -> None:
        purchases = self._purchases
        self._read_terms = [
            self._standing.get(pool) or self._terms_of(machines, pool, most, now)
            for (pool, machines, _), most in zip(self._lanes, self._most, strict=True)
        ]
        self.until, self._version = purchases.next_change(now), purchases.version
        if not purchases.unlimited:
            self._launched, self._released = self._usage()
            self._slack = self._read_slack(now)

    def _read_slack(self, now: int) -> int:
        """Return how many machines may be launched before a limit matters; -1 if it matters now."""
        if any(row.unavailable for row in self._read_terms):
            return -1
        return min(
            self._purchases.slack(pool, most, now)
            for (pool, _, _), most in zip(self._lanes, self._most, strict=True)
            if pool not in self._standing
        )

    def _terms_of(self, machines: PoolMachines, pool: int, most: int, now: int) -> PoolTerms:
        boot_s = machines.boot_seconds(1) if machines.pool.clock is Clock.REQUEST else 0
        return self._purchases.terms(pool, partition_of(machines.pool), most, now, boot_s)

    def _usage(self) -> tuple[int, int]:
        """Return how many machines were launched and released so far."""
        launched = released = 0
        for _, machines, _ in self._lanes:
            launched += machines.launched
            released += machines.released
        return launched, released

    def _is_usage_known(self) -> bool:
        """Whether the usage of limits changes no terms since they were read. If there was slack, it
        is enough that not too many machines were launched.
        """
        launched, released = self._usage()
        if self._slack < 0:
            return (launched, released) == (self._launched, self._released)
        return launched - self._launched <= self._slack


def _standing_terms(pool: PoolModel, ranking: Sequence[str]) -> PoolTerms:
    """Return the terms of machines that are always paid."""
    names = [name for name in ranking if name not in (*COSTS, MARKET)]
    return PoolTerms(
        pool=pool.name,
        cloud=pool.sold[0].offer.cloud,
        partition=partition_of(pool),
        offers=(PricedRoom(room=pool.machines, market=Market.RESERVED, price=0.0),),
        keys={name: float(name == "location") for name in names},
    )
