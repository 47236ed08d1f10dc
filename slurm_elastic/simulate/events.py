"""The events of jobs and machines: they start, boot, end and are lost.

An event is one integer made of (time, kind, payload), so that a heap orders events by time and then
by kind. The payload is a job, a batch or a pool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import partial
from heapq import heappush

from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.money.bounds import UNBOUNDED
from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.bills.spending import Purses
from slurm_elastic.simulate.finishing import Finishing
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.lasting import lasting_pools
from slurm_elastic.simulate.machines import PoolMachines, Sales
from slurm_elastic.simulate.pools import machines_of
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.queues.budget_queue import BudgetQueue
from slurm_elastic.simulate.queues.cloud_order import job_orders
from slurm_elastic.simulate.queues.idle_set import Pieces
from slurm_elastic.simulate.queues.ordered_queue import OrderedQueue
from slurm_elastic.simulate.queues.queueing import Queue
from slurm_elastic.simulate.runs import Runs, SimulatedRun
from slurm_elastic.simulate.scaler import WINDOW_LOOK_S, Grower
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import SharedMachine, SharedMachines, machines_needed
from slurm_elastic.simulate.unhelped import SimulatedGuard
from slurm_elastic.simulate.warm_pool import Warm

END, FALL, ARRIVE, BOOT, CHECK, LOOK, WARN, MOVE = range(8)
# A payload has 48 bits. Years of many short jobs make more than 16.7 million batches, and more bits
# than the payload has would change the kind of the event.
POOLS = 1 << 16  # a batch's payload is batch x this + pool
_BOOT, _CHECK = BOOT << 48, CHECK << 48


class RunEvents:
    """The state of a run, and its changes by jobs and boots.

    ``events``: a heap of future events. ``asked``: the growth policy must be asked in this second.
    ``looks``: the time of the last planned look of a policy with a period; ``opens``: the time of
    the last look that was planned for bounds that change with time. ``due_looks``: the times of all
    planned looks. ``origin``: the Unix time of the history's second 0, for budgets and windows.
    """

    def __init__(self, jobs: Jobs, scenario: Scenario, origin: int) -> None:
        self.jobs, self.scenario = jobs, scenario
        self.now = 0
        self.pools = self._make_pools()
        self.purchases = Purchases(scenario, self.pools, self._plan_look)
        self.needs: list[Sequence[int]] = [machines_needed(jobs, pool) for pool in scenario.pools]
        self.direct = isinstance(scenario.growth, Slurm)
        self.runs = Runs(jobs, scenario, self.pools)
        self.orders = job_orders(jobs, scenario, self.pools, self.needs, self.purchases)
        self.grower = Grower(jobs, scenario, self.pools, self.needs, origin, self.orders)
        self.grower.purchases = self.purchases
        self.events: list[int] = []
        self.queue = self._queue(origin)
        self.guard: SimulatedGuard | None = None
        if scenario.guarded and not self.direct:
            # A look at the queue has number 0, looks of the guard have others.
            self.guard = SimulatedGuard(
                self.pools, self.needs, jobs.limit,
                lambda when, number: self._push(when, LOOK, number),
            )  # fmt: skip
            self.queue.guard = self.guard
        self.finishing: Finishing | None = None
        if scenario.finishes and self.grower.money != UNBOUNDED:
            self.finishing = Finishing(self.grower, self.runs, self.pools, origin)
        lasting = lasting_pools(self.purchases, self.pools, self.needs, jobs.limit)
        self.queue.lasting = self.grower.lasting = lasting
        self.warm = Warm(self, self.pools)
        self.counts_boots = not (self.direct and self.grower.free_of_bounds) or bool(self.warm)
        self.last_ready = -NEVER
        self.reuse = scenario.reuse
        self.asked = False
        self.looks = self.opens = -1
        # A set, because an event cannot be taken out of the heap or found there.
        self.due_looks: set[int] = set()
        self.moving: dict[int, tuple[SimulatedRun, int, int]] = {}

    def _make_pools(self) -> list[PoolMachines]:
        return machines_of(self.scenario, self.jobs)

    def _queue(self, origin: int) -> Queue:
        """Return the queue of this site, with what its rules need."""
        jobs, scenario = self.jobs, self.scenario
        queue_arguments = (jobs, scenario, self.pools, self.needs, self.grower, self.runs)
        if scenario.payers:
            purses = Purses(scenario.payers, self.pools, origin)
            return BudgetQueue(*queue_arguments, self._start).with_purses(
                purses, self._plan_return, self.orders
            )
        if self.orders is None:
            return Queue(*queue_arguments, self._start)
        return OrderedQueue(*queue_arguments, self._start).with_orders(self.orders)

    def _end_run(self, run: SimulatedRun, now: int) -> bool:
        """End a job and make its machines idle. False if the event is out of date, because the job
        was interrupted and ends later.
        """
        job, pool, machines, pieces, need, _, ready, _, end, expected, _, _, _ = run
        if end != now:
            return False
        self.runs.finish(run, now)
        if machines.shared is not None and job in machines.shared.of:
            host = self._leave_shared(machines, machines.shared, run, now)
            if host.ends:
                return True
            pieces = host.pieces
        elif machines.expected.tracks:
            keys = machines.expected.keys  # inlined ``drop``: a call for each job is too slow
            del keys[bisect_left(keys, expected)]
        if machines.booked and ready == now:
            self._boot_before_end(machines, pool, pieces, now)
        machines.busy -= need
        machines.busy_area += need * now
        if machines.draining or not self.reuse:
            for batch, count in pieces:
                self._release_or_idle(machines, pool, batch, count, now)
            return True
        for batch, count in pieces:
            look = machines.put_idle(batch, count, now)
            if look is not None:
                heappush(self.events, look << 51 | _CHECK | pool)
        return True

    def _leave_shared(
        self, machines: PoolMachines, shared: SharedMachines, run: SimulatedRun, now: int
    ) -> SharedMachine:
        """Take a job off a shared machine. The ends of the other jobs determine when it is free."""
        machines.expected.drop(shared.of[run.job].expected)
        host = shared.leave(run.job, run.expected, run.ready, now)
        if host.ends:
            machines.expected.add(host.expected)
        return host

    def _boot_before_end(self, machines: PoolMachines, pool: int, pieces: Pieces, now: int) -> None:
        """Handle the boot of a job's machines before the end of the job in the same second: a job
        of no length ends when its machines are ready.
        """
        for batch, _ in pieces:
            if batch in machines.booked:
                self._handle_boot(pool, batch, now)

    def _release_or_idle(
        self, machines: PoolMachines, pool: int, batch: int, count: int, now: int
    ) -> None:
        if (machines.draining or not self.reuse) and machines.batch_due[batch] != NEVER:
            count -= self._end_after_job(machines, batch, count, now)
        if count:
            look = machines.put_idle(batch, count, now)
            if look is not None:
                heappush(self.events, look << 51 | _CHECK | pool)

    def _end_after_job(self, machines: PoolMachines, batch: int, count: int, now: int) -> int:
        """End machines after their job: the flagged machines, or all if machines are not reused.
        Returns how many.
        """
        ended = count
        if self.reuse:
            ended = min(machines.draining, count)
            machines.draining -= ended
        machines.end(batch, ended, now)
        machines.releases += 1
        return ended

    def _handle_boot(self, pool: int, batch: int, now: int) -> None:
        """Handle the end of a boot, for one job or for any. Machines that were lost during
        their boot are in neither set.
        """
        machines = self.pools[pool]
        if batch in machines.booked:
            machines.booked.remove(batch)
            machines.busy += machines.booted(batch)
        elif batch in machines.coming:
            machines.expected.drop(machines.coming.pop(batch))
            self._release_or_idle(machines, pool, batch, machines.booted(batch), now)
            self.queue.full = True
            self.asked = self.asked or self._must_ask_policy(machines)

    def _must_ask_policy(self, machines: PoolMachines) -> bool:
        """Return True if the policy must be asked when machines of the pool are ready. A policy
        without a period is asked, too, if it may not have got enough machines for the first job.
        """
        grower = self.grower
        stands_still = len(grower.growing) > 1 and not self.runs.now
        return grower.period is not None or bool(machines.turns) or stands_still

    def _start(
        self, job: int, pool: int, need: int, now: int, beside: SharedMachine | None = None
    ) -> bool:
        """Start a job on idle machines, and buy the machines that it still needs. False if they are
        not available: Slurm then requeues the job. ``beside``: a machine in use with room.
        """
        machines = self.pools[pool]
        shared = machines.shared if need == 1 else None
        if shared is not None and beside is not None:
            self._join_shared(job, pool, shared, beside, now)
            return True
        ending, limit, take = machines.ending, 0, machines.take
        idle = machines.idle if self.reuse else 0
        if ending is not None:
            limit = self.jobs.limit[job]
            idle = min(idle, ending.usable(need, limit, now))
            # Before the purchase, which may change how long further boots take.
            boot_s = machines.boot_delay(need - idle, now) if need > idle else 0
            take = partial(ending.take, until=now + boot_s + limit)
        if need <= idle:
            idle, ready, pieces = need, now, take(need, now)
        else:
            sales = self.purchases.buy(pool, need - idle, now, whole=True, needs_s=limit)
            if not sales:
                # The refusal holds the pool, so other jobs may now start fewer machines there.
                self.queue.full = self.queue.stale = True
                return False
            pieces = take(idle, now) if idle else []
            ready = self._boot_for(machines, pool, sales, pieces, now)
        end, expected = self.runs.begin(job, pool, pieces, need, now, ready, idle)
        if machines.expected.tracks:
            insort(machines.expected.keys, expected)  # inlined ``add``
        if shared is not None and shared.share(job) != shared.whole:
            ends = NEVER if ending is None else min(ending.end(batch) for batch, _ in pieces)
            shared.open(job, pieces, ready, expected, idle, ends)
        heappush(self.events, end << 51 | job)
        return True

    def _join_shared(
        self, job: int, pool: int, shared: SharedMachines, host: SharedMachine, now: int
    ) -> None:
        """Start a job beside the other jobs of a shared machine."""
        machines, before, ready = self.pools[pool], host.expected, max(now, host.ready)
        end, expected = self.runs.begin(job, pool, host.pieces, 1, now, ready, 0)
        shared.join(job, host, expected)
        machines.expected.drop(before)
        machines.expected.add(host.expected)
        heappush(self.events, end << 51 | job)

    def _boot_for(
        self, machines: PoolMachines, pool: int, sales: Sales, pieces: Pieces, now: int
    ) -> int:
        """Launch the machines bought for a job, and add them to ``pieces``. Returns when all are
        ready.
        """
        if machines.turns:
            waves = machines.start(sales, now)
            ready = max(done for done, _ in waves)
            launched = [piece for _, piece_list in waves for piece in piece_list]
        else:
            ready, launched = machines.launch(sales, now)
        pieces += launched
        count = sum([piece_list for _, piece_list in sales]) if len(sales) > 1 else sales[0][1]
        if self.counts_boots:
            for batch, _ in launched:
                machines.booked.add(batch)
                self._push(ready, BOOT, batch * POOLS + pool)
        else:
            machines.booting -= count
            machines.busy += count
            heappush(self.queue.readies, ready)
            if ready > self.last_ready:
                self.last_ready = ready
        machines.busy_area -= count * ready
        if machines.spot_live or machines.ending is not None:
            self._plan_next_loss(pool, now)
        return ready

    def boot_ahead(
        self, pool: int, count: int, now: int, stays: Sequence[int] = (), least: int = 1
    ) -> None:
        """Boot up to ``count`` machines for no job in particular, as many as are available.
        ``stays``: by machine for how long (s) it must stay. ``least``: fewer are of no use.
        """
        if self.pools[pool].ending is None or not stays:
            self._boot_ahead(pool, count, now, least)
            return
        for needs_s, machines in self.purchases.by_need(pool, stays, now):
            self._boot_ahead(pool, machines, now, least, needs_s)

    def _boot_ahead(
        self, pool: int, count: int, now: int, least: int, needs_s: float = 0.0
    ) -> None:
        machines = self.pools[pool]
        sales = self.purchases.buy(pool, count, now, whole=False, needs_s=needs_s, least=least)
        if not sales:
            return
        for ready, launched in machines.start(sales, now):
            for batch, machines_of_batch in launched:
                machines.expect_boot(batch, machines_of_batch, ready)
                heappush(self.events, ready << 51 | _BOOT | batch * POOLS + pool)
                if self.guard is not None:
                    self.guard.started(pool, batch, machines_of_batch, ready)
        if machines.spots or machines.ending is not None:
            self._plan_next_loss(pool, now)
        if now < self.queue.shadow:
            self.queue.shadow = now  # outdated: the first job may be able to start earlier

    def look_again(self, pool: int, now: int) -> None:
        """Plan new releases of a pool's machines whose release was postponed."""
        for when in self.pools[pool].look_again(now):
            self._push(when, CHECK, pool)

    def look_later(self, now: int) -> None:
        """Plan a look for when bounds may have changed, at most one at a time."""
        if self.opens <= now:
            self.opens = now + max(self.grower.period or 1, WINDOW_LOOK_S)
            self._plan_look(self.opens)

    def _plan_next_loss(self, pool: int, now: int) -> None:
        """Plan the next loss of spot machines in a pool, and its warning."""
        machines = self.pools[pool]
        if machines.ending is not None:
            for offer in machines.ending.unplanned(machines.falls):
                machines.falls[offer] = end = machines.ending.ends[offer]
                self._push(max(end, now), FALL, offer * POOLS + pool)
        for offer in machines.spots:
            when = machines.watch(now, offer)
            if when is not None:
                self._push(when, FALL, offer * POOLS + pool)
                market = machines.sold[offer].market
                if self.runs.moves_saved and market is not None and market.notice:
                    self._push(max(when - market.notice, now), WARN, offer * POOLS + pool)

    def _plan_return(self, when: int, job: int | None) -> None:
        """Plan the return of a job; with None, plan a look at the queue."""
        if job is None:
            self._plan_look(when)
        else:
            self._push(when, ARRIVE, job)

    def _plan_look(self, when: int) -> None:
        """Plan one look at that second."""
        if when not in self.due_looks:
            self.due_looks.add(when)
            self._push(when, LOOK, 0)

    def _push(self, when: int, kind: int, payload: int) -> None:
        heappush(self.events, (when << 3 | kind) << 48 | payload)
