"""Buys machines launch by launch, as the daemon does, with ``policies.launch.next_launch``.

Simulated clouds refuse when their stock is gone. An offer that refused cools down. A pool that no
offer can serve is held until the first cool-down ends.

Decisions are reused for speed: the best offer for many nodes stays the best until a price changes,
a cool-down begins or ends, or the usage under a limit changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import ceil, floor

from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Limits, Market, NodeRequest, Offer, Pool, Usage
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.placement import Placement
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.growth.purchase_rooms import PurchaseRoom, purchase_room
from slurm_elastic.policies.launch.exclusions import (
    PARTIAL,
    after_interruption,
    after_partial,
    after_refusal,
    keys_of,
    strikes_of,
    touches,
)
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.policies.launch.lasting import early_end
from slurm_elastic.policies.launch.next_launch import next_launch
from slurm_elastic.policies.launch.pool_order import PoolTerms, terms_of
from slurm_elastic.policies.launch.ranking import Scope, rank, serving, shortfall, used_by
from slurm_elastic.policies.launch.reservations import SLACK_S, levelled
from slurm_elastic.simulate.bills.market import NEVER, PLENTY
from slurm_elastic.simulate.machines import PoolMachines, Sales
from slurm_elastic.simulate.remembered import Answers, answers_of, remember
from slurm_elastic.simulate.scenario import Scenario

MAX_NODES_AHEAD = 1 << 12  # nodes for which a decision is made ahead
_NONE_LEFT = Quoted(text="the simulated cloud has none left")
_NAMES = tuple(map(str, range(MAX_NODES_AHEAD)))
_NO_CAPACITY = "InsufficientInstanceCapacity"

Later = Callable[[int], None]  # called with the second at which `review` is to be called


class StoredDecision:
    """A decision for ``left`` more machines of ``offer``. It is valid until the second ``until``,
    and while the offer has at most ``stock`` machines.
    """

    def __init__(self) -> None:
        self.offer, self.left, self.until, self.stock = 0, 0, -1, 0


class Purchases:
    """Buys machines for ``pools``. Times are the history's seconds. ``refusals``: per pool the
    reason of the first launch that could not get all its machines. ``version`` counts changes of
    cool-downs.
    """

    def __init__(self, scenario: Scenario, pools: Sequence[PoolMachines], later: Later) -> None:
        self.pools, self.keys, self._later = pools, scenario.ranking, later
        # At least a second, or a held pool would be reviewed again in the same second.
        self.seconds = max(scenario.cool_downs.capacity, 1.0)
        self.longest = scenario.cool_downs.longest
        self.limits, self.cloud_limits = scenario.limits, dict(scenario.cloud_limits)
        self.held = scenario.held
        # A reservation bounds how many machines it covers, as a limit does.
        self.unlimited = (
            self.limits == Limits()
            and not any(limits != Limits() for limits in self.cloud_limits.values())
            and not self.held
        )
        self._ending = [machines.ending is not None for machines in pools]
        self._boot_s = [max(m.pool.resume_timeout, m.boot_seconds(1)) for m in pools]
        self.cool_downs: dict[str, Exclusion] = {}
        self.version = 0
        self.refusals: dict[int, str] = {}
        self._held_until: dict[int, int] = {}
        self._pools = [_pool_of(machines) for machines in pools]
        self._offer_index = [
            {sold.offer.key: index for index, sold in enumerate(machines.sold)}
            for machines in pools
        ]
        self._price_ratio = _price_ratio(pools)
        self._decisions = [StoredDecision() for _ in pools]
        # The rooms by pool, count and machines, right until a second or a change of cool-downs.
        self._rooms: Answers = {}
        self._rooms_until, self._rooms_version = -1, -1
        self._timeless = self._answers_for_ever()
        self._names = _NAMES

    def _answers_for_ever(self) -> Answers | None:
        """Return the answers for these machines; None if answers depend on time, too."""
        sold = [sold for machines in self.pools for sold in machines.sold]
        if self.held or any(self._ending) or any(offer.market is not None for offer in sold):
            return None
        pools = [
            (row, machines.pool.limited, boot_s, [sold.offer for sold in machines.sold])
            for row, machines, boot_s in zip(self._pools, self.pools, self._boot_s, strict=True)
        ]
        return answers_of((self.limits, self.cloud_limits, self.keys, pools))

    def answers(self, now: int) -> Answers:
        """Return the answers that hold now. Their keys have the machines of all offers
        (``live_machines``).
        """
        if self._timeless is not None and not self.cool_downs:
            return self._timeless
        if now >= self._rooms_until or self.version != self._rooms_version:
            self._rooms_until, self._rooms_version = self.next_change(now), self.version
            self._rooms.clear()
        return self._rooms

    def live_machines(self) -> Hashable:
        """Return how many machines of each offer are up or boot."""
        return tuple([tuple(machines.live_of) for machines in self.pools])

    def buy(
        self,
        pool: int,
        count: int,
        now: int,
        *,
        whole: bool,
        needs_s: float = 0.0,
        least: int = 1,
    ) -> Sales:
        """Buy up to ``count`` machines; with ``whole``, all or none. Returns (offer, machines) of
        each successful launch. A pool that did not get all is held. ``needs_s``: for so long the
        machines must stay. ``least``: fewer of them are of no use to any job.
        """
        standing = self._decisions[pool]
        if (
            count <= standing.left
            and now < standing.until
            and count <= standing.stock - self.pools[pool].live_of[standing.offer]
        ):
            standing.left -= count
            sales = [(standing.offer, count)]
        else:
            sales = self.decide(pool, count, now, whole=whole, needs_s=needs_s, least=least)
        # Under common limits this purchase may leave less room for the other pools.
        if not self.unlimited:
            self._drop_decisions(but=pool)
        return sales

    def by_need(self, pool: int, stays: Sequence[int], now: int) -> Sequence[tuple[float, int]]:
        """Return (seconds, machines) for each launch that machines need which must stay for such
        times, the shortest first.
        """
        held = [sold.offer.held for sold in self.pools[pool].sold]
        ends = {
            row.machines_end_at
            for row in held
            if row is not None and row.machines_end_at is not None and row.is_active(now)
        }
        needs = levelled(dict(enumerate(stays)), ends, self._boot_s[pool], now)
        return sorted(Counter(needs.values()).items())

    def ends_too_early(self, pool: int, count: int, needs_s: int, now: int) -> tuple[int, bool]:
        """Return until which second the answer holds, and whether the pool has too few machines
        that would stay for ``needs_s``, only because a reservation ends.
        """
        boot_s, offers = self._boot_s[pool], self._offers(pool, now)
        nodes = self._nodes(self.pools[pool].pool.machines)
        request = NodeRequest(id="", pool=self._pools[pool], nodes=nodes)
        scope = Scope(limits=self.limits, cloud_limits=self.cloud_limits, boot_s=boot_s)
        end = early_end([(request, offers)], count, needs_s, scope, now, may_wait=False)
        ends = (None if offer.held is None else offer.held.machines_end_at for offer in offers)
        latest_starts = (
            floor(end - boot_s - stay_s - SLACK_S)
            for end in ends if end is not None
            for stay_s in (0, needs_s)
        )  # fmt: skip
        turns = [start + 1 for start in latest_starts if start >= now]
        return min([*turns, *self._turns_of_reservations(now)], default=NEVER), end is not None

    def room(self, pool: int, count: int, now: int) -> PurchaseRoom | None:
        """Return how many of ``count`` more machines limits and cool-downs leave; None if they
        bound no machine of the pool.
        """
        if self.unlimited and not self.cool_downs:
            return None
        if self.held:  # as a reservation comes to its end, its machines no longer suit
            return self._read_room(pool, count, now)
        # Growth asks at each look, and most states come again.
        answers, key = self.answers(now), ("room", pool, count, self.live_machines())
        if key not in answers:
            remember(answers, key, self._read_room(pool, count, now))
        room: PurchaseRoom | None = answers[key]
        return room

    def rooms_hold_until(self, now: int) -> int:
        """Return until which second ``room`` answers the same, if no machine starts or ends and no
        cool-down begins.
        """
        if self.held:  # as a reservation comes to its end, its machines no longer suit
            return now + 1
        return NEVER if self.answers(now) is self._timeless else self.next_change(now)

    def _read_room(self, pool: int, count: int, now: int) -> PurchaseRoom | None:
        scope = self._scope(now, pool, ())
        if self.unlimited and not scope.exclusions:
            return None
        request = NodeRequest(id="", pool=self._pools[pool], nodes=self._nodes(count))
        return purchase_room(request, self._offers(pool, now), scope, now, self.keys)

    def review(self, now: int, *, waited_for: bool) -> bool:
        """Release the nodes of held pools that can be served again; all nodes if no job waits.
        Returns True if a node was released.
        """
        has_released = False
        for pool in [pool for pool, until in self._held_until.items() if until <= now]:
            machines = self.pools[pool]
            room = machines.held
            if waited_for:
                room = min(room, self._room(pool, now))
            machines.held -= room
            has_released = has_released or room > 0
            if machines.held:
                self._hold(pool, now)
            else:
                del self._held_until[pool]
        return has_released

    def taken(self, pool: int, offer: int, now: int) -> None:
        """Cool an offer down after the cloud took machines of it."""
        key = self.pools[pool].sold[offer].offer.key
        cooling = after_interruption(key, "", now, self.seconds)
        before = self.cool_downs.get(key)
        if before is None or before.until < cooling.until:
            self._cool(cooling)

    def terms(self, pool: int, partition: str, count: int, now: int, boot_s: int) -> PoolTerms:
        """Return the terms of a pool for jobs of up to ``count`` machines."""
        request = NodeRequest(id="", pool=self._pools[pool], nodes=self._nodes(count))
        offers, scope = self._offers(pool, now), self._scope(now, pool, ())
        return terms_of(
            request, partition, offers, scope, now, self.keys, boot_s=float(boot_s),
            lease_s=self.pools[pool].pool.billing.lease,
            minimum_s=float(self.pools[pool].pool.billing.minimum),
            traffic=self.pools[pool].pool.traffic,
        )  # fmt: skip

    def slack(self, pool: int, count: int, now: int) -> int:
        """Return how many machines, of any pools, may be launched before a limit could change the
        terms of this pool for jobs of up to ``count`` machines; -1 if a limit matters already.
        """
        request = NodeRequest(
            id="", pool=self._pools[pool], nodes=self._nodes(count + MAX_NODES_AHEAD)
        )
        offers, scope = self._offers(pool, now), self._scope(now, pool, ())
        placement = rank(request, offers, scope, now, self.keys)
        unused = rank(request, offers, replace(scope, usage=Usage()), now, self.keys)
        if len(unused.rejected) < len(placement.rejected):
            return -1
        room = min((ranked.room for ranked in placement.ranked), default=PLENTY) - count
        # Under a limit of dollars one machine may take the room of several cheaper machines. The
        # rooms are rounded down, so one machine more may be gone.
        return int((room - 1) / self._price_ratio) if room > 0 else -1

    def next_change(self, now: int) -> int:
        """Return the next second at which a price changes, a cool-down ends, or a reservation
        begins or ends.
        """
        changes = [
            sold.market.curve.next_change(now)
            for machines in self.pools
            for sold in machines.sold
            if sold.market is not None
        ]
        ends = [ceil(c.until) for c in self.cool_downs.values() if c.until > now]
        ends += self._turns_of_reservations(now)
        return min([*ends, *(change for change in changes if change is not None)], default=NEVER)

    def _turns_of_reservations(self, now: int) -> list[int]:
        """Return the seconds after ``now`` at which reservations begin and end."""
        turns = [
            ceil(when)
            for held in self.held
            for when in (held.begins_at, held.machines_end_at, held.ends_at)
            if when is not None
        ]
        return [when for when in turns if when > now]

    def store_in(self, decisions: Sequence[StoredDecision]) -> None:
        """Store decisions in these places, one for each pool, where the compiled engine reads
        them.
        """
        self._decisions = list(decisions)

    def decide(
        self, pool: int, count: int, now: int, *, whole: bool, needs_s: float, least: int
    ) -> Sales:
        """Buy as ``buy`` does, by a new decision, or by the decision of an equal state."""
        if self._timeless is None or self.cool_downs:
            return self._decide(pool, count, now, whole=whole, needs_s=needs_s, least=least)
        # Without ``least``: these offers have any number of machines.
        key = "sales", pool, count, whole, self.live_machines()
        standing = self._decisions[pool]
        answer = self._timeless.get(key)
        if answer is not None:
            self._drop_decisions()
            standing.offer, standing.left, standing.until, standing.stock = answer[0]
            return list(answer[1])
        standing.offer, standing.until, standing.stock = 0, -1, 0
        sales = self._decide(pool, count, now, whole=whole, needs_s=needs_s, least=least)
        if sum([machines for _, machines in sales]) == count and not self.cool_downs:
            stored = standing.offer, standing.left, standing.until, standing.stock
            remember(self._timeless, key, (stored, tuple(sales)))
        return sales

    def _decide(
        self, pool: int, count: int, now: int, *, whole: bool, needs_s: float, least: int
    ) -> Sales:
        machines, names = self.pools[pool], self._nodes(count)
        request = NodeRequest(id="", pool=self._pools[pool], nodes=names, needs_s=needs_s)
        if least > 1:
            request = replace(request, least_by_node=dict.fromkeys(names, least))
        gangs = (Gang(nodes=names, job=0),) if whole else tuple(Gang(nodes=(n,)) for n in names)
        self._drop_decisions()
        sales: Sales = []
        served = spare = 0
        earlier_refusals: dict[str, int] = {}
        while served < count:
            offers, scope = self._offers(pool, now), self._scope(now, pool, sales)
            decided = next_launch(
                request, gangs, names[:served], offers, scope, now, keys=self.keys
            )
            if not decided.nodes:
                spare = decided.spare_nodes
                if pool not in self.refusals:
                    cause = shortfall(request, offers, scope, now, self.keys)
                    self.refusals[pool] = str(cause or "")
                break
            requested, offer = len(decided.nodes), decided.offers[0]
            index = self._offer_index[pool][offer.key]
            delivered = min(requested, machines.stock(index, now, sales))
            delivered = _kept_part(delivered, decided.least, machines)
            if 0 < delivered < requested:
                rows = self.cool_downs.values()
                earlier_refusals[offer.key] = strikes_of(rows, offer.key, now)
            self._update_cool_down(offer, delivered, requested, now)
            if delivered > 0:
                sales.append((index, delivered))
                served += delivered
            # The next job may be too long for a reservation that this one fits.
            if served == count == requested == delivered and not self._ending[pool]:
                self._store_decision(pool, count, decided.placement, scope, now)
        if served == count:
            return sales
        if whole:
            machines.waste(sales, now)
            self._count_as_refused(earlier_refusals, now)
            sales, served = [], 0
        room = max(machines.room() - served, 0)
        machines.held += room - min(spare, max(room - (count - served), 0))
        self._hold(pool, now)
        return sales

    def _update_cool_down(self, offer: Offer, delivered: int, requested: int, now: int) -> None:
        """Update the offer's cool-down from the cloud's answer."""
        if delivered <= 0:
            earlier_refusals = strikes_of(self.cool_downs.values(), offer.key, now)
            durations = self.seconds, self.longest
            cool_down = after_refusal(
                offer.key, earlier_refusals, now, *durations, _NO_CAPACITY, _NONE_LEFT
            )
            self._cool(cool_down)
        elif delivered < requested:
            self._cool(after_partial(offer.key, delivered, requested, now, self.seconds))
        else:
            for key in keys_of(offer):
                if self.cool_downs.pop(key, None) is not None:
                    self.version += 1

    def _count_as_refused(self, earlier_refusals: Mapping[str, int], now: int) -> None:
        """Count partial answers as refusals, because the machines were too few for their job, as
        slurm-elasticd does (``controller/launching/launch.py``, ``count_as_refused``).
        """
        for key, count in earlier_refusals.items():
            cause = self.cool_downs[key].cause
            self._cool(after_refusal(key, count, now, self.seconds, self.longest, PARTIAL, cause))

    def _cool(self, cooling: Exclusion) -> None:
        self.cool_downs[cooling.scope] = cooling
        self.version += 1
        self._drop_decisions()

    def _store_decision(
        self, pool: int, count: int, placement: Placement, scope: Scope, now: int
    ) -> None:
        """Store the decision, with the number of further machines for which it stays right."""
        machines, standing = self.pools[pool], self._decisions[pool]
        best, room = placement.ranked[0].offer, PLENTY
        if not self.unlimited:
            large_request = NodeRequest(
                id="", pool=self._pools[pool], nodes=self._nodes(MAX_NODES_AHEAD)
            )
            offers = self._offers(pool, now)
            if placement.rejected:
                unused = rank(large_request, offers, replace(scope, usage=Usage()), now, self.keys)
                # A limit excludes an offer now, but may not exclude it when usage has changed.
                if len(unused.rejected) < len(placement.rejected):
                    return
            best_ranked = rank(large_request, offers, scope, now, self.keys).ranked[0]
            best, room = best_ranked.offer, best_ranked.room - count
        standing.offer, standing.left = self._offer_index[pool][best.key], room
        standing.stock, until = machines.stocked(standing.offer, now)
        for sold in machines.sold:
            change = None if sold.market is None else sold.market.curve.next_change(now)
            until = until if change is None else min(until, change)
        for cooling in self.cool_downs.values():
            if now < cooling.until < until:
                until = ceil(cooling.until)
        standing.until = min([until, *self._turns_of_reservations(now)])

    def _drop_decisions(self, but: int = -1) -> None:
        """Drop the stored decisions of all pools except ``but``."""
        for pool, standing in enumerate(self._decisions):
            if pool != but:
                standing.left = 0

    def _hold(self, pool: int, now: int) -> None:
        """Hold the pool until its cloud's first cool-down ends. Without a cool-down, a limit blocks
        it, and it is held for ``seconds``.
        """
        cloud = self._pools[pool].cloud
        cooling = [
            c.until for key, c in self.cool_downs.items()
            if c.until > now and key.partition("/")[0] == cloud
        ]  # fmt: skip
        until = ceil(min(cooling, default=now + self.seconds))
        self._held_until[pool] = until
        self._later(until)

    def _room(self, pool: int, now: int) -> int:
        """Return how many of the held nodes could be served by offers now."""
        nodes = self._nodes(self.pools[pool].held)
        request = NodeRequest(id="", pool=self._pools[pool], nodes=nodes)
        offers, scope = self._offers(pool, now), self._scope(now, pool, ())
        return sum(offer.room for offer in serving(request, offers, scope, now, self.keys))

    def _offers(self, pool: int, now: int) -> list[Offer]:
        """Return the pool's offers with the prices of ``now``."""
        return [
            sold.offer if sold.market is None or sold.offer.market is not Market.SPOT
            else replace(sold.offer, price=sold.market.curve.at(now))
            for sold in self.pools[pool].sold
        ]  # fmt: skip

    def _scope(self, now: int, pool: int, sales: Sales | tuple[()]) -> Scope:
        usage = Usage()
        if not self.unlimited:
            usage = _fixed_prices(self.held, now)
            for pool_of_machines, machines in zip(self._pools, self.pools, strict=True):
                if not machines.pool.limited:
                    continue
                for sold, live in zip(machines.sold, machines.live_of, strict=True):
                    usage = used_by(usage, pool_of_machines, sold.offer, live) if live else usage
            for index, count in sales:
                usage = used_by(usage, self._pools[pool], self.pools[pool].sold[index].offer, count)
        cooling = tuple(
            c for key, c in self.cool_downs.items()
            if c.until > now and touches(key, self._pools[pool])
        )  # fmt: skip
        return Scope(
            limits=self.limits, cloud_limits=self.cloud_limits, usage=usage, exclusions=cooling,
            boot_s=self._boot_s[pool],
        )  # fmt: skip

    def _nodes(self, count: int) -> tuple[str, ...]:
        if count > len(self._names):
            self._names = tuple(str(number) for number in range(count))
        return self._names[:count]


