"""The machines of the independent simulator: plain lists of single machines, who may be bought, and
what each has cost. Nothing of the simulator's engine is used, only the values of a scenario: prices,
stocks and boot times are looked up here once more.

Rules that the documentation leaves open, as they are taken here:

- a limit counts what was bought from a cloud and is not over, also what waits for its turn to boot
  or was bought in this very moment, and a cloud's standing machines; never the site's own;
- a job's purchase is tried only where the offers together have room for all that it lacks; where
  they have not, nothing is bought and nothing cools down, only the pool is held;
- a pool that could not give all is held: none of its nodes starts until the first cool-down of its
  cloud ends (without one: for the time of a first cool-down), but for those that the offers still
  have room for and the job had not asked for. Then as many are let go as the offers have room for,
  or all where no job waits;
- an offer that gave only a part cools down for the first cool-down's time, and its next refusal is
  a first one again, unless its machines were too few for their job: then it has refused; an offer whose machines were taken cools down as for one refusal, unless it does
  so for longer already. A refusal counts in a row with one whose cool-down ended less than an hour
  ago; a launch that gave all forgets what its offer had refused;
- of the machines that a cloud takes, the youngest launch goes first, of one launch those that are
  idle (the one idle for longest first), those that boot for nobody, those of the job last begun;
- machines bought in one decision boot together; where turns are short, in waves, each as large as
  may start then, and each is launched, and paid, from its turn on;
- machines with equal margins are given out the last idle first (where the release policy goes by idle
  time), then the youngest (``min_margin``: the other way round); those that became idle together, by the order in which their job had got them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from slurm_elastic.model.cluster import Limits, Market, Offer
from slurm_elastic.policies.growth.release import Delayed, Idle
from slurm_elastic.simulate.bills.billing import Hourly, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario, Sold

HOUR = 3600
PLENTY = 10**9


@dataclass(eq=False)
class Machine:
    """One machine. ``launch`` numbers launches; ``offer`` None: it stands there; ``in_use``
    numbers the times at which machines got their first job. ``kept_at``: when it last was due but
    waited for the other machines of a job.
    """

    pool: int
    offer: int | None
    launch: int
    begun: int
    ready: int
    idle_since: int
    jobs: list[int] = field(default_factory=list)
    in_use: int = 0
    idle_number: int = 0
    up: bool = False
    kept_at: int = -1


@dataclass
class CoolDown:
    """An offer is not asked until then."""

    until: float
    strikes: int


@dataclass
class Lease:
    """A machine as it is paid."""

    pool: int
    offer: int | None
    begun: int
    end: int
    taken: bool


class Cap:
    """So many machines boot at a time: (from, until) of each boot."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.boots: list[tuple[int, int]] = []

    def free(self, begin: int, end: int) -> int:
        """How many more may boot from ``begin`` to ``end``."""
        moments = [begin, *(start for start, _ in self.boots if begin < start < end)]
        return self.most - max(sum(b <= at < e for b, e in self.boots) for at in moments)


