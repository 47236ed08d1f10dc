"""Asks the growth policy for the whole site, and deals its machines to the waiting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from slurm_elastic.policies.growth.allotting import (
    Allot,
    CommonBound,
    Room,
    Share,
    allot,
    choose,
    kept_machines,
)
from slurm_elastic.policies.growth.capacity import Demand, Growth, Slurm, Waiting, bounded
from slurm_elastic.policies.growth.counted_once import (
    Dealing,
    counts_by_nodes,
    counts_once,
    deal,
    find_fitting,
    free_of,
    served_jobs,
    spare_machines,
    useful_machines,
)
from slurm_elastic.policies.growth.guarded import grown_by
from slurm_elastic.policies.growth.purchase_rooms import PurchaseRoom, shared_rooms
from slurm_elastic.policies.growth.release import Flagged
from slurm_elastic.policies.growth.scaling import excess, shortfall
from slurm_elastic.policies.growth.stays import stays
from slurm_elastic.policies.growth.waste import ENDING_S, with_waste
from slurm_elastic.policies.money.bounds import UNBOUNDED, Bounds, Spent, stopped
from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.bills.spending import Purses
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.lasting import LastingPools
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.queues.cloud_order import JobOrders, Pools
from slurm_elastic.simulate.remembered import remember
from slurm_elastic.simulate.scenario import Scenario

if TYPE_CHECKING:
    from slurm_elastic.simulate.core.growing import JobFlags

DAY_S = 86400
WINDOW_LOOK_S = 60
_MAX_CACHED = 1000
_NOTHING = Spent()
Shares = list[Share[int] | None]
_new = tuple.__new__  # `_new(Waiting, values)` is `Waiting(*values)` in half of the time


class _WaitingCache(dict[int, Waiting]):
    """Cache of the policy's view of waiting jobs, because most of them also waited at the last
    look.
    """

    def __init__(self, jobs: Jobs, need: Sequence[int], start: int) -> None:
        self.jobs, self.need, self.start = jobs, need, start

    def __missing__(self, job: int) -> Waiting:
        submit = self.jobs.submit[job] + self.start
        self[job] = waiting = _new(Waiting, (self.need[job], self.jobs.limit[job], submit))
        return waiting


class Grower:
    """Applies the growth policy to all pools that can grow. A job's size is counted in machines of
    the first such pool.

    ``period``: seconds between two looks (None: at each arrival and end of a job). ``watches``: the
    policy is asked even while no job waits. ``covered``: the waiting jobs that have enough
    machines. ``begun``: the waiting jobs whose machines start in turns. ``is_committed``: running
    jobs may use what is left of the budget (``finishing``). ``given``: idle and booting machines
    that other groups of jobs get, by pool. ``cloud_of``: by pool, its cloud if a job may have
    machines of several pools. ``purchases``: knows limits and cool-downs. ``patience``: seconds
    after which the simulation stops serving a queue that makes no progress.
    """

    patience = 45 * DAY_S

    def __init__(
        self,
        jobs: Jobs,
        scenario: Scenario,
        pools: Sequence[PoolMachines],
        needs: Sequence[Sequence[int]],
        start: int = 0,
        orders: JobOrders | None = None,
    ) -> None:
        self.jobs, self.policy, self.bounds = jobs, scenario.growth, scenario.bounds
        self.money = Bounds(per_day=self.bounds.per_day, per_month=self.bounds.per_month)
        self.times = Bounds(windows=self.bounds.windows)
        self.caps = Bounds(machines=self.bounds.machines, booting=self.bounds.booting)
        self.start, self.depth, self.orders = start, scenario.depth, orders
        self.growing = [
            (index, machines)
            for index, machines in enumerate(pools)
            if machines.pool.machines > machines.pool.standing
        ]
        self.needs = needs
        self.need = needs[self.growing[0][0]] if self.growing else needs[0]
        self.free_of_bounds = self.bounds == UNBOUNDED
        if self.growing:
            boot_s = self.growing[0][1].pool.boot.seconds(1)
            self.policy = with_waste(self.policy, round(boot_s + ENDING_S))
        self.period = self.policy.period
        if isinstance(self.policy, Slurm) and not self.free_of_bounds:
            self.period = WINDOW_LOOK_S
        self.watches = bool(self.growing) and any(
            isinstance(machines.pool.release, Flagged) for _, machines in self.growing
        )
        self.covered: set[int] | JobFlags = set()
        self.begun: set[int] | JobFlags = set()
        self.purchases: Purchases | None = None
        self.boot_s = self.growing[0][1].boot_seconds(1) if self.growing else 0
        self.given = Counter[int]()
        self.cloud_of = [f"pool {index}" for index in range(len(pools))]
        self._by_nodes = counts_by_nodes(scenario.growth)
        self.allot: Allot[int] = allot
        self._has_ends = any(machines.ending is not None for _, machines in self.growing)
        self.lasting: LastingPools | None = None
        self._demand = Demand(now=start)
        self._grown = grown_by(self.policy)
        self._once = counts_once(self.policy)
        # The demand does not depend on the dealt machines if a policy counts each job at each look,
        # or if it counts new jobs and there are none.
        self._asks_first = not (self._once or self._by_nodes or self._has_ends)
        self._counts_new_jobs = self._once and not (self._by_nodes or self._has_ends)
        self._waiting_cache = _WaitingCache(jobs, self.need, start)
        self._waiting_caches: dict[int, _WaitingCache] = {}
        self._costs_nothing = self.money == UNBOUNDED
        self.is_committed = False
        self._is_capped = self.caps != UNBOUNDED
        self._purse = Purses({}, [machines for _, machines in self.growing], start)

    def wanted(
        self,
        queue: Sequence[int],
        head: int | None,
        running: int,
        now: int,
        *,
        own_only: bool = False,
    ) -> list[tuple[int, int, int]]:
        """Return (pool, machines, least) to launch now: fewer than ``least`` of them are of no use
        to any job. ``own_only``: for jobs that may not use public machines.
        """
        for _, machines in self.growing:
            room = machines.room_now()
            if room:
                break
        else:
            return []
        growing = self._in_order(queue, now)
        pools = self._open_pools(growing, queue, now, own_only=own_only)
        queue = queue if self.depth is None else queue[: self.depth]
        self._demand = demand = self.demand(queue, head, running, now)
        growth = None
        asks_first = self._asks_first or (self._counts_new_jobs and self.covered.issuperset(queue))
        if asks_first:
            growth = self._grown(demand)
            # Whatever jobs would get, no machine starts. Only a job whose machines start in turns,
            # or the first job of a site where nothing runs, gets machines without being asked for.
            if growth is None and not self.begun and not self._is_stuck(running):
                return []
        dealing, clouds, bounds = self._deal(queue, running, growing, pools, now)
        shares, fresh = dealing.shares, dealing.fresh
        if self._once:
            spare = free_of(shares[place] for place in fresh) if self._by_nodes else demand.spare
            waiting = [demand.queue[place] for place in fresh]
            self._demand = demand = replace(demand, fresh=waiting, spare=spare)
        for share in shares if self._has_ends or self._once else ():
            self.given.update(dict(share.free) if share is not None else {})
        if self._by_nodes:
            # Not by the policy's answer: it counts all jobs in machines of the first pool.
            wanted = sum([share.lack for place in fresh if (share := shares[place]) is not None])
        else:
            growth = growth if asks_first else self._grown(demand)
            wanted = 0 if growth is None else growth.machines
        needs = [job.nodes for job in demand.queue]
        rooms = [room for cloud in clouds for room in cloud]
        useful = useful_machines(self.policy, self._grown, demand, dealing, wanted)
        chosen = choose(useful, shares, fresh, dealing.sure, needs, rooms, bounds)
        if self._by_nodes:
            self._cover_by_nodes(queue, shares)
        else:
            possible = growth and growth._replace(machines=wanted - chosen.without_room)
            self._cover(queue, demand, shares, fresh, possible, chosen.counted)
            if self.begun:
                lost = {job for job, share in zip(queue, shares, strict=True) if share is None}
                self.covered.difference_update([job for job in lost if job in self.begun])
                self.begun.difference_update(queue)
            in_turns = [
                p for p in chosen.places if (share := shares[p]) is not None and share.later
            ]
            self.begun.update(queue[place] for place in in_turns)
        return [
            (index, chosen.starts[index], chosen.least[index])
            for index, _ in growing
            if index in chosen.starts
        ]

    def kept(
        self, classes: Iterable[tuple[Sequence[int], bool]], running: int, now: int
    ) -> Counter[int]:
        """Return by pool how many idle machines wait for the other machines of their job.
        ``classes``: the waiting jobs, as ``wanted`` gets them.
        """
        kept = Counter[int]()
        for jobs, own_only in classes:
            growing: Pools = self.growing
            if self.orders is not None and jobs:
                growing = self.orders.for_growth(growing, jobs[0], now, starts=False)
            pools = self._open_pools(growing, jobs, now, own_only=own_only)
            queue = jobs if self.depth is None else jobs[: self.depth]
            idle = {
                index: self._idle(machines, queue, now) if self._has_ends else machines.idle
                for index, machines in growing
            }
            shares = self._deal(queue, running, growing, pools, now)[0].shares
            for pool, places in kept_machines(shares, idle):
                kept[pool] += len(places)
            for share in shares if self._has_ends or self._once else ():
                self.given.update(dict(share.free) if share is not None else {})
        self.given.clear()
        return kept

    def _is_stuck(self, running: int) -> bool:
        """Whether nothing runs or boots, so that the first job may wait for ever."""
        return not running and not any(machines.booting for _, machines in self.growing)

    def _deal(
        self, queue: Sequence[int], running: int, growing: Pools, pools: Pools, now: int
    ) -> tuple[Dealing[int], list[list[Room[int]]], list[CommonBound[int]]]:
        """Deal the machines of the ``growing`` pools to the jobs. Machines start in ``pools``."""
        allowed = {index for index, _ in pools}
        clouds: dict[str, list[Room[int]]] = {}
        needs: list[list[int]] = []
        for index, machines in growing:
            cloud = self.cloud_of[index]
            if cloud not in clouds:
                clouds[cloud] = []
                needs.append(list(map(self.needs[index].__getitem__, queue)))
            free = self._idle(machines, queue, now) if self._has_ends else machines.idle
            free = max(free + machines.booting - self.given[index], 0)
            is_open = index in allowed
            now_room, total = (machines.room_now(), machines.room()) if is_open else (0, 0)
            clouds[cloud].append(Room(index, free, now_room, total))
        bounds = self._common_bounds(growing)
        # A single machine meets the bounds of purchases only when it is bought, as in the daemon.
        if self.purchases is not None and any(max(row, default=0) > 1 for row in needs):
            bounds += self._within_purchases([*chain(*clouds.values())], self.purchases, now)
        covered = [*map(self.covered.__contains__, queue)]
        stuck = self._is_stuck(running)
        rooms = [*clouds.values()]
        begun = [*map(self.begun.__contains__, queue)]
        dealing = deal(
            self.policy, needs, rooms, bounds, covered, begun, is_stuck=stuck, allot=self.allot
        )
        return dealing, rooms, bounds

    def _common_bounds(self, growing: Pools) -> list[CommonBound[int]]:
        """Return the scenario's caps of all machines and of booting machines."""
        if not self._is_capped:
            return []
        costs = {index: 1.0 for index, _ in growing}
        up = sum(machines.up - machines.draining for _, machines in growing)
        booting = sum(machines.booting for _, machines in growing)
        most, at_once = self.caps.machines, self.caps.booting
        bounds = [] if most is None else [CommonBound(most - up, costs)]
        if at_once is not None:
            bounds.append(CommonBound(at_once - booting, costs, is_turn=True))
        return bounds

    def _within_purchases(
        self, rooms: Sequence[Room[int]], purchases: Purchases, now: int
    ) -> list[CommonBound[int]]:
        """Reduce the rooms to the machines that may be bought now. Return the bounds of several
        pools.
        """
        by_pool: dict[str, PurchaseRoom] = {}
        for room in rooms:
            if room.total and (may_buy := purchases.room(room.pool, room.total, now)):
                room.total = min(room.total, may_buy.room)
                room.now = min(room.now, room.total)
                by_pool[str(room.pool)] = may_buy
        return [
            CommonBound(bound.left, {int(pool): cost for pool, cost in bound.costs.items()})
            for bound in shared_rooms(by_pool)
        ]

    def purchase_rooms(
        self, totals: Sequence[int], now: int
    ) -> tuple[list[int], list[tuple[float, list[float]]], int]:
        """Return by growing pool how many of these ``totals`` of machines may be bought, the bounds
        that pools share with their costs by pool, and until which second the answer holds if no
        machine starts or ends.
        """
        purchases, pools = self.purchases, tuple([index for index, _ in self.growing])
        if purchases is None:
            return list(totals), [], NEVER
        answers = {} if purchases.held else purchases.answers(now)
        key = "rooms", pools, tuple(totals), purchases.live_machines()
        answer = answers.get(key)
        if answer is None:
            rooms = [Room(pool, 0, total) for pool, total in zip(pools, totals, strict=True)]
            bounds = self._within_purchases(rooms, purchases, now)
            rows = [(bound.left, [bound.costs.get(p, 0.0) for p in pools]) for bound in bounds]
            answer = [room.total for room in rooms], rows
            remember(answers, key, answer)
        return *answer, purchases.rooms_hold_until(now)

    def _cover(
        self,
        queue: Sequence[int],
        demand: Demand,
        shares: Shares,
        fresh: Sequence[int],
        growth: Growth | None,
        started: int,
    ) -> None:
        """No longer count the first jobs with enough machines after ``started`` more."""
        if not self._once:
            return
        fitting = find_fitting(fresh, shares, [job.nodes for job in demand.queue])
        demand = replace(demand, fresh=[demand.queue[place] for place in fitting])
        tasks = ((queue[place], 1) for place in fitting)
        self.covered.update(list(served_jobs(self.policy, tasks, demand, growth, started)))

    def _cover_by_nodes(self, queue: Sequence[int], shares: Shares) -> None:
        """Count the jobs whose machines neither idle nor boot at the next look."""
        for job, share in zip(queue, shares, strict=True):
            if share is None or share.later:
                self.covered.discard(job)
            else:
                self.covered.add(job)

    def _open_pools(
        self, growing: Pools, queue: Sequence[int], now: int, *, own_only: bool
    ) -> Pools:
        """Return the pools in which machines may be started for these jobs now."""
        pools = growing if self.free_of_bounds or self._is_open(now) else []
        if self.lasting is not None and queue:
            # The same pools are too short for all jobs of this queue (Queue.by_fit).
            short_pools = self.lasting.short_pools(queue[0], now)
            pools = [entry for entry in pools if entry[0] not in short_pools]
        if own_only or (not self._costs_nothing and self.is_spent(now)):
            pools = [entry for entry in pools if not entry[1].pool.public]
        return pools

    def stays(self, machines: int) -> Sequence[int]:
        """Return for how long (s) the machines that were wanted last must stay, each by itself.
        Empty if no reservation ends its machines.
        """
        return stays(machines, self.policy, self._demand) if self._has_ends else ()

    def _in_order(self, queue: Sequence[int], now: int) -> Pools:
        """Return the growing pools in the order in which machines start. Jobs are then counted in
        machines of the first of them.
        """
        if self.orders is None or not self.growing:
            return self.growing
        growing = self.orders.for_growth(self.growing, queue[0] if queue else None, now)
        first = growing[0][0]
        if first not in self._waiting_caches:
            cache = _WaitingCache(self.jobs, self.needs[first], self.start)
            self._waiting_caches[first] = cache
        self.need, self._waiting_cache = self.needs[first], self._waiting_caches[first]
        return growing

    def may_launch(self, count: int, now: int, *, public: bool = True) -> bool:
        """Return True if the bounds allow all ``count`` machines for one job."""
        if self.free_of_bounds:
            return True
        if not self._is_open(now):
            return False
        if public and not self._costs_nothing and self.is_spent(now):
            return False
        demand = self.demand((), None, 0, now)
        return bounded(Growth(count, ""), demand, self.caps, Spent()).machines == count

    def warm(self, machines: PoolMachines, least: int, now: int) -> int:
        """Return how many machines must be started so that ``least`` are idle, as far as bounds
        allow.
        """
        lack = shortfall(least, machines.idle, machines.booting, machines.room_now())
        if self.free_of_bounds or not lack:
            return lack
        is_allowed = self.may_launch(1, now, public=machines.pool.public)
        demand = self.demand((), None, 0, now)
        return bounded(Growth(lack, ""), demand, self.caps, _NOTHING).machines if is_allowed else 0

    def is_stopped(self, now: int) -> bool:
        """Return True if the time of day or a spent budget blocks machines. Both end by
        themselves.
        """
        return not self._is_open(now) or (not self._costs_nothing and self.is_spent(now))

    def _is_open(self, now: int) -> bool:
        """Return True if machines may be started at this time of the day."""
        return not self.times.windows or stopped(now + self.start, self.times, _NOTHING) is None

    def is_spent(self, now: int) -> bool:
        """Return True if no money is left for public machines."""
        return (
            self.is_committed or stopped(now + self.start, self.money, self.spent(now)) is not None
        )

    def flag(self, queue: Sequence[int], running: int, now: int) -> None:
        """Flag surplus machines: idle machines end now, busy machines when their job ends."""
        if not self.watches:
            return
        growing = self._in_order(queue, now)
        count = excess(self.policy, self.demand(queue, None, running, now))
        # In reverse: the pool that was used last is given back first.
        for _, machines in reversed(growing):
            count -= machines.release_idle(min(count, machines.idle), now)
            # Machines promised to other jobs count as busy, but are not ours to give back.
            drained = min(count, machines.busy - machines.promised - machines.draining)
            machines.draining += max(drained, 0)
            count -= max(drained, 0)

    def demand(self, queue: Sequence[int], head: int | None, running: int, now: int) -> Demand:
        """Return the facts that the policy may use."""
        cache = self._waiting_cache
        # Jobs that started are never asked for again. Without this a long history would fill the
        # memory.
        if len(cache) > 2 * len(queue) + _MAX_CACHED:
            cache.clear()
        waiting = fresh = list(map(cache.__getitem__, queue))
        covered: list[Waiting] = []
        if self._once:
            fresh = []
            for index, job in zip(queue, waiting, strict=True):
                (covered if index in self.covered else fresh).append(job)
        idle = busy = booting = 0
        for _, machines in self.growing:
            idle += self._idle(machines, queue, now) if self._has_ends else machines.idle
            busy += machines.busy - machines.draining
            booting += machines.booting
        given = self.given.total()
        available = max(idle + booting - given, 0)
        return Demand(
            now=now + self.start,
            queue=waiting,
            fresh=fresh,
            running=running,
            idle=max(idle - given, 0),
            busy=busy,
            booting=booting,
            spare=spare_machines(self.policy, covered, available),
            head_start=None if head is None else head + self.start,
        )

    def _idle(self, machines: PoolMachines, queue: Sequence[int], now: int) -> int:
        """Return how many idle machines jobs like the first one may have."""
        if machines.ending is None or not queue:
            return machines.idle
        return machines.ending.idle_until(now + self.boot_s + self.jobs.limit[queue[0]])

    def spent(self, now: int) -> Spent:
        """Return the dollars of this day and month (UTC), from machine-seconds at on-demand
        prices.
        """
        return _NOTHING if self._costs_nothing else self._purse.of_cluster(now)