def _kept_part(delivered: int, least: int, machines: PoolMachines) -> int:
    """Return how many of the machines start, of which the jobs need at least so many."""
    return 0 if machines.pool.refuses_parts and delivered < least else delivered


def _fixed_prices(held: Sequence[Held], now: int) -> Usage:
    """Return the dollars per hour that reservations cost now, used or not."""
    dollars: dict[str, float] = {}
    for reservation in held:
        if reservation.is_paid(now):
            for scope in ("", f"cloud:{reservation.cloud}"):
                dollars[scope] = dollars.get(scope, 0.0) + reservation.fixed_per_hour
    return Usage(dollars_per_hour=dollars)


def _pool_of(machines: PoolMachines) -> Pool:
    """Return the pool in the form that the ranking needs."""
    model = machines.pool
    if model.wanted is not None:
        return model.wanted
    cloud = machines.sold[0].offer.cloud
    return Pool(
        name=model.name, cloud=cloud, nodes=(), cpus=1, real_memory=1, markets=tuple(Market)
    )


def _price_ratio(pools: Sequence[PoolMachines]) -> float:
    """Return how many of the cheapest machines cost as much as one of the dearest, at the prices
    that count for limits.
    """
    prices = [sold.offer.worst_price for machines in pools for sold in machines.sold]
    above_zero = [price for price in prices if price > 0]
    return max(above_zero) / min(above_zero) if above_zero else 1.0