class Site:
    """All machines there are, and what there was."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.pools = list(scenario.pools)
        self.sold: list[tuple[Sold, ...]] = [pool.sold for pool in self.pools]
        self.machines: list[Machine] = []
        self.leases: list[Lease] = []
        self.held = [0] * len(self.pools)
        self.held_until: dict[int, int] = {}
        self.cooling: dict[str, CoolDown] = {}
        self.launches = 0
        own = [[Cap(p.max_booting)] if p.max_booting is not None else [] for p in self.pools]
        for shared in scenario.boot_caps:
            cap = Cap(shared.machines)
            for caps, pool in zip(own, self.pools, strict=True):
                caps += [cap] if pool.name in shared.pools else []
        self.caps = own
        self.yields = self._yielding()

    # what is there

    def of(self, pool: int) -> list[Machine]:
        """The pool's machines, those that boot too."""
        return [machine for machine in self.machines if machine.pool == pool]

    def idle(self, pool: int, now: int) -> list[Machine]:
        """Its machines without work, those that a job gets first first."""
        there = [m for m in self.of(pool) if not m.jobs and m.up]
        return sorted(there, key=lambda m: self._preference(m, now))

    def room(self, pool: int) -> int:
        """How many more of its nodes may get machines."""
        return self.pools[pool].machines - len(self.of(pool)) - self.held[pool]

    def _preference(self, machine: Machine, now: int) -> tuple[int, int, int]:
        lease, order = self.pools[machine.pool].billing.lease, str(self.scenario.order)
        margin = lease - (now - machine.begun) % lease
        since = machine.idle_since if self._counts_idle_time(machine.pool) else 0
        if order == "max_margin":
            return (-margin, -since, -machine.launch)
        if order == "min_margin":
            return (margin, since, machine.launch)
        if order == "max_idle":
            return (0, machine.idle_number, machine.launch)
        return (0, -machine.idle_number, -machine.launch)

    def _counts_idle_time(self, number: int) -> bool:
        pool = self.pools[number]
        by_lease = pool.public and pool.billing.lease > 1
        return isinstance(pool.release, Idle) or (
            isinstance(pool.release, Delayed) and not by_lease
        )

    # how they come

    def stand(self, now: int) -> None:
        """The standing machines are there from the first second on."""
        for number, pool in enumerate(self.pools):
            for _ in range(pool.standing):
                self.machines.append(Machine(number, None, 0, now, now, now, up=True))

    def boot_waves(
        self, pool: int, count: int, now: int, *, book: bool
    ) -> list[tuple[int, int, int]]:
        """(turn, ready, wave) of each of ``count`` machines that are asked for together."""
        caps, boot = self.caps[pool], self.pools[pool].boot
        before = [list(cap.boots) for cap in caps]
        found: list[tuple[int, int, int]] = []
        turn, waves = now, 0
        while len(found) < count:
            left = count - len(found)
            fits = [
                part
                for part in range(1, left + 1)
                if all(cap.free(turn, turn + boot_seconds(boot, part)) >= part for cap in caps)
            ]
            if fits:
                ready, waves = turn + boot_seconds(boot, fits[-1]), waves + 1
                found += [(turn, ready, waves)] * fits[-1]
                for cap in caps:
                    cap.boots += [(turn, ready)] * fits[-1]
            else:
                turn = min(end for cap in caps for _, end in cap.boots if end > turn)
        if not book:
            for cap, boots in zip(caps, before, strict=True):
                cap.boots = boots
        return found

    def launch(self, pool: int, offers: list[int], now: int) -> list[Machine]:
        """Machines of these offers, launched at once or when their turn comes."""
        waves = self.boot_waves(pool, len(offers), now, book=True)
        pays_boots = self.pools[pool].clock is Clock.REQUEST
        numbers: dict[tuple[int, int], int] = {}
        found = []
        for offer, (turn, ready, wave) in zip(offers, waves, strict=True):
            if (wave, offer) not in numbers:
                self.launches += 1
                numbers[wave, offer] = self.launches
            begun = turn if pays_boots else ready
            found.append(Machine(pool, offer, numbers[wave, offer], begun, ready, ready))
        self.machines += found
        return found

    def end(self, machine: Machine, now: int, *, taken: bool = False) -> None:
        """It is let go, or taken by its cloud."""
        self.machines.remove(machine)
        self.leases.append(Lease(machine.pool, machine.offer, machine.begun, now, taken))

    # how they are bought

    def stock(self, pool: int, offer: int, now: int, bought: list[int]) -> int:
        """How many of an offer its cloud has left."""
        sold = self.sold[pool][offer]
        if sold.market is None:
            return PLENTY
        return (
            self.most(sold, now)
            - len(self.same_stock(pool, offer))
            - sum(self.shares(pool, offer, other) for other in bought)
        )

    def most(self, sold: Sold, now: int) -> int:
        """How many of it there are in all: none where the price is above the bid."""
        market = sold.market
        assert market is not None
        if market.bid is not None and price_at(market, now) > market.bid:
            return 0
        if not market.available:
            return PLENTY
        times, counts = zip(*market.available, strict=True)
        return held(times, counts, now)

    def shares(self, pool: int, one: int, other: int) -> bool:
        """Whether two offers of a pool sell the same machines."""
        first, second = self.sold[pool][one], self.sold[pool][other]
        return one == other or bool(first.stock and first.stock == second.stock)

    def same_stock(self, pool: int, offer: int) -> list[Machine]:
        """All machines of the stock that an offer sells."""
        return [
            m for m in self.of(pool) if m.offer is not None and self.shares(pool, offer, m.offer)
        ]

    def price(self, pool: int, offer: int, now: int) -> float:
        """The cloud asks this for it now."""
        sold = self.sold[pool][offer]
        return sold.offer.price if sold.market is None else price_at(sold.market, now)

    def buy(self, pool: int, count: int, now: int, *, whole: bool, least: int = 1) -> list[int]:
        """The offer of each machine that was to be had; where ``whole`` all or none. A cloud that
        refuses parts starts no fewer than are of use (``least``) from the last offer.
        """
        bought: list[int] = []
        parts: dict[str, int] = {}
        spare = 0
        while len(bought) < count:
            lacks = count - len(bought)
            ranked = self._ranked(pool, lacks, now, bought)
            rooms = self._rooms(pool, lacks, now, bought)
            if not rooms or (whole and rooms < lacks):
                spare = rooms
                break
            offer = ranked[0][0]
            wanted = min(ranked[0][1], lacks, rooms)
            given = max(min(wanted, self.stock(pool, offer, now, bought)), 0)
            of_use = wanted if whole else min(least, wanted)
            if self.pools[pool].refuses_parts and len(ranked) == 1 and given < of_use:
                given = 0
            if 0 < given < wanted:
                key = self.sold[pool][offer].offer.key
                parts[key] = self._strikes(key, now)
            self._answered(pool, offer, wanted, given, now)
            bought += [offer] * given
        if len(bought) == count:
            return bought
        if whole:
            self.leases += [Lease(pool, offer, now, now, taken=False) for offer in bought]
            for key, strikes in parts.items():
                self._refused(key, strikes, now)
            bought = []
        left = max(self.room(pool) - len(bought), 0)
        unasked = max(left - (count - len(bought)), 0)
        self.held[pool] += left - min(spare, unasked)
        self.hold(pool, now)
        return bought

    def hold(self, pool: int, now: int) -> None:
        """Until the first cool-down of its cloud ends."""
        cloud = self.sold[pool][0].offer.cloud
        ends = [
            cool.until
            for key, cool in self.cooling.items()
            if key.split("/")[0] == cloud and cool.until > now
        ]
        first = max(self.scenario.cool_downs.capacity, 1.0)
        self.held_until[pool] = math.ceil(min(ends, default=now + first))

    def review(self, now: int, *, waited_for: bool) -> None:
        """Let go of nodes that can be served again, where a hold is over."""
        for pool in [pool for pool, until in self.held_until.items() if until <= now]:
            free = self.held[pool]
            if waited_for:
                free = min(free, self._rooms(pool, free, now, []))
            self.held[pool] -= free
            del self.held_until[pool]
            if self.held[pool]:
                self.hold(pool, now)

    def was_taken(self, pool: int, offer: int, now: int) -> None:
        """Its cloud takes machines of it back."""
        key = self.sold[pool][offer].offer.key
        until = now + max(self.scenario.cool_downs.capacity, 1.0)
        if key not in self.cooling or self.cooling[key].until < until:
            self.cooling[key] = CoolDown(until, 1)

    def _answered(self, pool: int, offer: int, wanted: int, given: int, now: int) -> None:
        key = self.sold[pool][offer].offer.key
        first = max(self.scenario.cool_downs.capacity, 1.0)
        if given == wanted:
            self.cooling.pop(key, None)
        elif given:
            self.cooling[key] = CoolDown(now + first, 0)
        else:
            self._refused(key, self._strikes(key, now), now)

    def _strikes(self, key: str, now: int) -> int:
        """How many refusals of an offer in a row count."""
        known = self.cooling.get(key)
        return known.strikes if known and known.until > now - HOUR else 0

    def _refused(self, key: str, strikes: int, now: int) -> None:
        first = max(self.scenario.cool_downs.capacity, 1.0)
        longest = max(self.scenario.cool_downs.longest, first)
        self.cooling[key] = CoolDown(now + min(first * 2**strikes, longest), strikes + 1)

    def _ranked(self, pool: int, count: int, now: int, used: list[int]) -> list[tuple[int, int]]:
        """(offer, room) of those that may be asked, the one to ask first first: on-premises before
        public, reserved, spot, on-demand, then the cheaper, then by name.
        """
        found = []
        for number, sold in enumerate(self.sold[pool]):
            offer, price = sold.offer, self.price(pool, number, now)
            key, dearest = offer.key, offer.on_demand_price
            if key in self.cooling and self.cooling[key].until > now:
                continue
            if offer.market is Market.SPOT and dearest is not None and price >= dearest:
                continue
            room = min(count, self._limited(pool, number, used))
            market = [Market.RESERVED, Market.SPOT, Market.ON_DEMAND].index(offer.market)
            if room > 0:
                public = str(offer.location) != "on-premises"
                found.append(((public, market, price, key), number, room))
        return [(number, room) for _, number, room in sorted(found)]

    def _rooms(self, pool: int, count: int, now: int, used: list[int]) -> int:
        """How many of ``count`` machines all offers together have room for."""
        return len(self.buyable(pool, count, now, used))

    def buyable(self, pool: int, count: int, now: int, used: list[int]) -> list[int]:
        """The offer of each of ``count`` machines for which all offers together have room."""
        found: list[int] = []
        while len(found) < count:
            ranked = self._ranked(pool, count - len(found), now, [*used, *found])
            ranked = [one for one in ranked if one[0] not in found]
            if not ranked:
                break
            offer, room = ranked[0]
            found += [offer] * room
        return found

    def bounds(self, buyable: dict[int, list[int]]) -> list[tuple[float, dict[int, float]]]:
        """What is left of each limit, and what a machine of each pool takes of it: on average, of
        the machines that the pool alone could buy.
        """
        found: dict[str, tuple[float, dict[int, float]]] = {}
        for pool, offers in buyable.items():
            for number in offers:
                mine = self.sold[pool][number].offer
                for key, left, cost in self._taken(pool, mine):
                    costs = found.setdefault(key, (left, {}))[1]
                    costs[pool] = costs.get(pool, 0.0) + cost / len(offers)
        return [*found.values()]

    def _taken(self, pool: int, mine: Offer) -> list[tuple[str, float, float]]:
        """(limit, what is left of it, what a machine takes)."""
        there = [
            self.sold[m.pool][-1 if m.offer is None else m.offer].offer
            for m in self.machines
            if self.pools[m.pool].limited
        ]
        own_cloud = [one for one in there if one.cloud == mine.cloud]
        of_cloud = self.scenario.cloud_limits.get(mine.cloud, Limits())
        found: list[tuple[str, float, float]] = []
        for name, limits, used in (
            ("", self.scenario.limits, there),
            (mine.cloud, of_cloud, own_cloud),
        ):
            if limits.nodes is not None:
                found.append((f"{name} nodes", limits.nodes - len(used), 1.0))
            most = {Market.SPOT: limits.spot, Market.ON_DEMAND: limits.on_demand}.get(mine.market)
            if most is not None:
                there_now = sum(one.market is mine.market for one in used)
                found.append((f"{name} {mine.market}", most - there_now, 1.0))
            if limits.dollars_per_hour is not None:
                left = limits.dollars_per_hour - sum(one.worst_price for one in used)
                found.append((f"{name} dollars", left, mine.worst_price))
        return found

    def _limited(self, pool: int, offer: int, used: list[int]) -> int:
        """How many more machines of an offer the limits leave, beside those of ``used`` just now."""
        mine = self.sold[pool][offer].offer
        all_offers = [
            self.sold[m.pool][-1 if m.offer is None else m.offer].offer
            for m in self.machines
            if self.pools[m.pool].limited
        ]
        all_offers += [self.sold[pool][one].offer for one in used]
        own_cloud = [one for one in all_offers if one.cloud == mine.cloud]
        cloud_limits = self.scenario.cloud_limits.get(mine.cloud, Limits())
        found = PLENTY
        for limits, there in ((self.scenario.limits, all_offers), (cloud_limits, own_cloud)):
            if limits.nodes is not None:
                found = min(found, limits.nodes - len(there))
            market = {Market.SPOT: limits.spot, Market.ON_DEMAND: limits.on_demand}
            most = market.get(mine.market)
            if most is not None:
                found = min(found, most - sum(one.market is mine.market for one in there))
            if limits.dollars_per_hour is not None and mine.worst_price > 0:
                left = limits.dollars_per_hour - sum(one.worst_price for one in there)
                found = min(found, math.floor(left / mine.worst_price + 1e-9))
        return max(found, 0)

    def _yielding(self) -> list[bool]:
        """Pools that can reach a limit together: their idle machines go although jobs wait."""
        scenario = self.scenario
        limited = [p for p, pool in enumerate(self.pools) if pool.limited]
        scopes = [(scenario.limits, limited)]
        for cloud, limits in scenario.cloud_limits.items():
            scopes.append((limits, [p for p in limited if self.sold[p][0].offer.cloud == cloud]))
        found = [False] * len(self.pools)
        for limits, members in scopes:
            growing = [p for p in members if self.pools[p].machines > self.pools[p].standing]
            if len(growing) > 1 and self._reachable(limits, members):
                for pool in growing:
                    found[pool] = True
        return found

    def _reachable(self, limits: Limits, members: list[int]) -> bool:
        most = {p: self.pools[p].machines for p in members}
        dearest = {p: max(s.offer.worst_price for s in self.sold[p]) for p in members}

        def of_market(market: Market) -> int:
            return sum(
                most[p] for p in members if any(s.offer.market is market for s in self.sold[p])
            )

        return (
            (limits.nodes is not None and sum(most.values()) > limits.nodes)
            or (limits.spot is not None and of_market(Market.SPOT) > limits.spot)
            or (limits.on_demand is not None and of_market(Market.ON_DEMAND) > limits.on_demand)
            or (
                limits.dollars_per_hour is not None
                and sum(most[p] * dearest[p] for p in members) > limits.dollars_per_hour
            )
        )

    # what they cost

    def bills(self) -> list[float]:
        """Dollars by pool."""
        found = [0.0] * len(self.pools)
        for lease in self.leases:
            found[lease.pool] += self.bill(lease)
        return found

    def bill(self, lease: Lease) -> float:
        """Each hour, begun at the lease's begin, at the price at its beginning."""
        if lease.begun > lease.end:
            return 0.0  # paid from its readiness on, and taken before
        pool = self.pools[lease.pool]
        sold = self.sold[lease.pool][-1 if lease.offer is None else lease.offer]
        total, at = 0.0, lease.begun
        left = paid_seconds(pool, lease.end - lease.begun, taken=lease.taken)
        while left > 0:
            price = sold.offer.price if sold.market is None else price_at(sold.market, at)
            total += min(left, HOUR) / HOUR * price
            left -= HOUR
            at += HOUR
        return total

    def history(self) -> Counter[tuple[int, int | None, int, int, bool]]:
        """How many machines were launched and let go when."""
        return Counter((le.pool, le.offer, le.begun, le.end, le.taken) for le in self.leases)


