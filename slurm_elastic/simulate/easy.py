"""The fast path: first come, first served with EASY backfill on a fixed number of nodes.

The first waiting job gets a reservation at the earliest time at which it fits if the running jobs
run to their limits (``shadow``); ``extra`` is how many nodes are left then. A later job may start
before it if it fits now and either ends by its own limit before the shadow, or needs no more than
the extra nodes. At the same second, ends come before arrivals. ``queueing`` does the same for
machines that come and go; a test proves that they agree.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import heappop, heappush

from slurm_elastic.simulate.jobs import Jobs

FAR = 2**62
NOT_YET = -FAR


def starts(jobs: Jobs, nodes: int, sizes: array[int] | None = None) -> array[int]:
    """When each job starts on ``nodes`` nodes, none needing more; ``sizes``: if not processors."""
    return _Easy(jobs, nodes, jobs.procs if sizes is None else sizes).run()


class _Easy:
    """The state between two passes. Keys in ``ends`` and ``expected`` are time x jobs + job.

    ``held``: the nodes of each job in ``expected``. ``sized``: the waiting jobs of each size, in
    order, so that backfill skips all that are too large in one step; ``ascending``: these sizes.
    ``shortest``: no waiting job of that size has a smaller limit.
    """

    def __init__(self, jobs: Jobs, nodes: int, sizes: array[int]) -> None:
        self.submit, self.runs, self.limit = jobs.submit, jobs.run, jobs.limit
        self.sizes = list(sizes)  # which answers faster than an array
        self.count = len(jobs)
        self.free = nodes
        self.start = array("q", [NOT_YET]) * self.count
        self.ends: list[int] = []
        self.expected: list[int] = []
        self.held: list[int] = []
        self.queue: list[int] = []
        self.sized: dict[int, list[int]] = {}
        self.ascending: list[int] = []
        self.shortest: dict[int, int] = {}
        self.shadow = FAR
        self.extra = 0

    def run(self) -> array[int]:
        submit, sizes, count, ends = self.submit, self.sizes, self.count, self.ends
        sized, schedule, begin, wait = self.sized, self._schedule, self._begin, self._wait
        arrival = 0
        while arrival < count or ends:
            now = submit[arrival] if arrival < count else FAR
            if ends and ends[0] < (now + 1) * count:
                now = self._release(ends[0] // count)
                full = True
            else:
                full = now > self.shadow
            while arrival < count and submit[arrival] == now:
                if full or sizes[arrival] > self.free:
                    wait(arrival)
                    full = full or len(self.queue) == 1
                elif not sized or self._may_pass(arrival, now):
                    begin(arrival, now)
                else:
                    wait(arrival)
                arrival += 1
            if full and sized:
                schedule(now)
        return self.start

    def _release(self, now: int) -> int:
        """Take back the nodes of all jobs that end at ``now``."""
        ends, expected, count = self.ends, self.expected, self.count
        beyond = (now + 1) * count
        while ends and ends[0] < beyond:
            job = heappop(ends) % count
            self.free += self.sizes[job]
            place = bisect_left(expected, (self.start[job] + self.limit[job]) * count + job)
            del expected[place], self.held[place]
        return now

    def _begin(self, job: int, now: int) -> None:
        size = self.sizes[job]
        self.free -= size
        self.start[job] = now
        heappush(self.ends, (now + self.runs[job]) * self.count + job)
        key = (now + self.limit[job]) * self.count + job
        place = bisect_left(self.expected, key)
        self.expected.insert(place, key)
        self.held.insert(place, size)

    def _may_pass(self, job: int, now: int) -> bool:
        """Whether a job that fits now does not delay the first one."""
        if now + self.limit[job] > self.shadow:
            if self.sizes[job] > self.extra:
                return False
            self.extra -= self.sizes[job]
        return True

    def _wait(self, job: int) -> None:
        size, limit = self.sizes[job], self.limit[job]
        self.queue.append(job)
        same = self.sized.get(size)
        if same is None:
            self.sized[size], self.shortest[size] = [job], limit
            insort(self.ascending, size)
        else:
            same.append(job)
            if limit < self.shortest[size]:
                self.shortest[size] = limit

    def _leave(self, job: int, now: int) -> None:
        """The job no longer waits; ``queue`` keeps it until it would be the first."""
        self._begin(job, now)
        size = self.sizes[job]
        same = self.sized[size]
        if len(same) == 1:
            del self.sized[size]
            self.ascending.remove(size)
        else:
            same.remove(job)  # mostly the first

    def _schedule(self, now: int) -> None:
        """Start jobs in order while they fit, reserve for the next one, backfill the rest."""
        queue, start = self.queue, self.start
        while self.sized:
            job = queue[0]
            if start[job] == NOT_YET:
                if self.sizes[job] > self.free:
                    break
                self._leave(job, now)
            del queue[0]
        else:
            queue.clear()
            self.shadow = FAR
            return
        self._reserve(now)
        if self.free >= self.ascending[0]:
            self._backfill(now)

    def _reserve(self, now: int) -> None:
        """When the first job fits by the running jobs' limits, and how many nodes are left then."""
        expected, held = self.expected, self.held
        missing, at = self.sizes[self.queue[0]] - self.free, 0
        for at, nodes in enumerate(held):  # noqa: B007 - used below
            missing -= nodes
            if missing <= 0:
                break
        shadow = expected[at] // self.count
        # A running job beyond its limit may end at any moment.
        self.shadow = shadow = shadow if shadow > now else now
        beyond = (shadow + 1) * self.count  # all nodes that are free at the shadow count
        at += 1
        while at < len(held) and expected[at] < beyond:
            missing -= held[at]
            at += 1
        self.extra = -missing

    def _backfill(self, now: int) -> None:
        """Start the jobs that fit and do not delay the first one, in their order."""
        sizes, limit, sized, shortest = self.sizes, self.limit, self.sized, self.shortest
        ascending, room, free, extra = self.ascending, self.shadow - now, self.free, self.extra
        while True:
            first = FAR
            for size in ascending:
                if size > free:
                    break
                job = sized[size][0]
                if job >= first:
                    continue
                if size <= extra:
                    first = job
                elif shortest[size] <= room:
                    first = min(first, self._first_short(size, room))
            if first == FAR:
                self.extra = extra
                return
            free -= sizes[first]
            if limit[first] > room:
                extra -= sizes[first]
            self._leave(first, now)

    def _first_short(self, size: int, room: int) -> int:
        """The first waiting job of that size whose limit is within ``room``."""
        limit, same = self.limit, self.sized[size]
        for job in same:
            if limit[job] <= room:
                return job
        # The shortest of them has begun: without the new one each look would search in vain.
        self.shortest[size] = min([limit[job] for job in same])
        return FAR
