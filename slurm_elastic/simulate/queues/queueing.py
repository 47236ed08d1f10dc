"""Decides which waiting job starts next: first come, first served, with EASY backfill over all
pools.

The first job that cannot start gets a reservation in the pool in which it could start earliest
(``easy`` describes the rule). No later job may delay it there. If there are several reservations,
so many jobs at the head of the queue get one each, and a later job may start if it fits between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop
from operator import itemgetter
from typing import Protocol

from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.ending import shadow as shadow_of
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.lasting import LastingPools
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.pool_terms import Lane
from slurm_elastic.simulate.queues.free_times import COUNT
from slurm_elastic.simulate.queues.reservations import FAR, Profile
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scaler import Grower
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import Seat, Share, SharedMachine, SharedMachines
from slurm_elastic.simulate.unhelped import SimulatedGuard


class Start(Protocol):
    """Start a job in a pool on ``need`` machines, or beside other jobs. False if that failed."""

    def __call__(
        self, job: int, pool: int, need: int, now: int, beside: SharedMachine | None = None, /
    ) -> bool: ...


def too_large(needs: Sequence[Sequence[int]], pools: Sequence[PoolMachines]) -> frozenset[int]:
    """Return the jobs that no pool could ever hold. ``needs``: per pool the machines per job."""
    pairs = [(need, pool.pool.machines) for need, pool in zip(needs, pools, strict=True)]
    if any(max(need, default=0) <= machines for need, machines in pairs):
        return frozenset()
    jobs: Iterable[int] = range(len(needs[0]))
    for need, machines in pairs:
        jobs = [job for job in jobs if need[job] > machines]
    return frozenset(jobs)


class Queue:
    """The ``waiting`` jobs, by submission. ``full``: a pass over the whole queue is due.

    ``shadow``: the end of the last pass's validity. ``stale``: it is not valid, because machines
    that it counted on are lost or could not be bought. ``head``: when the first job should start on
    machines that are up or booting (None: never). ``readies``: a heap of the times at which
    machines that boot for a job are ready. ``guard``: knows the jobs that growth does not count.
    ``lasting``: knows the jobs that are too long for a pool's machines.
    """

    def __init__(
        self,
        jobs: Jobs,
        scenario: Scenario,
        pools: Sequence[PoolMachines],
        needs: Sequence[Sequence[int]],
        grower: Grower,
        runs: Runs,
        start: Start,
    ) -> None:
        self.jobs, self.limit, self.scenario = jobs, jobs.limit, scenario
        self.pools, self.needs = pools, needs
        self.grower, self.runs, self.start = grower, runs, start
        self.depth, self.reuse = scenario.depth, scenario.reuse
        self.direct = isinstance(scenario.growth, Slurm)
        self._each: Sequence[Lane] = [(p, pools[p], needs[p]) for p in range(len(pools))]
        self.waiting: list[int] = []
        self.readies: list[int] = []
        self.full = self.stale = False
        self.guard: SimulatedGuard | None = None
        self.lasting: LastingPools | None = None
        self.shadow = NEVER
        self.extra = 0
        self.head: int | None = None
        self._reserved: PoolMachines | None = None
        self._seat: Seat | None = None
        self._only = None if len(pools) > 1 or self.direct or pools[0].shared else pools[0]

    def arrive(self, job: int, now: int) -> None:
        """Start a new or returning job, or put it into the queue. It starts before the first
        waiting job only if it does not delay that job. If a ``full`` pass is due, the pass decides.
        """
        if self.full:
            insort(self.waiting, job)
        elif self.depth and len(self.waiting) >= self.depth:
            insort(self.waiting, job)
            # A returning job keeps its old place, which may be within the depth.
            self.full = self.waiting[self.depth - 1] >= job
        elif not self.waiting:
            if not self._place(job, now):
                self.waiting.append(job)
                self.full = True
        # Only this job needs to be tried against the reservation. For the other jobs only time has
        # passed since the last pass, which never lets a job fit.
        elif not self._place(job, now):
            insort(self.waiting, job)

    def counted(self, now: int) -> Sequence[int]:
        """Return the waiting jobs that growth policies count."""
        jobs = self.waiting if self.guard is None else self.guard.counted(self.waiting, now)
        # If Slurm itself starts machines, it is asked for each job.
        return jobs if self.lasting is None or self.direct else self.lasting.counted(jobs, now)

    def watch_started(self, jobs: Sequence[int], now: int) -> None:
        """Watch whether the machines that were started last help these waiting jobs."""
        if self.guard is not None:
            self.guard.bought(jobs, now)

    def classes(self, now: int) -> Iterable[tuple[Sequence[int], bool]]:
        """Yield (waiting jobs for which machines may be started, own machines only)."""
        return ((jobs, False) for jobs in self.by_fit(self.counted(now), now))

    def by_fit(self, jobs: Sequence[int], now: int) -> Collection[Sequence[int]]:
        """Return the jobs in groups that can use the same machines and pools: some machines end too
        early for some jobs, and slurm-elasticd asks the policy for each group.
        """
        ends = sorted({
            end for machines in self.pools if machines.ending is not None
            for end in machines.ending.ends_now()
        })  # fmt: skip
        if self.lasting is None or not jobs:
            return (jobs,)
        groups: dict[tuple[object, ...], list[int]] = {}
        for job in jobs:
            until = now + self.grower.boot_s + self.limit[job]
            key = bisect_left(ends, until), self.lasting.short_pools(job, now)
            groups.setdefault(key, []).append(job)
        return groups.values()

    def head_start(self, jobs: Sequence[int], now: int) -> int | None:
        """Return when the first of these waiting jobs should start on machines that are up or
        booting (None: never).
        """
        if not jobs or jobs[0] == self.waiting[0]:
            return self.head
        job = jobs[0]
        times = (
            self._earliest(job, pool, machines, needs[job], now)[0]
            for pool, machines, needs in self._each
        )
        earliest = min(times, default=NEVER)
        return None if earliest == NEVER else earliest

    def paid_by_nobody(self) -> None:
        """Charge no job for the machines that were started last. A queue with budgets overrides
        this.
        """

    def next_ready(self, now: int) -> int:
        """Return the next time at which machines that boot for a job are ready."""
        readies = self.readies
        while readies and readies[0] <= now:
            heappop(readies)
        return readies[0] if readies else NEVER

    def schedule(self, now: int) -> None:
        """Pass over the whole queue: start jobs, reserve for the first that cannot start,
        backfill.
        """
        self.shadow, self.head, self._reserved, self._seat = NEVER, None, None, None
        if self.scenario.reservations > 1:
            self._schedule_deep(now)
            return
        queue, place, started = self.waiting, self._place, 0
        for job in queue:
            if not place(job, now):
                break
            started += 1
        del queue[:started]
        self.stale = False
        if queue:
            self._reserve(queue[0], now)
            if len(queue) > 1 and self._any_free():
                self._backfill(now)
                # A purchase failed, and the reservation may have counted on it.
                if self.stale:
                    self.schedule(now)

    def _backfill(self, now: int) -> None:
        """Start the jobs that do not delay the first job."""
        queue, place, only_pool = self.waiting, self._place, self._only
        waiting, end, needs = queue[:1], len(queue), self.needs[0]
        max_waiting = self.depth or end
        for position, job in enumerate(queue[1:], start=1):
            if len(waiting) >= max_waiting:
                end = position
                break
            if (only_pool is not None and needs[job] > only_pool.idle) or not place(job, now):
                waiting.append(job)
            elif not self._any_free():
                end = position + 1
                break
        queue[:end] = waiting

    def _any_free(self) -> bool:
        for machines in self.pools:
            if machines.idle or (self.direct and machines.room()):
                return True
            if machines.shared is not None and machines.shared.hosts:
                return True
        return False

    def _place(self, job: int, now: int) -> bool:
        """Start the job in the first pool that can take it without delaying the reservation."""
        direct, reuse = self.direct, self.reuse
        for pool, machines, needs in self._each:
            need = needs[job]
            if machines.shared is not None and need == 1:
                beside = self._beside(job, machines, machines.shared, now)
                if beside is not None and self.start(job, pool, 1, now, beside):
                    return True
            ending = machines.ending
            idle = machines.idle if ending is None else ending.usable(need, self.limit[job], now)
            lacking = need - idle if reuse else need
            if lacking > 0 and not (direct and self._may_boot(job, pool, lacking, now)):
                continue
            if machines is self._reserved:
                delay = machines.boot_delay(lacking, now) if lacking > 0 else 0
                if now + delay + self.limit[job] > self.shadow:
                    if need > self.extra:
                        continue
                    if self.start(job, pool, need, now):
                        self.extra -= need
                        return True
                    continue
            if self.start(job, pool, need, now):
                return True
        return False

    def _beside(
        self, job: int, machines: PoolMachines, shared: SharedMachines, now: int
    ) -> SharedMachine | None:
        """Return the first machine in use on which the job does not delay the first waiting job."""
        share, limit = shared.share(job), self.limit[job]
        for host in shared.with_room(job, share):
            end = max(now, host.ready) + limit
            if end > host.until:
                continue
            if (
                machines is not self._reserved
                or end <= self.shadow
                or self._take_spare(host, share)
            ):
                return host
        return None

    def _take_spare(self, host: SharedMachine, share: Share) -> bool:
        """Return True if a job may use ``share`` of a machine after the start of the first job. If
        so, subtract it from the spare capacity.
        """
        if self._seat is not None:
            if self._seat.host is not host:
                return True
            spare = self._seat.has(share)
            if spare:
                self._seat.take(share)
            return spare
        counted_on = host.expected >> 64 <= self.shadow
        if counted_on and not self.extra:
            return False
        self.extra -= counted_on
        return True

    def _may_boot(self, job: int, pool: int, missing: int, now: int) -> bool:
        """Return True if the machines that a job lacks may be launched. For ``direct`` growth."""
        machines = self.pools[pool]
        if missing > machines.room() or self._is_too_long(job, pool, missing, now):
            return False
        grower = self.grower
        return grower.free_of_bounds or grower.may_launch(missing, now, public=machines.pool.public)

    def _is_too_long(self, job: int, pool: int, count: int, now: int) -> bool:
        """Return True if no ``count`` new machines of the pool would stay for the job."""
        return self.lasting is not None and self.lasting.is_too_long(job, pool, count, now)

    def _reserve(self, job: int, now: int) -> None:
        """Reserve in the pool in which the job should fit earliest."""
        for pool, machines, needs in self._each:
            need = needs[job]
            if need > machines.pool.machines:
                continue
            if not machines.expected.tracks:
                machines.expected.track((*self.runs.expected(pool), *machines.coming.values()))
            shadow, extra = self._earliest(job, pool, machines, need, now)
            seat = None
            if machines.shared is not None and need == 1:
                seat = machines.shared.seat(job, now, shadow)
            if seat is not None:
                shadow, extra = seat.when, machines.max_machines
            if shadow < self.shadow:
                self.shadow, self.extra, self._reserved = shadow, extra, machines
                self._seat = seat
        self.head = None if self._reserved is None else self.shadow

    def _earliest(
        self, job: int, pool: int, machines: PoolMachines, need: int, now: int
    ) -> tuple[int, int]:
        """Return when so many machines of a pool should be free, and how many more are then."""
        unstarted = machines.room() if self.direct else 0
        if unstarted and self._is_too_long(job, pool, need, now):
            unstarted = 0
        ending = machines.ending
        if ending is None:
            return machines.expected.shadow(need, machines.idle + unstarted, now)
        busy = self.runs.free_at(pool)
        busy += [
            (machines.batch_ready[batch], [(batch, key & COUNT)])
            for batch, key in machines.coming.items()
        ]
        return shadow_of(need, self.limit[job], unstarted, ending.free(now, busy), now)

    def _schedule_deep(self, now: int) -> None:
        """Pass over the queue with several reservations. Each pass makes all reservations again."""
        for pool, machines in enumerate(self.pools):
            if not machines.expected.tracks:
                machines.expected.track((*self.runs.expected(pool), *machines.coming.values()))
        profiles = [machines.profile(now, direct=self.direct) for machines in self.pools]
        queue = self.waiting
        waiting: list[int] = []
        max_waiting = self.depth or len(queue)
        end = len(queue)
        for position, job in enumerate(queue):
            if len(waiting) >= max_waiting:
                end = position
                break
            fit = self._first_fit(job, profiles, now)
            while fit is not None and not self.start(job, fit, self.needs[fit][job], now):
                fit = self._first_fit(job, profiles, now)
            if fit is not None:
                profiles[fit].use(now, self.needs[fit][job], self.limit[job])
            else:
                waiting.append(job)
                if len(waiting) <= self.scenario.reservations:
                    when = self._reserve_in(job, profiles, now)
                    self.head = when if position == 0 and when < FAR else self.head
        queue[:end] = waiting
        self.stale = False
        self.shadow = now  # not valid for later: the next arrival must make all reservations again

    def _first_fit(self, job: int, profiles: Sequence[Profile], now: int) -> int | None:
        for pool, machines, needs in self._each:
            need = needs[job]
            ending = machines.ending
            idle = machines.idle if ending is None else ending.usable(need, self.limit[job], now)
            missing = need - idle
            if missing > 0 and not (self.direct and self._may_boot(job, pool, missing, now)):
                continue
            if profiles[pool].fits(now, need, self.limit[job]):
                return pool
        return None

    def _reserve_in(self, job: int, profiles: Sequence[Profile], now: int) -> int:
        """Reserve in the pool in which the job should fit earliest. Returns the time."""
        limit = self.limit[job]
        times = [
            (profiles[pool].earliest(needs[job], limit), pool)
            for pool, _, needs in self._each
            if not self._is_too_long(job, pool, needs[job], now)
        ]
        # Of equal times the first pool in the job's order.
        soonest, pool = min(times, default=(FAR, 0), key=itemgetter(0))
        if soonest < FAR:
            profiles[pool].use(soonest, self.needs[pool][job], limit)
        return soonest
