"""The machines of one pool as they come and go: batches, leases, and what they cost.

Machines launched together on one market are alike; they are a batch and only counted. A lease is
(batch, start, end, machines, reclaimed); all leases are kept as columns, so that the bill can be
made again at the end and compared.

Machine-seconds are sums of machines x (end - begin) to which each begin and each end adds its part
when it is known, in any order; while machines are there, a sum lacks their ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from slurm_elastic.model.cluster import Limits, Market, Offer
from slurm_elastic.policies.growth.release import Delayed, Flagged, Idle, Order
from slurm_elastic.policies.growth.scaling import spare
from slurm_elastic.simulate.billing import HOUR, dollars
from slurm_elastic.simulate.boot_slots import Turns, last_ready, waves
from slurm_elastic.simulate.idle_set import Pieces, idle_machines
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.market import NEVER, PLENTY, SpotMarket
from slurm_elastic.simulate.reservations import Profile
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario, Sold
from slurm_elastic.simulate.shared_machines import SharedMachines

Sales = list[tuple[int, int]]
"""(offer, machines): what launches gave."""

_COUNT = (1 << 32) - 1
_FAR = 1 << 192


def expectation(when: int, serial: int, count: int) -> int:
    """``count`` machines are expected to be free at ``when``; sorts by that, then by ``serial``."""
    return (when << 32 | serial) << 32 | count


class Machines:
    """State of one pool. ``idle``, ``busy`` and ``booting`` count machines; ``yields``: idle ones
    go when they are due although jobs wait.
    """

    def __init__(self, pool: PoolModel, order: Order, seed: int) -> None:
        self.pool, self.most = pool, pool.machines
        self.turns: tuple[Turns, ...] = ()
        self.yields = False
        self.idle = self.busy = self.booting = 0
        self.batch_start: list[int] = []
        self.batch_ready = array("q")
        self.batch_live: list[int] = []
        self.batch_spot = array("b")
        self.batch_offer = array("h")
        self.batch_due: list[int] = []
        self.lease_batch = array("q")
        self.lease_end = array("q")
        self.lease_count = array("q")
        self.lease_reclaimed = array("b")
        self.expected: list[int] = []
        self.tracks = False
        self.held = 0
        # held: nodes kept from Slurm, as no offer could serve them (those in use do not count);
        # live_of: machines by offer; falls, same_fall: see watch.
        self.sold = pool.sold
        self.spots = [i for i, s in enumerate(self.sold) if s.offer.market is Market.SPOT]
        self.live_of = [0] * len(self.sold)
        self.falls = [-1] * len(self.sold)
        self._same_fall = [(0, 0)] * len(self.sold)
        self._on_spot = [s.market is not None for s in self.sold]
        self._sharing = [
            [i for i, s in enumerate(self.sold) if s is one or (one.stock and s.stock == one.stock)]
            for one in self.sold
        ]
        self.shared: SharedMachines | None = None
        self.rates = [_rate(s.offer) for s in self.sold]
        # reclaimed: machines that the cloud took; promised: busy ones that have no names yet;
        # booked: batches that boot for a job, coming: others that boot, with when they are ready;
        # due: what may go when;
        # parked: what was due while jobs waited; expected: sorted (when, job or batch, machines),
        # each in one integer, kept once it is asked for (tracks).
        self.parked: list[tuple[int, int]] = []
        self.due: dict[int, list[tuple[int, int]]] = {}
        self.launched = self.released = self.launches = self.releases = self.peak = 0
        self.spot_live = self.spot_area = self.reclaimed = self.billed = 0
        self.draining = self.promised = 0
        self.booked: set[int] = set()
        self.coming: dict[int, int] = {}
        self.dollars = {"on-demand": 0.0, "spot": 0.0}
        self.busy_area = self.up_area = 0
        self._pays_boots = pool.clock is Clock.REQUEST
        self._public, self._billed = pool.public, pool.billing.billed
        self._due = pool.release.due
        self._lease = pool.billing.lease
        self._grid = pool.grid
        # after: seconds from idle to due, where the idle time alone counts
        self._after = pool.release.due(0, 0, 0, 1, public=pool.public) if pool.release.stays else -1
        self._born = 0
        self._boots: dict[int, int] = {}
        self._flagged = isinstance(pool.release, Flagged)
        steady = isinstance(pool.release, Delayed) and pool.public and self._lease > 1
        self._sinces = order in (Order.MAX_IDLE, Order.MIN_IDLE) or (
            not steady and isinstance(pool.release, Delayed | Idle)
        )
        self.free = idle_machines(order, self.batch_start, self._lease, seed, sinces=self._sinces)
        self._put, self._take = self.free.put, self.free.take

    @property
    def up(self) -> int:
        """Machines that are there or coming."""
        return self.idle + self.busy + self.booting

    def room(self) -> int:
        """How many more may be launched."""
        return self.most - self.idle - self.busy - self.booting - self.held

    def stock(self, offer: int, now: int, sales: Sequence[tuple[int, int]] = ()) -> int:
        """How many machines of an offer its cloud has left, after these ``sales``."""
        market, same = self.sold[offer].market, self._sharing[offer]
        if market is None:
            return PLENTY
        there = sum([self.live_of[one] for one in same])
        return market.room(now) - there - sum([part for one, part in sales if one in same])

    def stocked(self, offer: int, now: int) -> tuple[int, int]:
        """How many machines of an offer there may be, and until when that holds: until now where it
        shares its stock.
        """
        market = self.sold[offer].market
        if market is None:
            return PLENTY, NEVER
        return market.rooms(now) if len(self._sharing[offer]) == 1 else (0, now)

    def market_of(self, pieces: Pieces) -> SpotMarket | None:
        """The spot market of the first of these machines that is of any."""
        of = self.batch_offer
        markets = (self.sold[of[batch]].market for batch, _ in pieces if self.batch_spot[batch])
        return next(markets, None)

    def rate(self, batch: int) -> float:
        """Dollars an hour of a machine of a batch, at the price on demand."""
        return self.rates[self.batch_offer[batch]]

    def room_now(self) -> int:
        """The same of a growth policy, which does not ask for more than the pool may boot now."""
        most, room = self.pool.max_booting, self.room()
        return room if most is None else min(room, max(most - self.booting, 0))

    def boot_seconds(self, count: int) -> int:
        """How long ``count`` machines together take to be ready."""
        seconds = self._boots.get(count)
        if seconds is None:
            seconds = self._boots[count] = self.pool.boot.seconds(count)
        return seconds

    def seconds_up(self, now: int) -> tuple[int, int]:
        """Machine-seconds until ``now`` on the spot market and on demand."""
        starts, live, spot = self.batch_start, self.batch_live, self.batch_spot
        while self._born < len(starts) and starts[self._born] <= now:
            self._born += 1
        on_spot = self.spot_area + self.spot_live * now
        others = self.up_area - self.spot_area + (self.up - self.spot_live) * now
        for batch in range(self._born, len(starts)):
            early = live[batch] * max(starts[batch] - now, 0)
            if spot[batch]:
                on_spot += early
            else:
                others += early
        return on_spot, others

    def stand(self, now: int) -> None:
        """The standing machines, there from the first second on: batch 0."""
        if self.pool.standing:
            batch = self._batch(now, self.pool.standing, len(self.sold) - 1)
            self.batch_due[batch] = NEVER
            self.idle += self.pool.standing
            self.free.put(batch, self.pool.standing, 0)
            self.peak = max(self.peak, self.up)

    def found_idle(self, started: int, since: int, now: int) -> None:
        """A machine that is there already, idle since ``since``: where a simulation does not begin
        with nothing.
        """
        batch = self._batch(started, 1, len(self.sold) - 1)
        self.idle += 1
        self.free.put(batch, 1, since if self._sinces else 0)
        if not self._flagged:
            self.look_later(batch, since if self._sinces else 0, now)

    def late(self, count: int, now: int) -> int:
        """How long ``count`` machines that are asked for now would take to be ready."""
        if not self.turns:
            return self.boot_seconds(count)
        return last_ready(self.turns, count, now, self.boot_seconds) - now

    def start(self, sales: Sales, now: int) -> list[tuple[int, Pieces]]:
        """As ``launch``, wave by wave where not all of them may boot at once."""
        if not self.turns:
            return [self.launch(sales, now)]
        count, left, started = sum([part for _, part in sales]), list(sales), []
        for begin, part in waves(self.turns, count, now, self.boot_seconds):
            wave: Sales = []
            while part:
                offer, there = left.pop(0)
                wave.append((offer, min(part, there)))
                if there > part:
                    left.insert(0, (offer, there - part))
                part -= wave[-1][1]
            started.append(self.launch(wave, now, begin))
        return started

    def launch(self, sales: Sales, now: int, turn: int | None = None) -> tuple[int, Pieces]:
        """Start machines that were bought: when they are ready, and (batch, machines). They count
        as booting until then. ``turn``: when they begin to boot, if not now.
        """
        request = now if turn is None else turn
        count = sales[0][1] if len(sales) == 1 else sum([part for _, part in sales])
        seconds = self._boots.get(count)
        ready = request + (self.boot_seconds(count) if seconds is None else seconds)
        begin = request if self._pays_boots else ready
        started = [(self._batch(begin, part, offer, ready), part) for offer, part in sales]
        self.launches += len(started)
        self.booting += count
        up = self.idle + self.busy + self.booting
        if up > self.peak:
            self.peak = up
        return ready, started

    def waste(self, sales: Sales, now: int) -> None:
        """Machines that were bought for a job that could not have all: they end at once."""
        for offer, count in sales:
            self.launches += 1
            self.end(self._batch(now, count, offer), count, now)

    def booted(self, batch: int) -> int:
        """A batch is ready; how many of it there are."""
        count = self.batch_live[batch]
        self.booting -= count
        return count

    def put_idle(self, batch: int, count: int, now: int) -> int | None:
        """Machines without work from ``now`` on; when to look whether they may go (None: known)."""
        self.idle += count
        due = self.batch_due[batch]
        if self._sinces:
            self._put(batch, count, now)
            return None if due == NEVER or self._flagged else self.look_later(batch, now, now)
        self._put(batch, count, 0)
        return None if due > now or self._flagged else self.look_later(batch, 0, now)

    def look_later(self, batch: int, since: int, now: int) -> int | None:
        """Note when these may go; that time if it is new."""
        after, grid = self._after, self._grid
        idle_since = since if self._sinces else now
        if after >= 0:
            when = idle_since + after
            if when < now:
                when = now
            when += -when % grid
        else:
            when = self._due_on_grid(self.batch_start[batch], idle_since, now)
        self.batch_due[batch] = when
        there = self.due.get(when)
        if there is None:
            self.due[when] = [(batch, since)]
            return when
        there.append((batch, since))
        return None

    def _due_on_grid(self, start: int, since: int, now: int) -> int:
        """The first look at which a machine is due whose lease says when."""
        due, lease, public, grid = self._due, self._lease, self._public, self._grid
        when = due(start, since, now, lease, public=public)
        while when % grid:
            ahead = when > now  # what begins then lasts until the next look
            when += -when % grid
            if not ahead:
                when = due(start, since, when, lease, public=public)
        return when

    def unpark(self, now: int) -> list[int]:
        """Look again at what was due and stayed; at which times, as far as these are new."""
        parked, self.parked = self.parked, []
        looks = [self.look_later(batch, since, now) for batch, since in parked]
        return [look for look in looks if look is not None]

    def take(self, count: int, now: int) -> Pieces:
        """Idle machines for a job."""
        self.idle -= count
        self.busy += count
        self.busy_area -= count * now
        return self._take(count, now)

    def end(self, batch: int, count: int, now: int, *, reclaimed: bool = False) -> None:
        """The lease of machines that are no longer counted as idle, busy or booting is over."""
        self.lease_batch.append(batch)
        self.lease_end.append(now)
        self.lease_count.append(count)
        self.lease_reclaimed.append(reclaimed)
        self.batch_live[batch] -= count
        self.live_of[self.batch_offer[batch]] -= count
        self.released += count
        start = self.batch_start[batch]
        area = count * (now if now > start else start)
        self.up_area += area
        if self.batch_spot[batch]:
            self.spot_live -= count
            self.spot_area += area

    def settle(self) -> None:
        """Make the bill of all leases, when they have ended."""
        total, paid, starts, offers = 0, [0.0, 0.0], self.batch_start, self.batch_offer
        billed, on_spot, prices = self._billed, self._on_spot, [_flat(sold) for sold in self.sold]
        rows = zip(
            self.lease_batch, self.lease_end, self.lease_count, self.lease_reclaimed, strict=True
        )
        for batch, end, count, reclaimed in rows:
            start, offer = starts[batch], offers[batch]
            if start > end:
                continue  # taken back while it booted, on a bill that begins with its readiness
            price = prices[offer]
            if price is None:
                seconds, cost = self.bill(batch, end, reclaimed=bool(reclaimed))
            else:
                seconds = billed(start, end, reclaimed=bool(reclaimed))
                cost = seconds / HOUR * price
            total += count * seconds
            paid[on_spot[offer]] += count * cost
        self.billed, self.dollars = total, {"on-demand": paid[0], "spot": paid[1]}

    def bill(self, batch: int, end: int, *, reclaimed: bool) -> tuple[int, float]:
        """(seconds that are paid, dollars) of one machine of a batch that went at ``end``."""
        start = self.batch_start[batch]
        if start > end:
            return 0, 0.0
        seconds = self._billed(start, end, reclaimed=reclaimed)
        sold = self.sold[self.batch_offer[batch]]
        if sold.market is None:
            return seconds, seconds / HOUR * sold.offer.price
        return seconds, dollars(sold.market.curve, start, seconds)

    def lose_idle(self, batch: int, most: int, now: int) -> int:
        """Idle machines of a batch are taken back by the cloud; how many."""
        lost = 0
        for one, since, _ in self.free.left():
            if one == batch and lost < most:
                count = self.free.remove(batch, since, most - lost)
                self.idle -= count
                self.end(batch, count, now, reclaimed=True)
                lost += count
        return lost

    def idle_of(self, batch: int) -> int:
        """How many machines of a batch are idle."""
        return sum([count for one, _, count in self.free.left() if one == batch])

    def lose_booting(self, batch: int, most: int, now: int) -> int:
        """Up to so many machines of a batch are taken back while they boot; how many."""
        count = min(self.batch_live[batch], most)
        if count:
            self.booting -= count
            self.end(batch, count, now, reclaimed=True)
        return count

    def lose_coming(self, batch: int, most: int, now: int) -> int:
        """The same of machines that boot for whoever comes first."""
        self.unexpect(self.coming.pop(batch))
        lost = self.lose_booting(batch, most, now)
        if self.batch_live[batch]:
            self.expect_boot(batch, self.batch_live[batch], self.batch_ready[batch])
        return lost

    def close(self, now: int) -> None:
        """Give back all that is idle, standing machines too."""
        for batch, since, _ in self.free.left():
            count = self.free.remove(batch, since, self.idle)
            if count:
                self.idle -= count
                self.end(batch, count, now)
        self.settle()

    def release_due(self, when: int, keep: int = 0) -> int:
        """Give back what is idle and due at ``when``, but for the last ``keep`` idle machines,
        which are parked; how many machines.
        """
        gone = 0
        for batch, since in self.due.pop(when, ()):
            most = spare(self.idle, keep) if keep else self.idle
            count = self.free.remove(batch, since, most)
            if keep and count == most:
                self.parked.append((batch, since))
            if count:
                self.idle -= count
                self.end(batch, count, when)
                gone += count
        self.releases += gone > 0
        return gone

    def release_idle(self, most: int, now: int) -> int:
        """Give back up to ``most`` idle machines, none that stand; how many."""
        gone = 0
        for batch, since, _ in self.free.left():
            if gone >= most or self.batch_due[batch] == NEVER:
                continue
            count = self.free.remove(batch, since, most - gone)
            if count:
                self.idle -= count
                self.end(batch, count, now)
                gone += count
        self.releases += gone > 0
        return gone

    def track(self, running: Iterable[int]) -> None:
        """Keep from now on what is expected, which nobody asked for before: of the jobs that run,
        and of what boots.
        """
        self.tracks = True
        self.expected = sorted([*running, *self.coming.values()])

    def expect_boot(self, batch: int, count: int, ready: int) -> None:
        """These machines boot for whoever comes first."""
        self.coming[batch] = key = expectation(ready, batch | 1 << 31, count)
        if self.tracks:
            insort(self.expected, key)

    def expect(self, expected: int) -> None:
        """Note an ``expectation``."""
        if self.tracks:
            insort(self.expected, expected)

    def unexpect(self, expected: int) -> None:
        """Forget it."""
        if self.tracks:
            del self.expected[bisect_left(self.expected, expected)]

    def shadow(self, need: int, free: int, now: int) -> tuple[int, int]:
        """(when ``need`` machines are expected to be free, how many more are free then)."""
        missing, at, expected = need - free, 0, self.expected
        for key in expected:
            missing -= key & _COUNT
            at += 1
            if missing <= 0:
                break
        else:
            return NEVER, -missing
        shadow = key >> 64
        shadow = shadow if shadow > now else now
        beyond = (shadow + 1) << 64
        while at < len(expected) and expected[at] < beyond:
            missing -= expected[at] & _COUNT
            at += 1
        return shadow, -missing

    def profile(self, now: int, *, direct: bool) -> Profile:
        """Free machines from now on, as expected; ``direct``: those that may be launched too."""
        free = self.idle + (self.room() if direct else 0)
        return Profile(now, free, [(key >> 64, key & _COUNT) for key in self.expected])

    def watch(self, now: int, offer: int) -> int | None:
        """When machines of a spot offer are lost next, if that is news."""
        live, same = self.live_of[offer], self._sharing[offer]
        if not live or self.falls[offer] == now:  # which is still to come in this second
            return None
        if len(same) > 1:
            live = sum([self.live_of[one] for one in same])
        first, last = self._same_fall[offer]
        if now < self.falls[offer] and first <= live < last:
            return None
        market = self.sold[offer].market
        if market is None:
            return None
        when, same_fall = market.next_fall(now, live)
        self._same_fall[offer] = same_fall.start, same_fall.stop
        news = when not in (self.falls[offer], NEVER)
        self.falls[offer] = when
        return when if news else None

    def over(self, offer: int, now: int) -> int:
        """How many machines of a spot offer its cloud takes back now."""
        return min(-self.stock(offer, now), self.live_of[offer])

    def _batch(self, start: int, count: int, offer: int, ready: int = -1) -> int:
        spot, starts = self._on_spot[offer], self.batch_start
        starts.append(start)
        self.batch_ready.append(ready)
        self.batch_live.append(count)
        self.batch_spot.append(spot)
        self.batch_offer.append(offer)
        self.batch_due.append(-1)
        self.launched += count
        self.live_of[offer] += count
        area = count * start
        self.up_area -= area
        if spot:
            self.spot_live += count
            self.spot_area -= area
        return len(starts) - 1


def _flat(sold: Sold) -> float | None:
    """The price of an offer, where it never moves."""
    if sold.market is None:
        return sold.offer.price
    prices = sold.market.curve.prices
    return prices[0] if len(prices) == 1 else None


def _rate(offer: Offer) -> float:
    return offer.price if offer.on_demand_price is None else offer.on_demand_price


def machines_of(scenario: Scenario, jobs: Jobs) -> list[Machines]:
    """The machines of a scenario's pools for these jobs, with their turns to boot: first the pool's
    own, then those that it shares. Where a limit is shared, idle machines go when they are due
    although jobs wait, as Slurm's SuspendTime has it: another pool may need their place.
    """
    found = [
        Machines(pool, scenario.order, scenario.seed + index)
        for index, pool in enumerate(scenario.pools)
    ]
    for machines in found:
        if machines.pool.shared and scenario.reservations == 1 and scenario.reuse:
            machines.shared = SharedMachines(jobs, machines.pool)
        if machines.pool.max_booting is not None:
            machines.turns = (Turns(machines.pool.max_booting),)
    for cap in scenario.boot_caps:
        turns = Turns(cap.machines)
        for machines in found:
            if machines.pool.name in cap.pools:
                machines.turns = (*machines.turns, turns)
    limited = [machines for machines in found if machines.pool.limited]
    _share(scenario.limits, limited)
    for cloud, limits in scenario.cloud_limits.items():
        _share(limits, [one for one in limited if one.sold[0].offer.cloud == cloud])
    return found


def _share(limits: Limits, members: Sequence[Machines]) -> None:
    """These pools may reach the limits together, those that stand always among them."""

    def total(market: Market | None = None) -> int:
        return sum(one.most for one in members if market is None or market in _markets(one))

    dollars = sum(one.most * max(one.rates) for one in members)
    reached = (
        (limits.nodes is not None and total() > limits.nodes)
        or (limits.spot is not None and total(Market.SPOT) > limits.spot)
        or (limits.on_demand is not None and total(Market.ON_DEMAND) > limits.on_demand)
        or (limits.dollars_per_hour is not None and dollars > limits.dollars_per_hour)
    )
    growing = [one for one in members if one.pool.machines > one.pool.standing]
    if reached and len(growing) > 1:
        for one in growing:
            one.yields = True


def _markets(machines: Machines) -> list[Market]:
    return [sold.offer.market for sold in machines.sold]
