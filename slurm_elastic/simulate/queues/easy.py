"""The fast path: first come, first served with EASY backfill on a fixed number of nodes.

The first waiting job gets a reservation at the time ``shadow``: the earliest at which it fits if
all running jobs run to their limits. ``extra``: the nodes still free at that time. A later job may
start before the first if it fits now, and either its limit ends before the shadow or it needs no
more than the extra nodes. At the same second, ends come before arrivals. ``queueing`` does the same
for machines that come and go; a test proves that both agree. ``core/easy.h`` is the same, compiled;
tests prove that each start is equal.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import heappop, heappush

from slurm_elastic.simulate.core import compiled
from slurm_elastic.simulate.histories.jobs import Jobs

FAR = 2**62
NOT_YET = -FAR


def starts(jobs: Jobs, nodes: int, sizes: array[int] | None = None) -> array[int]:
    """Return the start of each job on ``nodes`` nodes. ``sizes``: the nodes of each job (None: one
    per processor); none may exceed ``nodes``.
    """
    needed = jobs.procs if sizes is None else sizes
    core = compiled()
    if core is None:
        return _Easy(jobs, nodes, needed).run()
    first = array("q", bytes(8 * len(jobs)))
    core.easy_starts(jobs.submit, jobs.run, jobs.limit, needed, nodes, first)
    return first


class _Easy:
    """The state between two passes. Keys in ``ends`` and ``expected`` are time x jobs + job.

    ``held``: the nodes of each job in ``expected``. ``sized``: the waiting jobs of each size, in
    order, so that backfill skips all jobs of a size that is too large in one step; ``ascending``:
    these sizes. ``shortest``: a lower bound of the limits of the waiting jobs of a size.
    """

    def __init__(self, jobs: Jobs, nodes: int, sizes: array[int]) -> None:
        self.submit, self.runs, self.limit = jobs.submit, jobs.run, jobs.limit
        self.sizes = list(sizes)  # a list is faster than an array, which makes an int at each read
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
            # Keys are time x jobs + job, so this is true for ends at ``now`` and before it.
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
        """Free the nodes of all jobs that end at ``now``."""
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
        """Return True if a job that fits now does not delay the first job."""
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
        """Start a waiting job. ``queue`` keeps its entry until it comes first, because deleting it
        in the middle would be slow.
        """
        self._begin(job, now)
        size = self.sizes[job]
        same = self.sized[size]
        if len(same) == 1:
            del self.sized[size]
            self.ascending.remove(size)
        else:
            same.remove(job)  # fast: the job is mostly the first

    def _schedule(self, now: int) -> None:
        """Start jobs in order while they fit, reserve for the next job, backfill the others."""
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
        """Set ``shadow`` and ``extra`` for the first job, from the running jobs' limits."""
        expected, held = self.expected, self.held
        nodes_missing, index = self.sizes[self.queue[0]] - self.free, 0
        for index, nodes in enumerate(held):  # noqa: B007 - used below
            nodes_missing -= nodes
            if nodes_missing <= 0:
                break
        shadow = expected[index] // self.count
        # A running job beyond its limit may end at any moment.
        self.shadow = shadow = shadow if shadow > now else now
        beyond = (shadow + 1) * self.count  # all nodes that are free at the shadow count
        index += 1
        while index < len(held) and expected[index] < beyond:
            nodes_missing -= held[index]
            index += 1
        self.extra = -nodes_missing

    def _backfill(self, now: int) -> None:
        """Start the jobs that fit and do not delay the first job, in their order."""
        sizes, limit, sized, shortest = self.sizes, self.limit, self.sized, self.shortest
        ascending, room, free, extra = self.ascending, self.shadow - now, self.free, self.extra
        while True:
            candidate = FAR
            for size in ascending:
                if size > free:
                    break
                job = sized[size][0]
                if job >= candidate:
                    continue
                if size <= extra:
                    candidate = job
                elif shortest[size] <= room:
                    candidate = min(candidate, self._first_within(size, room))
            if candidate == FAR:
                self.extra = extra
                return
            free -= sizes[candidate]
            if limit[candidate] > room:
                extra -= sizes[candidate]
            self._leave(candidate, now)

    def _first_within(self, size: int, room: int) -> int:
        """Return the first waiting job of that size with a limit of at most ``room``; FAR if
        none.
        """
        limit, same = self.limit, self.sized[size]
        for job in same:
            if limit[job] <= room:
                return job
        # The job with the shortest limit has started. Store the new minimum, or every later call
        # would search all jobs of this size without success.
        self.shortest[size] = min([limit[job] for job in same])
        return FAR
