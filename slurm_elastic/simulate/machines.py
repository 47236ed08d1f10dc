"""The machines of one pool as they come and go: batches, leases, and what they cost.

Machines that are launched together on one market are alike: they are a batch, of which we keep only
a count.

Machine-seconds are sums of machines x (end - begin). Each begin and each end adds its part when it
is known, in any order; the ends of machines that are still there are missing from a sum.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.growth.release import Delayed, Flagged, Idle, IdleOrder
from slurm_elastic.policies.growth.scaling import spare
from slurm_elastic.simulate.boot_slots import Turns, last_ready, waves
from slurm_elastic.simulate.free_times import Expected, expectation
from slurm_elastic.simulate.idle_set import Pieces, idle_machines
from slurm_elastic.simulate.leases import Leases
from slurm_elastic.simulate.market import NEVER, PLENTY, SpotMarket
from slurm_elastic.simulate.reservations import Profile
from slurm_elastic.simulate.scenario import Clock, PoolModel
from slurm_elastic.simulate.shared_machines import SharedMachines

Sales = list[tuple[int, int]]  # (offer, machines) that launches gave


class PoolMachines:
    """The state of one pool, in machines. ``yields``: idle ones go when due even if jobs wait."""

    # Each event reads many of them: without a dictionary of so many, a run takes 2 % less.
    __slots__ = (
        "_after", "_boots", "_born", "_due", "_flagged", "_grid", "_lease", "_on_spot",
        "_pays_boots", "_public", "_put", "_same_fall", "_sharing", "_sinces", "_take",
        "batch_due", "batch_live", "batch_offer", "batch_ready", "batch_spot", "batch_start",
        "booked", "booting", "busy", "busy_area", "coming", "draining", "due", "expected",
        "falls", "free", "held", "idle", "launched", "launches", "leases", "live_of", "most",
        "peak", "pool", "postponed", "promised", "rates", "reclaimed", "released", "releases",
        "shared", "sold", "spot_area", "spot_live", "spots", "turns", "up_area", "yields",
    )  # fmt: skip

    def __init__(self, pool: PoolModel, order: IdleOrder, seed: int) -> None:
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
        self.leases = Leases(pool, self.batch_start, self.batch_offer)
        self.expected = Expected()
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
        offers = [s.offer for s in self.sold]
        self.rates = [o.price if o.on_demand_price is None else o.on_demand_price for o in offers]
        # reclaimed: machines that the cloud took; promised: busy ones that have no names yet;
        # booked: batches that boot for a job, coming: others that boot, with when they are ready;
        # due: what may go when;
        # postponed: what was due while jobs waited.
        self.postponed: list[tuple[int, int]] = []
        self.due: dict[int, list[tuple[int, int]]] = {}
        self.launched = self.released = self.launches = self.releases = self.peak = 0
        self.spot_live = self.spot_area = self.reclaimed = 0
        self.draining = self.promised = 0
        self.booked: set[int] = set()
        self.coming: dict[int, int] = {}
        self.busy_area = self.up_area = 0
        self._pays_boots = pool.clock is Clock.REQUEST
        self._public = pool.public
        self._due = pool.release.due
        self._lease = pool.billing.lease
        self._grid = pool.grid
        # after: seconds from idle to due, where the idle time alone counts
        self._after = pool.release.due(0, 0, 0, 1, public=pool.public) if pool.release.stays else -1
        self._born = 0
        self._boots: dict[int, int] = {}
        self._flagged = isinstance(pool.release, Flagged)
        steady = isinstance(pool.release, Delayed) and pool.public and self._lease > 1
        self._sinces = order in (IdleOrder.MAX_IDLE, IdleOrder.MIN_IDLE) or (
            not steady and isinstance(pool.release, Delayed | Idle)
        )
        self.free = idle_machines(order, self.batch_start, self._lease, seed, sinces=self._sinces)
        self._put, self._take = self.free.put, self.free.take

    @property
    def up(self) -> int:
        """Machines that exist or are booting."""
        return self.idle + self.busy + self.booting

    def room(self) -> int:
        """How many more may be launched."""
        return self.most - self.idle - self.busy - self.booting - self.held

    def stock(self, offer: int, now: int, sales: Sequence[tuple[int, int]] = ()) -> int:
        """How many machines of an offer its cloud has left after these ``sales``."""
        market, same = self.sold[offer].market, self._sharing[offer]
        if market is None:
            return PLENTY
        there = sum([self.live_of[one] for one in same])
        return market.room(now) - there - sum([part for one, part in sales if one in same])

    def stocked(self, offer: int, now: int) -> tuple[int, int]:
        """Most machines of an offer, and until when that holds (now if the stock is shared)."""
        market = self.sold[offer].market
        if market is None:
            return PLENTY, NEVER
        return market.rooms(now) if len(self._sharing[offer]) == 1 else (0, now)

    def market_of(self, pieces: Pieces) -> SpotMarket | None:
        """The spot market of the first of these machines that has one."""
        of = self.batch_offer
        markets = (self.sold[of[batch]].market for batch, _ in pieces if self.batch_spot[batch])
        return next(markets, None)

    def rate(self, batch: int) -> float:
        """The on-demand price of a machine of a batch, in dollars an hour."""
        return self.rates[self.batch_offer[batch]]

    def room_now(self) -> int:
        """The same for a growth policy, which asks for no more than the pool may boot now."""
        most, room = self.pool.max_booting, self.room()
        return room if most is None else min(room, max(most - self.booting, 0))

    def boot_seconds(self, count: int) -> int:
        """How long ``count`` machines together take until they are ready."""
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
        """Add the standing machines, which are there from the first second on, as batch 0."""
        if self.pool.standing:
            batch = self._batch(now, self.pool.standing, len(self.sold) - 1)
            self.batch_due[batch] = NEVER
            self.idle += self.pool.standing
            self.free.put(batch, self.pool.standing, 0)
            self.peak = max(self.peak, self.up)

    def found_idle(self, started: int, since: int, now: int) -> None:
        """Add a machine idle since ``since``, if a simulation does not begin with nothing."""
        batch = self._batch(started, 1, len(self.sold) - 1)
        self.idle += 1
        self.free.put(batch, 1, since if self._sinces else 0)
        if not self._flagged:
            self.look_later(batch, since if self._sinces else 0, now)

    def late(self, count: int, now: int) -> int:
        """How long ``count`` machines that are asked for now would take until they are ready."""
        if not self.turns:
            return self.boot_seconds(count)
        return last_ready(self.turns, count, now, self.boot_seconds) - now

    def start(self, sales: Sales, now: int) -> list[tuple[int, Pieces]]:
        """Like ``launch``, but in waves if not all of them may boot at once."""
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
        """Start machines that were bought; when they are ready, and (batch, machines). Until then
        they count as booting. ``turn``: when they begin to boot, if not now.
        """
        request = now if turn is None else turn
        count = 0
        for _, part in sales:
            count += part
        seconds = self._boots.get(count)
        ready = request + (self.boot_seconds(count) if seconds is None else seconds)
        begin, started = request if self._pays_boots else ready, []
        for offer, part in sales:
            started.append((self._batch(begin, part, offer, ready), part))
        self.launches += len(started)
        self.booting += count
        up = self.idle + self.busy + self.booting
        if up > self.peak:
            self.peak = up
        return ready, started

    def waste(self, sales: Sales, now: int) -> None:
        """End machines at once that were bought for a job that could not get all."""
        for offer, count in sales:
            self.launches += 1
            self.end(self._batch(now, count, offer), count, now)

    def booted(self, batch: int) -> int:
        """A batch is ready; how many machines it still has."""
        count = self.batch_live[batch]
        self.booting -= count
        return count

    def put_idle(self, batch: int, count: int, now: int) -> int | None:
        """Machines have no work now; returns when to look whether they may go (None: planned)."""
        self.idle += count
        due = self.batch_due[batch]
        if self._sinces:
            self._put(batch, count, now)
            return None if due == NEVER or self._flagged else self.look_later(batch, now, now)
        self._put(batch, count, 0)
        return None if due > now or self._flagged else self.look_later(batch, 0, now)

    def look_later(self, batch: int, since: int, now: int) -> int | None:
        """Note when these may go; returns that time if it is new."""
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
        """The first look at which a machine is due whose release depends on its lease."""
        due, lease, public, grid = self._due, self._lease, self._public, self._grid
        when = due(start, since, now, lease, public=public)
        while when % grid:
            ahead = when > now  # if due then, it is still due at the next look
            when += -when % grid
            if not ahead:
                when = due(start, since, when, lease, public=public)
        return when

    def look_again(self, now: int) -> list[int]:
        """Plan again to look at what was due and stayed; the times that are new."""
        postponed, self.postponed = self.postponed, []
        looks = [self.look_later(batch, since, now) for batch, since in postponed]
        return [look for look in looks if look is not None]

    def take(self, count: int, now: int) -> Pieces:
        self.idle -= count
        self.busy += count
        self.busy_area -= count * now
        return self._take(count, now)

    def end(self, batch: int, count: int, now: int, *, reclaimed: bool = False) -> None:
        """End the lease of machines that no longer count as idle, busy or booting."""
        leases = self.leases
        leases.batch.append(batch)
        leases.end.append(now)
        leases.count.append(count)
        leases.reclaimed.append(reclaimed)
        self.batch_live[batch] -= count
        self.live_of[self.batch_offer[batch]] -= count
        self.released += count
        start = self.batch_start[batch]
        area = count * (now if now > start else start)
        self.up_area += area
        if self.batch_spot[batch]:
            self.spot_live -= count
            self.spot_area += area

    def lose_idle(self, batch: int, most: int, now: int) -> int:
        """The cloud takes idle machines of a batch; how many."""
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
        """The cloud takes up to ``most`` machines of a batch while they boot; how many."""
        count = min(self.batch_live[batch], most)
        if count:
            self.booting -= count
            self.end(batch, count, now, reclaimed=True)
        return count

    def lose_coming(self, batch: int, most: int, now: int) -> int:
        """The same for machines that boot for whoever comes first."""
        self.expected.drop(self.coming.pop(batch))
        lost = self.lose_booting(batch, most, now)
        if self.batch_live[batch]:
            self.expect_boot(batch, self.batch_live[batch], self.batch_ready[batch])
        return lost

    def close(self, now: int) -> None:
        """Release all that is idle, standing machines, too."""
        for batch, since, _ in self.free.left():
            count = self.free.remove(batch, since, self.idle)
            if count:
                self.idle -= count
                self.end(batch, count, now)
        self.leases.settle()

    def release_due(self, when: int, keep: int = 0) -> int:
        """Release what is idle and due at ``when`` but for the last ``keep``; how many machines."""
        gone = 0
        for batch, since in self.due.pop(when, ()):
            most = spare(self.idle, keep) if keep else self.idle
            count = self.free.remove(batch, since, most)
            if keep and count == most:
                self.postponed.append((batch, since))
            if count:
                self.idle -= count
                self.end(batch, count, when)
                gone += count
        self.releases += gone > 0
        return gone

    def release_idle(self, most: int, now: int) -> int:
        """Release up to ``most`` idle machines, but no standing ones; how many."""
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

    def expect_boot(self, batch: int, count: int, ready: int) -> None:
        """Note that these machines boot for whoever comes first."""
        self.coming[batch] = key = expectation(ready, batch | 1 << 31, count)
        self.expected.add(key)

    def profile(self, now: int, *, direct: bool) -> Profile:
        """Free machines from now on, as expected; ``direct``: with those that may be launched."""
        return Profile(now, self.idle + (self.room() if direct else 0), self.expected.pairs())

    def watch(self, now: int, offer: int) -> int | None:
        """When machines of a spot offer are lost next, if that is news."""
        live, same = self.live_of[offer], self._sharing[offer]
        if not live or self.falls[offer] == now:  # that loss is still to come in this second
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
        """How many machines of a spot offer its cloud takes now."""
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
