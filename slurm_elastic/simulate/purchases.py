"""Buys machines as the daemon does, launch by launch, by ``policies.launch.next_launch``, from
simulated clouds that refuse when their stock is gone. An offer that refused cools down; a pool that
no offer can serve is held until the first cool-down ends.

We do not decide anew for each machine: the offer that is best for many nodes is best for some of
them, until a price moves, a cool-down begins or ends, or a limit may no longer be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits, Market, NodeRequest, Offer, Placement, Pool, Usage
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.policies.launch.exclusions import (
    after_interruption,
    after_partial,
    after_refusal,
    keys_of,
    strikes_of,
    touches,
)
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.policies.launch.next_launch import next_launch
from slurm_elastic.policies.launch.ranking import Scope, rank, serving, shortfall, used_by
from slurm_elastic.simulate.machines import PoolMachines, Sales
from slurm_elastic.simulate.market import PLENTY
from slurm_elastic.simulate.scenario import Scenario

MOST = 1 << 12  # how many nodes we decide for ahead
_NO_CAPACITY = "InsufficientInstanceCapacity"

Later = Callable[[int], None]  # called with the second at which `review` is to be called


class _Standing:
    """A decision for ``left`` more of ``offer``, until ``until``, up to ``stock`` of them."""

    def __init__(self) -> None:
        self.offer, self.left, self.until, self.stock = 0, 0, -1, 0


class Purchases:
    """Buys for ``pools``, and knows why it got no more. Times are the history's seconds.
    ``refusals``: by pool, why a launch could not get all its machines the first time.
    """

    def __init__(self, scenario: Scenario, pools: Sequence[PoolMachines], later: Later) -> None:
        self.pools, self.keys, self._later = pools, scenario.ranking, later
        self.seconds = max(scenario.cool_downs.capacity, 1.0)
        self.longest = scenario.cool_downs.longest
        self.limits, self.cloud_limits = scenario.limits, dict(scenario.cloud_limits)
        self.unlimited = self.limits == Limits() and not any(
            limits != Limits() for limits in self.cloud_limits.values()
        )
        self.cool_downs: dict[str, Exclusion] = {}
        self.refusals: dict[int, str] = {}
        self._held: dict[int, int] = {}
        self._pools = [_pool_of(machines) for machines in pools]
        self._at = [
            {sold.offer.key: index for index, sold in enumerate(machines.sold)}
            for machines in pools
        ]
        self._standing = [_Standing() for _ in pools]
        self._names = tuple(str(number) for number in range(MOST))

    def buy(self, pool: int, count: int, now: int, *, whole: bool) -> Sales:
        """(offer, machines) for each launch that gave some: up to ``count`` altogether or, with
        ``whole``, all or none. A pool that did not get all is held.
        """
        standing = self._standing[pool]
        if (
            count <= standing.left
            and now < standing.until
            and count <= standing.stock - self.pools[pool].live_of[standing.offer]
        ):
            standing.left -= count
            sales = [(standing.offer, count)]
        else:
            sales = self._decide(pool, count, now, whole=whole)
        # Under common limits this may leave less to the other pools.
        if not self.unlimited:
            self._forget(but=pool)
        return sales

    def review(self, now: int, *, waited_for: bool) -> bool:
        """Free the nodes that can be served again after a hold; all if no job waits."""
        found = False
        for pool in [pool for pool, until in self._held.items() if until <= now]:
            machines = self.pools[pool]
            room = machines.held
            if waited_for:
                room = min(room, self._room(pool, now))
            machines.held -= room
            found = found or room > 0
            if machines.held:
                self._hold(pool, now)
            else:
                del self._held[pool]
        return found

    def taken(self, pool: int, offer: int, now: int) -> None:
        """The cloud takes machines of an offer, so we do not ask it for more at once."""
        key = self.pools[pool].sold[offer].offer.key
        cooling = after_interruption(key, "", now, self.seconds)
        before = self.cool_downs.get(key)
        if before is None or before.until < cooling.until:
            self._cool(cooling)

    def _decide(self, pool: int, count: int, now: int, *, whole: bool) -> Sales:
        machines, names = self.pools[pool], self._nodes(count)
        request = NodeRequest(id="", pool=self._pools[pool], nodes=names)
        gangs = (Gang(nodes=names, job=0),) if whole else tuple(Gang(nodes=(n,)) for n in names)
        self._forget()
        sales: Sales = []
        had = spare = 0
        while had < count:
            offers, scope = self._offers(pool, now), self._scope(now, pool, sales)
            decided = next_launch(request, gangs, names[:had], offers, scope, now, keys=self.keys)
            if not decided.nodes:
                spare = decided.spare
                if pool not in self.refusals:
                    self.refusals[pool] = shortfall(request, offers, scope, now, self.keys)
                break
            wanted, offer = len(decided.nodes), decided.offers[0]
            index = self._at[pool][offer.key]
            given = min(wanted, machines.stock(index, now, sales))
            self._answered(offer, given, wanted, now)
            if given > 0:
                sales.append((index, given))
                had += given
            if had == count == wanted == given:
                self._remember(pool, count, decided.placement, scope, now)
        if had == count:
            return sales
        if whole:
            machines.waste(sales, now)
            sales, had = [], 0
        left = max(machines.room() - had, 0)
        machines.held += left - min(spare, max(left - (count - had), 0))
        self._hold(pool, now)
        return sales

    def _answered(self, offer: Offer, given: int, wanted: int, now: int) -> None:
        """Learn about the offer from the cloud's answer."""
        if given <= 0:
            strikes = strikes_of(self.cool_downs.values(), offer.key, now)
            reason = "the simulated cloud has none left"
            lasting = self.seconds, self.longest
            self._cool(after_refusal(offer.key, strikes, now, *lasting, _NO_CAPACITY, reason))
        elif given < wanted:
            self._cool(after_partial(offer.key, given, wanted, now, self.seconds))
        else:
            for key in keys_of(offer):
                self.cool_downs.pop(key, None)

    def _cool(self, cooling: Exclusion) -> None:
        self.cool_downs[cooling.scope] = cooling
        self._forget()

    def _remember(
        self, pool: int, count: int, placement: Placement, scope: Scope, now: int
    ) -> None:
        """Keep the decision for as many machines as would have been decided in the same way."""
        machines, standing = self.pools[pool], self._standing[pool]
        best, left = placement.ranked[0].offer, PLENTY
        if not self.unlimited:
            many = NodeRequest(id="", pool=self._pools[pool], nodes=self._nodes(MOST))
            offers = self._offers(pool, now)
            if placement.rejected:
                unused = rank(many, offers, replace(scope, usage=Usage()), now, self.keys)
                # A limit rules an offer out, which it may do no longer the next time.
                if len(unused.rejected) < len(placement.rejected):
                    return
            first = rank(many, offers, scope, now, self.keys).ranked[0]
            best, left = first.offer, first.room - count
        standing.offer, standing.left = self._at[pool][best.key], left
        standing.stock, until = machines.stocked(standing.offer, now)
        for sold in machines.sold:
            change = None if sold.market is None else sold.market.curve.next_change(now)
            until = until if change is None else min(until, change)
        for cooling in self.cool_downs.values():
            if now < cooling.until < until:
                until = ceil(cooling.until)
        standing.until = until

    def _forget(self, but: int = -1) -> None:
        """Forget decisions that may have changed: those of all pools ``but`` one."""
        for pool, standing in enumerate(self._standing):
            if pool != but:
                standing.left = 0

    def _hold(self, pool: int, now: int) -> None:
        """Hold the pool until its cloud's first cool-down ends; for a while if a limit bars it."""
        own = self._pools[pool].cloud
        cooling = [
            c.until for key, c in self.cool_downs.items()
            if c.until > now and key.partition("/")[0] == own
        ]  # fmt: skip
        until = ceil(min(cooling, default=now + self.seconds))
        self._held[pool] = until
        self._later(until)

    def _room(self, pool: int, now: int) -> int:
        """For how many of the held nodes offers have room."""
        nodes = self._nodes(self.pools[pool].held)
        request = NodeRequest(id="", pool=self._pools[pool], nodes=nodes)
        offers, scope = self._offers(pool, now), self._scope(now, pool, ())
        return sum(one.room for one in serving(request, offers, scope, now, self.keys))

    def _offers(self, pool: int, now: int) -> list[Offer]:
        """The cloud's offers at the present prices."""
        return [
            sold.offer if sold.market is None or sold.offer.market is not Market.SPOT
            else replace(sold.offer, price=sold.market.curve.at(now))
            for sold in self.pools[pool].sold
        ]  # fmt: skip

    def _scope(self, now: int, pool: int, sales: Sales | tuple[()]) -> Scope:
        usage = Usage()
        if not self.unlimited:
            for of, machines in zip(self._pools, self.pools, strict=True):
                if not machines.pool.limited:
                    continue
                for sold, live in zip(machines.sold, machines.live_of, strict=True):
                    usage = used_by(usage, of, sold.offer, live) if live else usage
            for index, count in sales:
                usage = used_by(usage, self._pools[pool], self.pools[pool].sold[index].offer, count)
        cooling = tuple(
            c for key, c in self.cool_downs.items()
            if c.until > now and touches(key, self._pools[pool])
        )  # fmt: skip
        return Scope(
            limits=self.limits, cloud_limits=self.cloud_limits, usage=usage, exclusions=cooling
        )

    def _nodes(self, count: int) -> tuple[str, ...]:
        if count > len(self._names):
            self._names = tuple(str(number) for number in range(count))
        return self._names[:count]


def _pool_of(machines: PoolMachines) -> Pool:
    """The pool as the ranking knows it."""
    model = machines.pool
    if model.wanted is not None:
        return model.wanted
    cloud = machines.sold[0].offer.cloud
    return Pool(
        name=model.name, cloud=cloud, nodes=(), cpus=1, real_memory=1, markets=tuple(Market)
    )
