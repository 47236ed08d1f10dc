"""Decides which waiting job starts next: first come, first served with EASY backfill over all
pools.

The first job that cannot start gets a reservation in the pool in which it should start first
(``easy`` has the rule); no later job may delay it there. With several reservations the first so
many jobs get one, and a job may start if it fits in between.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from heapq import heappop
from typing import Protocol

from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.market import NEVER
from slurm_elastic.simulate.reservations import FAR, Profile
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scaler import Grower
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import Host, Seat, Share, SharedMachines


class Start(Protocol):
    """Starts a job in a pool on so many machines, or beside others; False if it cannot."""

    def __call__(
        self, job: int, pool: int, need: int, now: int, beside: Host | None = None, /
    ) -> bool: ...


def too_large(needs: Sequence[Sequence[int]], pools: Sequence[PoolMachines]) -> frozenset[int]:
    """Jobs that no pool could ever hold. ``needs``: how many machines each needs of each pool."""
    pairs = [(need, pool.pool.machines) for need, pool in zip(needs, pools, strict=True)]
    if any(max(need, default=0) <= most for need, most in pairs):
        return frozenset()
    jobs = range(len(needs[0]))
    return frozenset(job for job in jobs if all(need[job] > most for need, most in pairs))


class Queue:
    """The ``waiting`` jobs, by submission. ``full``: the whole queue must be looked at.

    ``shadow``: until when the last look holds. ``stale``: it no longer holds, as machines that it
    counted on are gone or could not be bought. ``head``: when the first job should start on
    machines that are up or booting (None: not at all). ``readies``: a heap of the times at which
    machines that boot for a job are ready.
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
        self._each = [(pool, pools[pool], needs[pool]) for pool in range(len(pools))]
        self.waiting: list[int] = []
        self.readies: list[int] = []
        self.full = self.stale = False
        self.shadow = NEVER
        self.extra = 0
        self.head: int | None = None
        self._reserved: PoolMachines | None = None
        self._seat: Seat | None = None
        self._only = None if len(pools) > 1 or self.direct or pools[0].shared else pools[0]

    def arrive(self, job: int, now: int) -> None:
        """A new job, or one that comes back, takes its place in the queue. It starts before the
        first that waits only if it does not delay that one, or in a ``full`` look.
        """
        if self.full:
            insort(self.waiting, job)
        elif self.depth and len(self.waiting) >= self.depth:
            insort(self.waiting, job)
            self.full = self.waiting[self.depth - 1] >= job  # it comes back from an interruption
        elif not self.waiting:
            if not self._place(job, now):
                self.waiting.append(job)
                self.full = True
        # Compared with the reservation alone: for the other jobs nothing has changed since the last
        # look but the time, which never helps them.
        elif not self._place(job, now):
            insort(self.waiting, job)

    def classes(self, now: int) -> Iterable[tuple[Sequence[int], bool]]:  # noqa: ARG002
        """The waiting jobs for which machines may be started ahead, and whether own ones only."""
        return ((self.waiting, False),)

    def paid_by_nobody(self) -> None:
        """The machines that were started last are for none of the jobs."""

    def next_ready(self, now: int) -> int:
        """When machines that boot for a job are ready next."""
        readies = self.readies
        while readies and readies[0] <= now:
            heappop(readies)
        return readies[0] if readies else NEVER

    def schedule(self, now: int) -> None:
        """Look at the whole queue: start jobs, reserve for the first that cannot, backfill."""
        self.shadow, self.head, self._reserved, self._seat = NEVER, None, None, None
        if self.scenario.reservations > 1:
            self._schedule_deep(now)
            return
        queue, place, begun = self.waiting, self._place, 0
        for job in queue:
            if not place(job, now):
                break
            begun += 1
        del queue[:begun]
        self.stale = False
        if queue:
            self._reserve(queue[0], now)
            if len(queue) > 1 and self._any_free():
                self._backfill(now)
                # A purchase failed that the reservation may have counted on.
                if self.stale:
                    self.schedule(now)

    def _backfill(self, now: int) -> None:
        """Start what does not delay the first job."""
        queue, place, only = self.waiting, self._place, self._only
        waiting, seen, needs = queue[:1], len(queue), self.needs[0]
        most = self.depth or seen
        for position, job in enumerate(queue[1:], start=1):
            if len(waiting) >= most:
                seen = position
                break
            if (only is not None and needs[job] > only.idle) or not place(job, now):
                waiting.append(job)
            elif not self._any_free():
                seen = position + 1
                break
        queue[:seen] = waiting

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
            lacks = need > machines.idle or not reuse
            if lacks and not (direct and self._may_boot(machines, need, now)):
                continue
            if machines is self._reserved:
                missing = need - machines.idle if reuse else need
                late = machines.late(missing, now) if missing > 0 else 0
                if now + late + self.limit[job] > self.shadow:
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
    ) -> Host | None:
        """The first machine in use on which the job does not delay the first waiting one."""
        share, limit = shared.share(job), self.limit[job]
        for host in shared.with_room(share):
            end = max(now, host.ready) + limit
            if machines is not self._reserved or end <= self.shadow or self._spare(host, share):
                return host
        return None

    def _spare(self, host: Host, share: Share) -> bool:
        """Whether a job may use so much of a machine beyond the first's start; if so, take it."""
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

    def _may_boot(self, machines: PoolMachines, need: int, now: int) -> bool:
        """Whether machines that a job lacks may be launched for it, with ``direct`` growth."""
        missing = need - machines.idle if self.reuse else need
        if missing > machines.room():
            return False
        grower = self.grower
        return grower.free_of_bounds or grower.may_launch(missing, now, public=machines.pool.public)

    def _reserve(self, job: int, now: int) -> None:
        """Reserve in the pool in which the job should fit first."""
        for pool, machines, needs in self._each:
            need = needs[job]
            if need > machines.pool.machines:
                continue
            if not machines.expected.tracks:
                machines.expected.track((*self.runs.expected(pool), *machines.coming.values()))
            free = machines.idle + (machines.room() if self.direct else 0)
            shadow, extra = machines.expected.shadow(need, free, now)
            seat = None
            if machines.shared is not None and need == 1:
                seat = machines.shared.seat(job, now, shadow)
            if seat is not None:
                shadow, extra = seat.when, machines.most
            if shadow < self.shadow:
                self.shadow, self.extra, self._reserved = shadow, extra, machines
                self._seat = seat
        self.head = None if self._reserved is None else self.shadow

    def _schedule_deep(self, now: int) -> None:
        """The same with several reservations; each look makes all of them anew."""
        for pool, machines in enumerate(self.pools):
            if not machines.expected.tracks:
                machines.expected.track((*self.runs.expected(pool), *machines.coming.values()))
        profiles = [machines.profile(now, direct=self.direct) for machines in self.pools]
        queue = self.waiting
        waiting: list[int] = []
        most = self.depth or len(queue)
        seen = len(queue)
        for position, job in enumerate(queue):
            if len(waiting) >= most:
                seen = position
                break
            fit = self._first_fit(job, profiles, now)
            while fit is not None and not self.start(job, fit, self.needs[fit][job], now):
                fit = self._first_fit(job, profiles, now)
            if fit is not None:
                profiles[fit].use(now, self.needs[fit][job], self.limit[job])
            else:
                waiting.append(job)
                if len(waiting) <= self.scenario.reservations:
                    when = self._reserve_in(job, profiles)
                    self.head = when if position == 0 and when < FAR else self.head
        queue[:seen] = waiting
        self.stale = False
        self.shadow = now  # the next arrival must have all of them made again

    def _first_fit(self, job: int, profiles: Sequence[Profile], now: int) -> int | None:
        for pool, machines, needs in self._each:
            need = needs[job]
            if need > machines.idle and not (self.direct and self._may_boot(machines, need, now)):
                continue
            if profiles[pool].fits(now, need, self.limit[job]):
                return pool
        return None

    def _reserve_in(self, job: int, profiles: Sequence[Profile]) -> int:
        """Reserve where the job should fit first; when that is."""
        limit = self.limit[job]
        times = [
            (profiles[pool].earliest(needs[job], limit), pool) for pool, _, needs in self._each
        ]
        soonest, pool = min(times, default=(FAR, 0))
        if soonest < FAR:
            profiles[pool].use(soonest, self.needs[pool][job], limit)
        return soonest
