"""What jobs and machines do: they start, boot, end and are lost. An event is (time, kind, payload)
in one integer; the payload is a job, batch or pool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappush

from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.simulate.budget_queue import ApartQueue
from slurm_elastic.simulate.idle_set import Pieces
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines, Sales
from slurm_elastic.simulate.market import NEVER
from slurm_elastic.simulate.pools import machines_of
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.queueing import Queue
from slurm_elastic.simulate.runs import Run, Runs
from slurm_elastic.simulate.scaler import WINDOW_LOOK, Grower
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import Host, SharedMachines, machines_needed
from slurm_elastic.simulate.spending import Purses
from slurm_elastic.simulate.warm_pool import Warm

END, FALL, ARRIVE, BOOT, CHECK, LOOK, WARN, MOVE = range(8)
POOLS = 1 << 8  # a batch's payload is batch x this + pool
_BOOT, _CHECK = BOOT << 32, CHECK << 32


class Moves:
    """The state of a run, and everything that changes it. ``events``: a heap of events to come.
    ``asked``: something has happened that the growth policy must be asked about. ``looks``: when a
    growth policy that is asked at intervals is asked next, or was last; ``opens``: the same for
    bounds that open with time. ``due_looks``: all times at which a look is due.

    ``origin``: the Unix time of the history's second 0, for budgets and windows.
    """

    def __init__(self, jobs: Jobs, scenario: Scenario, origin: int) -> None:
        self.jobs, self.scenario = jobs, scenario
        self.now = 0
        self.pools = machines_of(scenario, jobs)
        self.purchases = Purchases(scenario, self.pools, self._look_at)
        self.needs: list[Sequence[int]] = [machines_needed(jobs, pool) for pool in scenario.pools]
        self.direct = isinstance(scenario.growth, Slurm)
        self.runs = Runs(jobs, scenario, self.pools)
        self.grower = Grower(jobs, scenario, self.pools, self.needs, origin)
        self.events: list[int] = []
        parts = (jobs, scenario, self.pools, self.needs, self.grower, self.runs)
        self.queue = Queue(*parts, self._start)
        if scenario.payers:
            purses = Purses(scenario.payers, self.pools, origin)
            self.queue = ApartQueue(*parts, self._start).by(purses, self._later)
        self.warm = Warm(self, self.pools)
        self.counts_boots = not (self.direct and self.grower.free_of_bounds) or bool(self.warm)
        self.last_ready = -NEVER
        self.reuse = scenario.reuse
        self.asked = False
        self.looks = self.opens = -1
        self.due_looks: set[int] = set()
        self.moving: dict[int, tuple[Run, int, int]] = {}

    def _give_back(self, run: Run, now: int) -> bool:
        """A job ends, and its machines are for whoever comes next; False if it does not end now."""
        job, pool, machines, pieces, need, _, ready, _, end, expected, _, _, _ = run
        if end != now:
            return False
        self.runs.finish(run, now)
        if machines.shared is not None and job in machines.shared.of:
            host = self._leave(machines, machines.shared, run, now)
            if host.ends:
                return True
            pieces = host.pieces
        elif machines.expected.tracks:
            keys = machines.expected.keys  # as ``drop`` does: a call for each job costs
            del keys[bisect_left(keys, expected)]
        if machines.booked and ready == now:
            self._boots_first(machines, pool, pieces, now)
        machines.busy -= need
        machines.busy_area += need * now
        if machines.draining or not self.reuse:
            for batch, count in pieces:
                self._free(machines, pool, batch, count, now)
            return True
        for batch, count in pieces:
            look = machines.put_idle(batch, count, now)
            if look is not None:
                heappush(self.events, look << 35 | _CHECK | pool)
        return True

    def _leave(self, machines: PoolMachines, shared: SharedMachines, run: Run, now: int) -> Host:
        """A job leaves a machine that it shared, and the others' ends now say when that is free."""
        machines.expected.drop(shared.of[run.job].expected)
        host = shared.leave(run.job, run.expected, run.ready, now)
        if host.ends:
            machines.expected.add(host.expected)
        return host

    def _boots_first(self, machines: PoolMachines, pool: int, pieces: Pieces, now: int) -> None:
        """A job of no length ends as soon as its machines are ready."""
        for batch, _ in pieces:
            if batch in machines.booked:
                self._booted(pool, batch, now)

    def _free(self, machines: PoolMachines, pool: int, batch: int, count: int, now: int) -> None:
        if (machines.draining or not self.reuse) and machines.batch_due[batch] != NEVER:
            count -= self._let_go(machines, batch, count, now)
        if count:
            look = machines.put_idle(batch, count, now)
            if look is not None:
                heappush(self.events, look << 35 | _CHECK | pool)

    def _let_go(self, machines: PoolMachines, batch: int, count: int, now: int) -> int:
        """Flagged machines go when their job ends, and so do those that serve one job only."""
        gone = count
        if self.reuse:
            gone = min(machines.draining, count)
            machines.draining -= gone
        machines.end(batch, gone, now)
        machines.releases += 1
        return gone

    def _booted(self, pool: int, batch: int, now: int) -> None:
        """Machines are ready, for a job of their own or for any; or were lost while they booted."""
        machines = self.pools[pool]
        if batch in machines.booked:
            machines.booked.remove(batch)
            machines.busy += machines.booted(batch)
        elif batch in machines.coming:
            machines.expected.drop(machines.coming.pop(batch))
            self._free(machines, pool, batch, machines.booted(batch), now)
            self.queue.full = True
            self.asked = self.asked or self._asks_again(machines)

    def _asks_again(self, machines: PoolMachines) -> bool:
        """Whether to ask for growth when machines of the pool are ready. A policy that is asked
        only when jobs come and go is asked, too, if it may not have got what the first job needs.
        """
        grower = self.grower
        stands_still = len(grower.growing) > 1 and not self.runs.now
        return grower.period is not None or bool(machines.turns) or stands_still

    def _start(self, job: int, pool: int, need: int, now: int, beside: Host | None = None) -> bool:
        """Start a job on idle machines first; more are bought for it. False if these cannot be had:
        Slurm then requeues the job. ``beside``: a machine in use that has room for it.
        """
        machines = self.pools[pool]
        shared = machines.shared if need == 1 else None
        if shared is not None and beside is not None:
            self._join(job, pool, shared, beside, now)
            return True
        idle = machines.idle if self.reuse else 0
        if need <= idle:
            idle, ready, pieces = need, now, machines.take(need, now)
        else:
            sales = self.purchases.buy(pool, need - idle, now, whole=True)
            if not sales:
                self.queue.full = self.queue.stale = True  # fewer may be launched in the held pool
                return False
            pieces = machines.take(idle, now) if idle else []
            ready = self._boot_for(machines, pool, sales, pieces, now)
        end, expected = self.runs.begin(job, pool, pieces, need, now, ready, idle)
        if machines.expected.tracks:
            insort(machines.expected.keys, expected)  # as ``add`` does
        if shared is not None and shared.share(job) != shared.whole:
            shared.open(job, pieces, ready, expected, idle)
        heappush(self.events, end << 35 | job)
        return True

    def _join(self, job: int, pool: int, shared: SharedMachines, host: Host, now: int) -> None:
        """Start a job that leaves part of a machine to others beside those that run there."""
        machines, before, ready = self.pools[pool], host.expected, max(now, host.ready)
        end, expected = self.runs.begin(job, pool, host.pieces, 1, now, ready, 0)
        shared.join(job, host, expected)
        machines.expected.drop(before)
        machines.expected.add(host.expected)
        heappush(self.events, end << 35 | job)

    def _boot_for(
        self, machines: PoolMachines, pool: int, sales: Sales, pieces: Pieces, now: int
    ) -> int:
        """Launch what was bought for a job; when it is ready."""
        if machines.turns:
            waves = machines.start(sales, now)
            ready = max(done for done, _ in waves)
            launched = [piece for _, part in waves for piece in part]
        else:
            ready, launched = machines.launch(sales, now)
        pieces += launched
        count = sum([part for _, part in sales]) if len(sales) > 1 else sales[0][1]
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
        if machines.spot_live:
            self._watch(pool, now)
        return ready

    def boot_ahead(self, pool: int, count: int, now: int) -> None:
        """Boot machines for whoever comes first, as many as can be had."""
        machines = self.pools[pool]
        sales = self.purchases.buy(pool, count, now, whole=False)
        if not sales:
            return
        for ready, launched in machines.start(sales, now):
            for batch, part in launched:
                machines.expect_boot(batch, part, ready)
                heappush(self.events, ready << 35 | _BOOT | batch * POOLS + pool)
        if machines.spots:
            self._watch(pool, now)
        if now < self.queue.shadow:
            self.queue.shadow = now  # the first job may start sooner now

    def look_again(self, pool: int, now: int) -> None:
        """No job needs the machines that were due and stayed: they may go when due again."""
        for when in self.pools[pool].look_again(now):
            self._push(when, CHECK, pool)

    def look_later(self, now: int) -> None:
        """Bounds open with time. Whoever asks, only one such look is planned at a time."""
        if self.opens <= now:
            self.opens = now + max(self.grower.period or 1, WINDOW_LOOK)
            self._look_at(self.opens)

    def _watch(self, pool: int, now: int) -> None:
        """Find out when the next spot machines of a pool are lost."""
        machines = self.pools[pool]
        for offer in machines.spots:
            when = machines.watch(now, offer)
            if when is not None:
                self._push(when, FALL, offer * POOLS + pool)
                market = machines.sold[offer].market
                if self.runs.moves_saved and market is not None and market.notice:
                    self._push(max(when - market.notice, now), WARN, offer * POOLS + pool)

    def _warn(self, payload: int, now: int) -> None:
        """The cloud says which machines it will take: their jobs are saved, and then moved."""
        pool, offer = payload % POOLS, payload // POOLS
        machines = self.pools[pool]
        loss, market = machines.falls[offer], machines.sold[offer].market
        # That loss has moved since, and with it the warning, which has an event of its own.
        if market is None or loss < 0 or max(loss - market.notice, 0) > now:
            return
        over, batch = machines.over(offer, loss), len(machines.batch_start)
        if over > 0:
            self.purchases.taken(pool, offer, now)
        while over > 0 and batch:
            batch -= 1
            if machines.batch_offer[batch] != offer or not machines.batch_live[batch]:
                continue
            over -= machines.idle_of(batch)
            for job in self.runs.on(pool, batch) if over > 0 else ():
                when = self.runs.moves(job, loss)
                if when is not None and when < loss:
                    self.moving[job] = (self.runs.now[job], batch, loss)
                    self._push(max(when, now), MOVE, job)
                over -= sum([n for of, n in self.runs.now[job].pieces if of == batch])

    def _move(self, job: int, now: int) -> None:
        """A saved job leaves the machines that will be lost; these end now."""
        run, batch, loss = self.moving.pop(job, (None, 0, 0))
        # It has ended, or was lost and runs anew.
        if run is None or self.runs.now.get(job) is not run:
            return
        self._interrupt(job, run.pool, batch, run.need, now, loss)
        self.queue.stale = True
        self._look_at(now)

    def _fall(self, payload: int, now: int) -> None:
        """The cloud takes spot machines, the youngest first; their jobs go back into the queue."""
        pool, offer = payload % POOLS, payload // POOLS
        machines = self.pools[pool]
        # That loss has moved since, and has another event.
        if machines.falls[offer] != now:
            return
        machines.falls[offer] = -1
        over = machines.over(offer, now)
        batch = len(machines.batch_start)
        if over > 0:
            self.purchases.taken(pool, offer, now)
        while over > 0 and batch:
            batch -= 1
            if machines.batch_offer[batch] == offer and machines.batch_live[batch]:
                lost = self._lose(pool, batch, min(over, machines.batch_live[batch]), now)
                machines.reclaimed += lost
                over -= lost
        self.queue.full = self.asked = True
        self._watch(pool, now)

    def _lose(self, pool: int, batch: int, count: int, now: int) -> int:
        """Lose machines of a batch: idle ones first, then those of running jobs."""
        machines = self.pools[pool]
        lost = machines.lose_idle(batch, count, now)
        if lost < count and batch in machines.coming:
            lost += machines.lose_coming(batch, count - lost, now)
        for job in self.runs.on(pool, batch) if lost < count else ():
            if job not in self.runs.now:
                continue  # lost with another job of its machine
            lost += self._interrupt(job, pool, batch, count - lost, now)
            if lost >= count:
                break
        return lost

    def _interrupt(
        self, job: int, pool: int, batch: int, most: int, now: int, loss: int | None = None
    ) -> int:
        """A job loses up to ``most`` machines of ``batch``; its others become idle. ``loss``: when
        the cloud would take them; they are given back now.
        """
        machines = self.pools[pool]
        run = self.runs.interrupt(job, now, loss)
        if machines.shared is not None and job in machines.shared.of:
            run = self._empty(machines, machines.shared, run, now, loss)
        else:
            machines.expected.drop(run.expected)
        # Until the run is ready only its idle machines are up: the others boot.
        lost, up = 0, run.need if run.ready < now else run.idle
        for held, count in run.pieces:
            if up <= 0:
                gone = min(count, most - lost) if held == batch else 0
                lost += self._stop_boot(run, held, count, gone, now)
                continue
            up -= count
            machines.busy -= count
            machines.busy_area += count * now
            gone = min(count, most - lost) if held == batch else 0
            if gone:
                machines.end(held, gone, now, reclaimed=loss is None)
                lost += gone
            if count > gone:
                self._free(machines, pool, held, count - gone, now)
        self.grower.covered.discard(job)
        self._push(now + self.scenario.requeue_delay, ARRIVE, job)
        return lost

    def _empty(
        self, machines: PoolMachines, shared: SharedMachines, run: Run, now: int, loss: int | None
    ) -> Run:
        """Interrupt a machine's other jobs; returns the run as if it had been alone there."""
        host = shared.of[run.job]
        for job in sorted(set(host.jobs) - {run.job}):
            self._leave(machines, shared, self.runs.interrupt(job, now, loss), now)
            self.grower.covered.discard(job)
            self._push(now + self.scenario.requeue_delay, ARRIVE, job)
        self._leave(machines, shared, run, now)
        return run._replace(ready=host.ready, idle=host.idle)

    def _stop_boot(self, run: Run, batch: int, count: int, most: int, now: int) -> int:
        """Stop the boot of machines for a job: up to ``most`` are lost; the others boot for whoever
        comes first, or were up already and waited for the job's last one. How many are lost.
        """
        machines = run.machines
        machines.busy_area += count * run.ready
        if self.counts_boots:
            machines.booked.discard(batch)
        else:
            machines.busy -= count
            machines.booting += count
        lost = machines.lose_booting(batch, most, now)
        if lost < count:
            ready = max(machines.batch_ready[batch], now)
            machines.expect_boot(batch, count - lost, ready)
            self._push(ready, BOOT, batch * POOLS + run.pool)
        return lost

    def _later(self, when: int, job: int | None) -> None:
        """Have a job come back then, or the queue looked at."""
        if job is None:
            self._look_at(when)
        else:
            self._push(when, ARRIVE, job)

    def _look_at(self, when: int) -> None:
        """Plan a look at that second, once."""
        if when not in self.due_looks:
            self.due_looks.add(when)
            self._push(when, LOOK, 0)

    def _push(self, when: int, kind: int, payload: int) -> None:
        heappush(self.events, (when << 3 | kind) << 32 | payload)
