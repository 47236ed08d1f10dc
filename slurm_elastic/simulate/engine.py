"""The simulation's loop: jobs arrive, start, end and are interrupted; machines boot, idle and end.

Time is in whole seconds. Within a second the order is: ends of jobs and losses of machines, returns
of jobs, machines that become ready, arrivals of new jobs, starts of waiting jobs, growth, release.

With ``Slurm`` growth a job may also get machines that do not run yet, and starts when they are
ready. With the other policies the policy boots machines, and jobs start on idle machines.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.simulate.bills.losses import RunState
from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.bills.reserved_bill import with_reservations
from slurm_elastic.simulate.core import compiled
from slurm_elastic.simulate.core.modelled import unmodelled
from slurm_elastic.simulate.events import ARRIVE, BOOT, CHECK, POOLS, WARN
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.queues.cloud_order import JobOrders
from slurm_elastic.simulate.queues.queueing import too_large
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.studies.standing import on_standing_machines
from slurm_elastic.simulate.studies.unbought import unbought

PROGRESS_EVERY = 1000
_ARRIVE, _BOOT, _CHECK, _WARN = ARRIVE << 48, BOOT << 48, CHECK << 48, WARN << 48
_PAYLOAD = (1 << 48) - 1
# An event is one integer, time above kind above payload: heapq compares integers much faster than
# tuples.
_KIND, _FROM_CHECK = 7 << 48, 4 << 48
"""Bits of an event: its kind, and the bit common to all kinds from CHECK on."""

Progress = Callable[
    [int], object
]  # called with the number of jobs that arrived since the last call


def simulate(
    jobs: Jobs, scenario: Scenario, origin: int = 0, progress: Progress | None = None
) -> RunResult:
    """Replay ``jobs``. ``origin``: the Unix time of their second 0.

    Raises SlurmElasticError if the scenario makes no sense, or if the books do not add up.
    """
    problems = scenario.problems()
    if problems:
        raise SlurmElasticError("; ".join(problems))
    outcome = on_standing_machines(jobs, scenario)
    if outcome is None:
        outcome = _engine(jobs, scenario)(jobs, scenario, origin, progress).run()
    elif progress:
        progress(len(jobs))
    with_reservations(outcome, scenario.held, origin)
    outcome.figures = replace(outcome.figures, unbought=unbought(scenario, outcome))
    return outcome


def _engine(jobs: Jobs, scenario: Scenario) -> type[Engine]:
    """Return the compiled engine; the engine in Python if it is missing or lacks a rule."""
    if compiled() is None or unmodelled(jobs, scenario):
        return Engine
    # Only here: it is a kind of Engine, and cannot be imported if nothing was compiled.
    from slurm_elastic.simulate.core.engine import CompiledEngine

    return CompiledEngine


class Engine(RunState):
    """A run of the simulation: takes the events in order."""

    def __init__(
        self, jobs: Jobs, scenario: Scenario, origin: int = 0, progress: Progress | None = None
    ) -> None:
        super().__init__(jobs, scenario, origin)
        self.progress = progress
        self.misfits = too_large(self.needs, self.pools)
        self.unserved: list[int] = []
        self.count = len(jobs)
        self.postponed = False

    def run(self) -> RunResult:
        """Simulate the whole history."""
        begin = self.jobs.submit[0] if self.count else 0
        for machines in self.pools:
            machines.add_standing(begin)
        if self.grower.watches and self.count:
            self._plan_look(begin)
        return self._finish(self._loop(begin))

    def _loop(self, now: int) -> int:  # noqa: C901 - one function on purpose: calls cost
        """Go from event to event. Returns the time of the last event."""
        # Local names, because this loop runs once per event and attributes are slower.
        events, submit, queue, count = self.events, self.jobs.submit, self.queue, self.count
        waiting, readies, arrive = queue.waiting, queue.readies, queue.arrive
        pools, running, misfits, grower = self.pools, self.runs.now, self.misfits, self.grower
        arrival, idle_since, warm, warmed = 0, now, self.warm, bool(self.warm)
        orders = self.orders
        soon = submit[0] if count else NEVER
        # An event that never comes, so that the heap is never empty.
        heappush(events, NEVER << 51)
        while True:
            top = events[0]
            when = now = top >> 51
            if when < soon:
                # A shortcut for releases while no job waits, which are most events of a quiet time.
                if not waiting and top & _KIND == _CHECK and not warmed:
                    pools[heappop(events) & _PAYLOAD].release_due(now)
                    self.now = now
                    if running or soon < NEVER:
                        idle_since = now
                    continue
            elif soon == NEVER:
                return self.now
            else:
                now = soon
            # The end of a boot for one job is no event, unless bounds count booting machines. It is
            # only a time at which the waiting queue is checked.
            ready = queue.next_ready(self.now) if waiting and readies else NEVER
            if ready < now:
                now = ready
            if orders is not None:
                self._order_jobs(orders, arrival, now)
            self.now = now
            # A full pass over the queue is needed only if the time of the reservation has passed.
            queue.full, self.asked = now > queue.shadow and now in (soon, ready), False
            if when == now and top & _KIND < _BOOT:
                self._handle_ends(now)
            if events[0] >> 51 == now:
                self._handle_boots(now)
            while soon == now:
                if arrival not in misfits:
                    arrive(arrival, now)
                    self.asked = True
                arrival, idle_since = arrival + 1, now
                if arrival % PROGRESS_EVERY == 0 and self.progress:
                    self.progress(PROGRESS_EVERY)
                soon = submit[arrival] if arrival < count else NEVER
            if self.finishing is not None:
                self.finishing.look(now)
            # Growth comes after the queue, so that the policy sees only the jobs that still wait.
            if waiting and queue.full:
                queue.schedule(now)
            if self.asked and (waiting or self.postponed or grower.watches):
                self._grow(now)
            while events[0] >> 51 == now and events[0] & _FROM_CHECK:
                self._look(heappop(events), now)
            if warmed:
                warm.keep(now)
            if arrival < count or running:
                idle_since = now
            # Nothing runs and nothing arrives. Without this end, a policy with periodic looks would
            # keep the simulation going for ever.
            elif now - idle_since > grower.patience:
                self.unserved += waiting
                waiting.clear()

    def _order_jobs(self, orders: JobOrders, arrival: int, now: int) -> None:
        """Decide in which order waiting jobs and the jobs that arrive now use the pools. All see
        the prices of this second, and the machines and cool-downs of the last event.
        """
        if self.queue.waiting:
            orders.look(self.queue.waiting, self.now, now)
        while arrival < self.count and self.jobs.submit[arrival] == now:
            orders.arrive(arrival, now)
            arrival += 1

    def _handle_ends(self, now: int) -> None:
        """Handle ends of jobs, losses of machines, and returns of jobs, which precede new jobs."""
        events, running, beyond = self.events, self.runs.now, (now << 51) + _BOOT
        while events[0] < beyond:
            event = heappop(events)
            payload = event & _PAYLOAD
            if event & _KIND:
                act = self._return_job if event & _KIND == _ARRIVE else self._take_spot_machines
                act(payload, now)
                continue
            run = running.get(payload)
            if run is not None and self._end_run(run, now):
                self.queue.full = self.asked = True

    def _return_job(self, job: int, now: int) -> None:
        """Put a job back into the queue. If it is older than the first waiting job, it takes over
        the reservation.
        """
        queue = self.queue
        # Jobs are numbered in the order of their submission.
        is_oldest = bool(queue.waiting) and job < queue.waiting[0]
        queue.full = queue.full or is_oldest or now > queue.shadow
        if self.orders is not None:
            self.orders.come_back(job, now)
        queue.arrive(job, now)
        self.asked = True

    def _handle_boots(self, now: int) -> None:
        """Handle the ends of boots, and jobs that return in the second of their
        interruption.
        """
        events, first_event, beyond = self.events, (now << 51) + _ARRIVE, (now << 51) + _CHECK
        while events[0] < beyond and events[0] >= first_event:
            event = heappop(events)
            payload = event & _PAYLOAD
            if event & _KIND == _ARRIVE:
                self._return_job(payload, now)
                continue
            self._handle_boot(payload % POOLS, payload // POOLS, now)

    def _grow(self, now: int) -> None:
        """Ask the growth policy now, or plan its next look."""
        period, waiting = self.grower.period, self.queue.waiting
        if period is None:
            if waiting and not self.direct:
                self._launch(now)
                if not self.grower.free_of_bounds and self.grower.is_stopped(now):
                    self.look_later(now)
        elif self.looks not in self.due_looks and (waiting or self.grower.watches):
            next_look = -(-now // period) * period
            self.looks = next_look if next_look > self.looks else self.looks + period
            self._plan_look(self.looks)
        if self.postponed:
            self._look_again(now)

    def _look_again(self, now: int) -> None:
        """Plan the releases that were postponed while jobs waited, if no job waits now."""
        if self.postponed and not self.queue.counted(now):
            self.postponed = False
            for pool in range(len(self.pools)):
                self.look_again(pool, now)

    def _launch(self, now: int) -> None:
        """Start the machines that the policy wants, then schedule again: the first job's
        reservation may use these machines.
        """
        queue, running, launched = self.queue, len(self.runs.now), False
        for jobs, own_only in queue.classes(now):
            head = queue.head_start(jobs, now)
            wanted = self.grower.wanted(jobs, head, running, now, own_only=own_only)
            stays = self.grower.stays(sum([count for _, count, _ in wanted])) if wanted else ()
            for pool, count, least in wanted:
                self.boot_ahead(pool, count, now, stays[:count], least)
                stays = stays[count:]
                launched = True
            queue.watch_started(jobs, now)
        self.grower.given.clear()
        if launched and len(queue.waiting) > 1:
            queue.schedule(now)
            self._look_again(now)

    def _look(self, event: int, now: int) -> None:
        """Handle an event from CHECK on: a release, a notice, a move, or a look at the queue."""
        if (event >> 48) & 7 == CHECK:
            machines = self.pools[event & _PAYLOAD]
            if machines.yields or not self.queue.counted(now):
                kept = self.kept(event & _PAYLOAD, now) if machines.yields else 0
                released = machines.release_due(now, max(self.warm.kept(machines, now), kept))
                for when in machines.keep_longer(now) if kept else ():
                    self._push(when, CHECK, event & _PAYLOAD)
                if released and self.queue.waiting:
                    self.queue.stale = True
                    self._plan_look(now)
                return
            machines.postponed += machines.due.pop(now, ())
            self.postponed = True
            return
        if event & _KIND >= _WARN:
            act = self._handle_warning if event & _KIND == _WARN else self._move_saved_job
            act(event & _PAYLOAD, now)
            return
        if event & _PAYLOAD:
            self._look_at_purchase(event & _PAYLOAD, now)
            return
        self.due_looks.discard(now)
        self.purchases.review(now, waited_for=bool(self.queue.waiting))
        if self.queue.waiting and (self.direct or self.queue.stale):
            self.queue.schedule(now)
            self._look_again(now)
        if not self.direct:
            self._launch(now)
            self.grower.flag(self.queue.counted(now), len(self.runs.now), now)
        if self.queue.waiting and not self.grower.free_of_bounds:
            self.look_later(now)

    def kept(self, pool: int, now: int) -> int:
        """Return how many idle machines of a pool wait for the other machines of a waiting job."""
        if self.direct or not self.queue.waiting:
            return 0
        return self.grower.kept(self.queue.classes(now), len(self.runs.now), now)[pool]

    def _look_at_purchase(self, number: int, now: int) -> None:
        """Let the guard look at a purchase. Ask growth again if it counts other jobs from now on:
        after a verdict, or at the end of a pause.
        """
        waiting = self.queue.waiting
        if self.guard is None or not self.guard.look(number, waiting, now) or not waiting:
            return
        # When they count again, they count as new.
        self.grower.covered.difference_update(self.guard.unhelped_jobs)
        self._look_again(now)
        period = self.grower.period or 1
        self._plan_look(-(-now // period) * period)

    def _finish(self, now: int) -> RunResult:
        """End all machines and close the books. Standing machines are paid until the last event."""
        end = max(now, self.last_ready)
        if self.count and all(
            pool_machines.up == pool_machines.pool.standing for pool_machines in self.pools
        ):
            last_ends = [max(pool_machines.leases.end, default=0) for pool_machines in self.pools]
            end = max(max(self.runs.ended), self.jobs.submit[-1], *last_ends)
        for machines in self.pools:
            machines.close(end)
        unserved = self.unserved + self.queue.waiting
        outcome = RunResult.of(self.jobs, self.pools, self.runs, unserved, self.misfits)
        outcome.refusals = self.purchases.refusals
        return outcome