Value = TypeVar("Value", int, float)


def held(times: Sequence[int], values: Sequence[Value], now: int) -> Value:
    """The value of now: each holds from its time on, the first one also before."""
    found = values[0]
    for when, value in zip(times, values, strict=True):
        if when <= now:
            found = value
    return found


def price_at(market: SpotMarket, now: int) -> float:
    """Dollars an hour of a machine."""
    return held(market.curve.times, market.curve.prices, now)


def changes(market: SpotMarket) -> list[int]:
    """The seconds at which there may be fewer machines of it, or more."""
    return sorted({*market.curve.times, *(when for when, _ in market.available)})


def boot_seconds(boot: BootTimes, count: int) -> int:
    """From the launch of so many machines together to their readiness: between the sizes that are
    known by the logarithm of the size, beyond them as for the next one.
    """
    points = boot.points
    found = points[0][1] if count <= points[0][0] else points[-1][1]
    for (small, low), (large, high) in pairwise(points):
        if small < count <= large:
            part = (math.log2(count) - math.log2(small)) / (math.log2(large) - math.log2(small))
            found = low + part * (high - low)
    return round(found) + boot.configure


def paid_seconds(pool: PoolModel, seconds: int, *, taken: bool) -> int:
    """The seconds of a lease that are paid."""
    billing = pool.billing
    if isinstance(billing, PerSecond):
        return max(seconds, billing.minimum)
    assert isinstance(billing, Hourly)
    if billing.refund and taken:
        return seconds // billing.seconds * billing.seconds
    return max(math.ceil(seconds / billing.seconds), 1) * billing.seconds
