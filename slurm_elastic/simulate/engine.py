"""The simulation's loop: jobs arrive, start, end and are interrupted; machines boot, idle and go.

Time is whole seconds. At the same second, ends and losses of machines come first, then arrivals,
then machines that become ready. After that come the waiting jobs, then growth, then release.

With ``Slurm`` growth a job may also get machines that do not run yet, and starts when they are
ready. With the other policies machines boot by themselves, and jobs start on idle ones.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.simulate.events import ARRIVE, BOOT, CHECK, POOLS, WARN, Moves
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.market import NEVER
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.queueing import too_large
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.standing import on_standing_machines
from slurm_elastic.simulate.unbought import unbought

TELL = 1000
_ARRIVE, _BOOT, _CHECK, _WARN = ARRIVE << 32, BOOT << 32, CHECK << 32, WARN << 32
_PAYLOAD = (1 << 32) - 1
_KIND, _LAST = 7 << 32, 4 << 32
"""Bits of an event: its kind; and the bit that is set in checks and looks."""

Progress = Callable[[int], object]  # called from time to time with how many more jobs have arrived


def simulate(
    jobs: Jobs, scenario: Scenario, origin: int = 0, progress: Progress | None = None
) -> RunResult:
    """Replay ``jobs``; ``origin`` is the Unix time of their second 0, ``progress`` hears of jobs
    that have arrived. SlurmElasticError if the scenario makes no sense or the books do not add up.
    """
    problems = scenario.problems()
    if problems:
        raise SlurmElasticError("; ".join(problems))
    found = on_standing_machines(jobs, scenario)
    if found is None:
        found = Engine(jobs, scenario, origin, progress).run()
    elif progress:
        progress(len(jobs))
    found.figures = replace(found.figures, unbought=unbought(scenario, found))
    return found


class Engine(Moves):
    """One run: decides in which order things happen."""

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
        """Run it all."""
        begin = self.jobs.submit[0] if self.count else 0
        for machines in self.pools:
            machines.stand(begin)
        if self.grower.watches and self.count:
            self._look_at(begin)
        return self._finish(self._loop(begin))

    def _loop(self, now: int) -> int:  # noqa: C901 - one function on purpose: calls cost
        """Go from one moment at which something happens to the next; returns the last one."""
        events, submit, queue, count = self.events, self.jobs.submit, self.queue, self.count
        waiting, readies, arrive = queue.waiting, queue.readies, queue.arrive
        pools, running, misfits, grower = self.pools, self.runs.now, self.misfits, self.grower
        arrival, idle_since, warm, warmed = 0, now, self.warm, bool(self.warm)
        soon = submit[0] if count else NEVER
        # One that never comes, so that the heap is never empty.
        heappush(events, NEVER << 35)
        while True:
            top = events[0]
            when = now = top >> 35
            if when < soon:
                if not waiting and top & _KIND == _CHECK and not warmed:  # concerns no job
                    pools[heappop(events) & _PAYLOAD].release_due(now)
                    self.now = now
                    if running or soon < NEVER:
                        idle_since = now
                    continue
            elif soon == NEVER:
                return self.now
            else:
                now = soon
            # No event, as it changes nothing for anybody else unless bounds count booting machines:
            # only a time at which a waiting queue is looked at.
            ready = queue.next_ready(self.now) if waiting and readies else NEVER
            if ready < now:
                now = ready
            self.now = now
            # If machines may go, or something is over already, the queue need not be looked at.
            queue.full, self.asked = now > queue.shadow and now in (soon, ready), False
            if when == now and top & _KIND < _BOOT:
                self._ends(now)
            if events[0] >> 35 == now:
                self._boots(now)
            while soon == now:
                if arrival not in misfits:
                    arrive(arrival, now)
                    self.asked = True
                arrival += 1
                if arrival % TELL == 0 and self.progress:
                    self.progress(TELL)
                soon = submit[arrival] if arrival < count else NEVER
            if waiting and queue.full:
                queue.schedule(now)
            if self.asked and (waiting or self.postponed or grower.watches):
                self._grow(now)
            while events[0] >> 35 == now and events[0] & _LAST:
                self._look(heappop(events), now)
            if warmed:
                warm.keep(now)
            if arrival < count or running:
                idle_since = now
            elif now - idle_since > grower.patience:
                self.unserved += waiting
                waiting.clear()

    def _ends(self, now: int) -> None:
        """Jobs that end, machines taken away, and jobs that come back, which go before new ones."""
        events, running, beyond = self.events, self.runs.now, (now << 35) + _BOOT
        while events[0] < beyond:
            event = heappop(events)
            payload = event & _PAYLOAD
            if event & _KIND:
                act = self._back if event & _KIND == _ARRIVE else self._fall
                act(payload, now)
                continue
            run = running.get(payload)
            if run is not None and self._give_back(run, now):
                self.queue.full = self.asked = True

    def _back(self, job: int, now: int) -> None:
        """A job comes back; it takes the reservation of the first that waits, if it is older."""
        queue = self.queue
        first = bool(queue.waiting) and job < queue.waiting[0]
        queue.full = queue.full or first or now > queue.shadow
        queue.arrive(job, now)
        self.asked = True

    def _boots(self, now: int) -> None:
        """Machines are ready; and jobs come back in the second in which they were stopped."""
        events, first, beyond = self.events, (now << 35) + _ARRIVE, (now << 35) + _CHECK
        while events[0] < beyond and events[0] >= first:
            event = heappop(events)
            payload = event & _PAYLOAD
            if event & _KIND == _ARRIVE:
                self._back(payload, now)
                continue
            self._booted(payload % POOLS, payload // POOLS, now)

    def _grow(self, now: int) -> None:
        """Ask the growth policy, now or at its next look."""
        period, waiting = self.grower.period, self.queue.waiting
        if period is None:
            if waiting and not self.direct:
                self._launch(now)
                if not self.grower.free_of_bounds and self.grower.is_stopped(now):
                    self.look_later(now)
        elif self.looks not in self.due_looks and (waiting or self.grower.watches):
            again = -(-now // period) * period
            self.looks = again if again > self.looks else self.looks + period
            self._look_at(self.looks)
        if self.postponed:
            self._look_again(now)

    def _look_again(self, now: int) -> None:
        """Machines that were due while jobs waited may go once none waits."""
        if self.postponed and not self.queue.waiting:
            self.postponed = False
            for pool in range(len(self.pools)):
                self.look_again(pool, now)

    def _launch(self, now: int) -> None:
        """Start what the policy asks for; the first job's reservation may use these machines."""
        queue, running, launched = self.queue, len(self.runs.now), False
        for jobs, own in queue.classes(now):
            for pool, count in self.grower.wanted(jobs, queue.head, running, now, own=own):
                self.boot_ahead(pool, count, now)
                launched = True
        if launched and len(queue.waiting) > 1:
            queue.schedule(now)
            self._look_again(now)

    def _look(self, event: int, now: int) -> None:
        """Release what is due, or ask a growth policy that looks at intervals."""
        if (event >> 32) & 7 == CHECK:
            machines = self.pools[event & 0xFFFFFFFF]
            if machines.yields or not self.queue.waiting:
                keep = self.warm.kept(machines, now)
                if machines.release_due(now, keep) and self.queue.waiting:
                    self.queue.stale = True
                    self._look_at(now)
                return
            machines.postponed += machines.due.pop(now, ())
            self.postponed = True
            return
        if event & _KIND >= _WARN:
            act = self._warn if event & _KIND == _WARN else self._move
            act(event & _PAYLOAD, now)
            return
        self.due_looks.discard(now)
        self.purchases.review(now, waited_for=bool(self.queue.waiting))
        if self.queue.waiting and (self.direct or self.queue.stale):
            self.queue.schedule(now)
            self._look_again(now)
        if not self.direct:
            self._launch(now)
            self.grower.flag(self.queue.waiting, len(self.runs.now), now)
        if self.queue.waiting and not self.grower.free_of_bounds:
            self.look_later(now)

    def _finish(self, now: int) -> RunResult:
        """Release all machines and close the books; standing ones are paid to the very end."""
        last = max(now, self.last_ready)
        if self.count and all(one.up == one.pool.standing for one in self.pools):
            gone = [max(one.leases.end, default=0) for one in self.pools]
            last = max(*self.runs.ended, self.jobs.submit[-1], *gone)
        for machines in self.pools:
            machines.close(last)
        unserved = self.unserved + self.queue.waiting
        outcome = RunResult.of(self.jobs, self.pools, self.runs, unserved, self.misfits)
        outcome.refusals = self.purchases.refusals
        return outcome
