"""The machines of a pool: batches, leases, and their costs.

Machines launched together from one offer are equal. They form a batch, of which we keep only a
count.

Machine-seconds (the attributes ``..._area``) are sums of machines x (end - begin). Each begin
subtracts its part and each end adds its part, in any order. Machines that still run have not added
their end, so a sum is right only when they have ended.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.growth.release import Delayed, Flagged, Idle, IdleOrder, OwnRelease
from slurm_elastic.policies.growth.scaling import spare
from slurm_elastic.simulate.bills.leases import Leases
from slurm_elastic.simulate.bills.market import NEVER, PLENTY, SpotMarket
from slurm_elastic.simulate.boot_slots import BootTurns, last_ready, waves
from slurm_elastic.simulate.ending import EndingMachines, ends_of
from slurm_elastic.simulate.queues.free_times import Expected, expectation
from slurm_elastic.simulate.queues.idle_set import Pieces, idle_machines
from slurm_elastic.simulate.queues.reservations import Profile
from slurm_elastic.simulate.scenario import Clock, PoolModel, Sold
from slurm_elastic.simulate.shared_machines import SharedMachines

Sales = list[tuple[int, int]]  # (offer, machines) that launches gave


class MachineFacts:
    """Rules about the state of a pool's machines, for both engines. The compiled engine
    (``core/pools.py``) has the state itself in C.
    """

    pool: PoolModel
    turns: tuple[BootTurns, ...]
    ending: EndingMachines | None
    idle: int
    busy: int
    booting: int
    held: int
    max_machines: int
    live_of: list[int]
    batch_start: list[int]
    batch_live: list[int]
    batch_offer: array[int]
    batch_spot: array[int]
    spot_live: int
    spot_area: int
    up_area: int
    sold: tuple[Sold, ...]
    spots: list[int]
    falls: list[int]
    rates: list[float]
    _same_fall: list[tuple[int, int]]
    _on_spot: list[bool]
    _sharing: list[list[int]]
    _born: int
    _boots: dict[int, int]
    _pays_boots: bool
    _public: bool
    _due: Callable[..., int]
    _lease: int
    _grid: int
    _after: int
    _flagged: bool
    _sinces: bool

    def _describe(self, pool: PoolModel, order: IdleOrder, live_of: list[int]) -> None:
        """Set what the model of the pool says. ``live_of``: zeros, one for each offer."""
        self.pool, self.max_machines = pool, pool.machines
        self.turns = ()
        # live_of: machines by offer; falls, same_fall: see ``watch``.
        self.sold = pool.sold
        self.spots = [i for i, other in enumerate(self.sold) if other.offer.market is Market.SPOT]
        self.live_of = live_of
        self.falls = [-1] * len(self.sold)
        self._same_fall = [(0, 0)] * len(self.sold)
        self._on_spot = [other.market is not None for other in self.sold]
        self._sharing = [
            [
                i
                for i, other in enumerate(self.sold)
                if other is sold or (sold.stock and other.stock == sold.stock)
            ]
            for sold in self.sold
        ]
        offers = [other.offer for other in self.sold]
        self.rates = [o.price if o.on_demand_price is None else o.on_demand_price for o in offers]
        self._born = 0
        self._boots = {}
        self._pays_boots = pool.clock is Clock.REQUEST
        self._public = pool.public
        self._due = pool.release.due
        self._lease = pool.billing.lease
        self._grid = pool.grid
        # after: seconds from idle to due, if the release depends on the idle time alone; else -1
        self._after = pool.release.due(0, 0, 0, 1, public=pool.public) if pool.release.stays else -1
        self._flagged = isinstance(pool.release, Flagged)
        steady = isinstance(pool.release, Delayed) and pool.public and self._lease > 1
        self._sinces = order in (IdleOrder.MAX_IDLE, IdleOrder.MIN_IDLE) or (
            not steady and isinstance(pool.release, Delayed | Idle | OwnRelease)
        )

    @property
    def up(self) -> int:
        """The number of machines, including booting machines."""
        return self.idle + self.busy + self.booting

    def room(self) -> int:
        """Return how many more machines may be launched."""
        return self.max_machines - self.idle - self.busy - self.booting - self.held

    def stock(self, offer: int, now: int, sales: Sequence[tuple[int, int]] = ()) -> int:
        """Return how many machines of an offer its cloud has left after these ``sales``."""
        market, sharers = self.sold[offer].market, self._sharing[offer]
        if market is None:
            return PLENTY
        live = sum([self.live_of[index] for index in sharers])
        return market.room(now) - live - sum([count for index, count in sales if index in sharers])

    def stocked(self, offer: int, now: int) -> tuple[int, int]:
        """Return the stock of an offer, and the end of its validity (now if offers share it)."""
        market = self.sold[offer].market
        if market is None:
            return PLENTY, NEVER
        return market.rooms(now) if len(self._sharing[offer]) == 1 else (0, now)

    def market_of(self, pieces: Pieces) -> SpotMarket | None:
        """Return the spot market of the first of these machines that has one; None without."""
        offers = self.batch_offer
        markets = (self.sold[offers[batch]].market for batch, _ in pieces if self.batch_spot[batch])
        return next(markets, None)

    def rate(self, batch: int) -> float:
        """Return the on-demand price of a machine of a batch, in dollars per hour."""
        return self.rates[self.batch_offer[batch]]

    def room_now(self) -> int:
        """Return how many more machines a growth policy may launch: ``room``, but no more than may
        boot now.
        """
        max_booting, room = self.pool.max_booting, self.room()
        return room if max_booting is None else min(room, max(max_booting - self.booting, 0))

    def boot_seconds(self, count: int) -> int:
        """Return the seconds until ``count`` machines launched together are ready."""
        seconds = self._boots.get(count)
        if seconds is None:
            seconds = self._boots[count] = self.pool.boot.seconds(count)
        return seconds

    def seconds_up(self, now: int) -> tuple[int, int]:
        """Return the machine-seconds until ``now`` on the spot market and on demand."""
        starts, live, spot = self.batch_start, self.batch_live, self.batch_spot
        while self._born < len(starts) and starts[self._born] <= now:
            self._born += 1
        on_spot = self.spot_area + self.spot_live * now
        on_demand = self.up_area - self.spot_area + (self.up - self.spot_live) * now
        for batch in range(self._born, len(starts)):
            early = live[batch] * max(starts[batch] - now, 0)
            if spot[batch]:
                on_spot += early
            else:
                on_demand += early
        return on_spot, on_demand

    def boot_delay(self, count: int, now: int) -> int:
        """Return the seconds until ``count`` machines would be ready if they were launched now."""
        if not self.turns:
            return self.boot_seconds(count)
        return last_ready(self.turns, count, now, self.boot_seconds) - now

    def watch(self, now: int, offer: int) -> int | None:
        """Return when the cloud takes machines of a spot offer next; None if never, or if the loss
        is planned already.
        """
        live, sharers = self.live_of[offer], self._sharing[offer]
        if not live or self.falls[offer] == now:  # the loss of this second is not handled yet
            return None
        if len(sharers) > 1:
            live = sum([self.live_of[index] for index in sharers])
        lowest, highest = self._same_fall[offer]
        if now < self.falls[offer] and lowest <= live < highest:
            return None
        market = self.sold[offer].market
        if market is None:
            return None
        when, same_fall = market.next_fall(now, live)
        self._same_fall[offer] = same_fall.start, same_fall.stop
        is_new = when not in (self.falls[offer], NEVER)
        self.falls[offer] = when
        return when if is_new else None

    def surplus_of(self, offer: int, now: int) -> int:
        """Return how many machines of an offer its cloud takes now."""
        if self.ending is not None and self.ending.ends[offer] <= now:
            return self.live_of[offer]
        return min(-self.stock(offer, now), self.live_of[offer])

    def due_on_grid(self, start: int, since: int, now: int) -> int:
        """Return the first check at which a machine is due, if the release depends on its lease."""
        due_at, lease, public, grid = self._due, self._lease, self._public, self._grid
        when = due_at(start, since, now, lease, public=public)
        while when % grid:
            ahead = when > now  # a machine due at a later time is still due at the next check
            when += -when % grid
            if not ahead:
                when = due_at(start, since, when, lease, public=public)
        return when


class PoolMachines(MachineFacts):
    """The state of a pool. ``yields``: idle machines are released when due even while jobs wait."""

    # Each event reads many attributes. Slots make a run 2 % faster than a dictionary.
    __slots__ = (
        "_after", "_boots", "_born", "_due", "_flagged", "_grid", "_lease", "_on_spot",
        "_pays_boots", "_public", "_put", "_same_fall", "_sharing", "_sinces", "_take",
        "batch_due", "batch_live", "batch_offer", "batch_ready", "batch_spot", "batch_start",
        "booked", "booting", "busy", "busy_area", "coming", "draining", "due", "ending", "expected",
        "falls", "free", "held", "idle", "launched", "launches", "leases", "live_of",
        "max_machines", "pool", "postponed", "promised", "rates", "reclaimed", "released",
        "releases", "shared", "sold", "spot_area", "spot_live", "spots", "turns", "up_area",
        "yields",
    )  # fmt: skip

    def __init__(self, pool: PoolModel, order: IdleOrder, seed: int) -> None:
        self._describe(pool, order, [0] * len(pool.sold))
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
        # held: nodes kept from Slurm because no offer could serve them, without nodes in use.
        self.shared: SharedMachines | None = None
        # reclaimed: machines that the cloud took; promised: busy machines without names yet;
        # booked: batches that boot for a job; coming: the expectation of other booting batches;
        # due: entries of idle machines by the time of their release;
        # postponed: entries that were due while jobs waited.
        self.postponed: list[tuple[int, int]] = []
        self.due: dict[int, list[tuple[int, int]]] = {}
        self.launched = self.released = self.launches = self.releases = 0
        self.spot_live = self.spot_area = self.reclaimed = 0
        self.draining = self.promised = 0
        self.booked: set[int] = set()
        self.coming: dict[int, int] = {}
        self.busy_area = self.up_area = 0
        self.free = idle_machines(order, self.batch_start, self._lease, seed, sinces=self._sinces)
        self._put, self._take = self.free.put, self.free.take
        ends = ends_of(self.sold)
        self.ending = EndingMachines(ends, self) if ends else None

    def add_standing(self, now: int) -> None:
        """Add the standing machines as batch 0. They exist from the first second on."""
        if self.pool.standing:
            batch = self._batch(now, self.pool.standing, len(self.sold) - 1)
            self.batch_due[batch] = NEVER
            self.idle += self.pool.standing
            self.free.put(batch, self.pool.standing, 0)

    def found_idle(self, started: int, since: int, now: int) -> None:
        """Add a machine, idle since ``since``, for a simulation that begins in mid-run."""
        batch = self._batch(started, 1, len(self.sold) - 1)
        self.idle += 1
        self.free.put(batch, 1, since if self._sinces else 0)
        if not self._flagged:
            self.look_later(batch, since if self._sinces else 0, now)

    def start(self, sales: Sales, now: int) -> list[tuple[int, Pieces]]:
        """Launch machines as ``launch`` does, in waves if not all may boot at once. Returns the
        results of ``launch`` per wave.
        """
        if not self.turns:
            return [self.launch(sales, now)]
        count, sales_left, started = sum([wave_size for _, wave_size in sales]), list(sales), []
        for begin, wave_size in waves(self.turns, count, now, self.boot_seconds):
            wave: Sales = []
            while wave_size:
                offer, available = sales_left.pop(0)
                wave.append((offer, min(wave_size, available)))
                if available > wave_size:
                    sales_left.insert(0, (offer, available - wave_size))
                wave_size -= wave[-1][1]
            started.append(self.launch(wave, now, begin))
        return started

    def launch(self, sales: Sales, now: int, turn: int | None = None) -> tuple[int, Pieces]:
        """Boot machines that were bought. Returns when they are ready, and (batch, machines).

        They count as booting until the caller reports them as ready. ``turn``: when the boot begins
        (None: now).
        """
        request = now if turn is None else turn
        count = 0  # a loop, because sum() with a generator is slower for one or two sales
        for _, machines in sales:
            count += machines
        seconds = self._boots.get(count)
        ready = request + (self.boot_seconds(count) if seconds is None else seconds)
        begin, started = request if self._pays_boots else ready, []
        for offer, machines in sales:
            started.append((self._batch(begin, machines, offer, ready), machines))
        self.launches += len(started)
        self.booting += count
        return ready, started

    def waste(self, sales: Sales, now: int) -> None:
        """Launch machines and end them at once. They were bought for a job that cannot get all of
        its machines, and are paid.
        """
        for offer, count in sales:
            self.launches += 1
            self.end(self._batch(now, count, offer), count, now)

    def booted(self, batch: int) -> int:
        """Record that a batch is ready. Returns how many machines it still has."""
        count = self.batch_live[batch]
        self.booting -= count
        return count

    def put_idle(self, batch: int, count: int, now: int) -> int | None:
        """Make machines idle. Returns when to check for their release; None if planned already."""
        self.idle += count
        due_at = self.batch_due[batch]
        if self._sinces:
            self._put(batch, count, now)
            return None if due_at == NEVER or self._flagged else self.look_later(batch, now, now)
        self._put(batch, count, 0)
        return None if due_at > now or self._flagged else self.look_later(batch, 0, now)

    def look_later(self, batch: int, since: int, now: int, kept_at: int = -1) -> int | None:
        """Record when idle machines may be released. Returns the time if no check is planned
        then. ``kept_at``: the second before ``now`` if they were due then and had to stay.
        """
        after, grid = self._after, self._grid
        idle_since = since if self._sinces else now
        if kept_at >= 0:
            idle_since = kept_at
        if after >= 0:
            when = idle_since + after
            if when < now:
                when = now
            when += -when % grid
        else:
            when = self.due_on_grid(self.batch_start[batch], idle_since, now)
        self.batch_due[batch] = when
        entries = self.due.get(when)
        if entries is None:
            self.due[when] = [(batch, since)]
            return when
        entries.append((batch, since))
        return None

    def look_again(self, now: int) -> list[int]:
        """Plan new checks for machines whose release was postponed. Returns the new times."""
        postponed, self.postponed = self.postponed, []
        looks = [self.look_later(batch, since, now) for batch, since in postponed]
        return [look for look in looks if look is not None]

    def keep_longer(self, now: int) -> list[int]:
        """Plan new checks for machines that were due but wait for the others of their job. Their
        idle time begins anew, because slurm-elasticd makes Slurm count it anew. Returns the new
        times.
        """
        postponed, self.postponed = self.postponed, []
        # From the next second on, because this second would never end: the machine is due again.
        looks = [self.look_later(batch, since, now + 1, now) for batch, since in postponed]
        return [look for look in looks if look is not None]

    def take(self, count: int, now: int) -> Pieces:
        self.idle -= count
        self.busy += count
        self.busy_area -= count * now
        return self._take(count, now)

    def end(self, batch: int, count: int, now: int, *, reclaimed: bool = False) -> None:
        """End the lease of machines. The caller has taken them out of idle, busy or booting."""
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

    def lose_idle(self, batch: int, limit: int, now: int) -> int:
        """Take up to ``limit`` idle machines of a batch for the cloud. Returns how many."""
        lost = 0
        for idle_batch, since, _ in self.free.entries():
            if idle_batch == batch and lost < limit:
                count = self.free.remove(batch, since, limit - lost)
                self.idle -= count
                self.end(batch, count, now, reclaimed=True)
                lost += count
        return lost

    def idle_of(self, batch: int) -> int:
        """Return how many machines of a batch are idle."""
        return sum([count for idle_batch, _, count in self.free.entries() if idle_batch == batch])

    def lose_booting(self, batch: int, limit: int, now: int) -> int:
        """Take up to ``limit`` booting machines of a batch for the cloud. Returns how many."""
        count = min(self.batch_live[batch], limit)
        if count:
            self.booting -= count
            self.end(batch, count, now, reclaimed=True)
        return count

    def lose_coming(self, batch: int, limit: int, now: int) -> int:
        """Take up to ``limit`` machines that boot for no job in particular. Returns how many."""
        self.expected.drop(self.coming.pop(batch))
        lost = self.lose_booting(batch, limit, now)
        if self.batch_live[batch]:
            self.expect_boot(batch, self.batch_live[batch], self.batch_ready[batch])
        return lost

    def close(self, now: int) -> None:
        """Release all idle machines, including standing machines."""
        for batch, since, _ in self.free.entries():
            count = self.free.remove(batch, since, self.idle)
            if count:
                self.idle -= count
                self.end(batch, count, now)
        self.leases.settle()

    def release_due(self, when: int, keep: int = 0) -> int:
        """Release the idle machines due at ``when``, except the last ``keep``. Returns how many."""
        released = 0
        due = self.due.pop(when, ())
        # In the order of the launches, so that it is certain which machines ``keep`` leaves.
        for batch, since in sorted(due) if keep else due:
            releasable = spare(self.idle, keep) if keep else self.idle
            count = self.free.remove(batch, since, releasable)
            # Of this entry some machines may be left, which ``keep`` protects.
            if keep and count == releasable:
                self.postponed.append((batch, since))
            if count:
                self.idle -= count
                self.end(batch, count, when)
                released += count
        self.releases += released > 0
        return released

    def release_idle(self, limit: int, now: int) -> int:
        """Release up to ``limit`` idle machines, but no standing machines. Returns how many."""
        released = 0
        for batch, since, _ in self.free.entries():
            if released >= limit or self.batch_due[batch] == NEVER:
                continue
            count = self.free.remove(batch, since, limit - released)
            if count:
                self.idle -= count
                self.end(batch, count, now)
                released += count
        self.releases += released > 0
        return released

    def expect_boot(self, batch: int, count: int, ready: int) -> None:
        """Record that these machines boot for no job in particular."""
        self.coming[batch] = key = expectation(ready, batch | 1 << 31, count)
        self.expected.add(key)

    def profile(self, now: int, *, direct: bool) -> Profile:
        """Return the expected free machines from now on. ``direct``: count machines that may be
        launched as free.
        """
        return Profile(now, self.idle + (self.room() if direct else 0), self.expected.pairs())

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
