"""First come, first served with EASY backfill on a fixed number of nodes: the fast path.

The head of the queue gets a reservation at the earliest time at which, by the running jobs' limits,
it fits (``shadow``); what is left of the nodes then is ``extra``. Another job may start before it
if it fits now and either ends by its own limit before the shadow or takes no more than the extra.
A job beyond its limit is expected to end at any moment. Ends come before arrivals of the same
second. ``engine`` does the same for machines that come and go, and is tested to agree.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import heappop, heappush

from slurm_elastic.simulate.jobs import Jobs

FAR = 2**62


def starts(jobs: Jobs, nodes: int, sizes: array[int] | None = None) -> array[int]:
    """When each job starts on ``nodes`` nodes; ``sizes``: nodes a job needs (else processors).

    Every job must fit: none may need more than ``nodes``.
    """
    return _Easy(jobs, nodes, jobs.procs if sizes is None else sizes).run()


class _Easy:
    """The state between two passes. Keys in ``ends`` and ``expected``: time x jobs + job."""

    def __init__(self, jobs: Jobs, nodes: int, sizes: array[int]) -> None:
        self.submit, self.runs, self.limit, self.sizes = jobs.submit, jobs.run, jobs.limit, sizes
        self.count = len(jobs)
        self.free = nodes
        self.start = array("q", bytes(8 * self.count))
        self.ends: list[int] = []
        self.expected: list[int] = []
        self.queue: list[int] = []
        self.shadow = FAR
        self.extra = 0

    def run(self) -> array[int]:
        submit, sizes, count, ends = self.submit, self.sizes, self.count, self.ends
        queue, schedule = self.queue, self._schedule
        arrival = 0
        while arrival < count or ends:
            now = submit[arrival] if arrival < count else FAR
            if ends and ends[0] < (now + 1) * count:
                now = self._release(ends[0] // count)
                full = True
            else:
                full = now > self.shadow
            while arrival < count and submit[arrival] == now:
                if full or queue:
                    queue.append(arrival)
                    if not full and sizes[arrival] <= self.free:
                        self._backfill(now, len(queue) - 1)
                elif sizes[arrival] <= self.free:
                    self._begin(arrival, now)
                else:
                    queue.append(arrival)
                    full = True
                arrival += 1
            if full and queue:
                schedule(now)
        return self.start

    def _release(self, now: int) -> int:
        """Take back the nodes of all jobs that end at ``now``."""
        ends, expected, count = self.ends, self.expected, self.count
        beyond = (now + 1) * count
        while ends and ends[0] < beyond:
            job = heappop(ends) % count
            self.free += self.sizes[job]
            del expected[bisect_left(expected, (self.start[job] + self.limit[job]) * count + job)]
        return now

    def _begin(self, job: int, now: int) -> None:
        self.free -= self.sizes[job]
        self.start[job] = now
        heappush(self.ends, (now + self.runs[job]) * self.count + job)
        insort(self.expected, (now + self.limit[job]) * self.count + job)

    def _schedule(self, now: int) -> None:
        """Start from the head while it fits, reserve for the next, backfill the rest."""
        queue, sizes = self.queue, self.sizes
        begun = 0
        for job in queue:
            if sizes[job] > self.free:
                break
            self._begin(job, now)
            begun += 1
        del queue[:begun]
        self.shadow = FAR
        if queue:
            self._reserve(now)
            if self.free and len(queue) > 1:
                self._backfill(now, 1)

    def _reserve(self, now: int) -> None:
        sizes, count = self.sizes, self.count
        missing = sizes[self.queue[0]] - self.free
        beyond = FAR * count
        for key in self.expected:
            if key >= beyond:
                break
            missing -= sizes[key % count]
            if missing <= 0 and beyond == FAR * count:
                self.shadow = max(key // count, now)
                beyond = (self.shadow + 1) * count  # all that is free at the shadow counts
        self.extra = -missing

    def _backfill(self, now: int, first: int) -> None:
        """Start the jobs from ``first`` on in the queue that do not delay the head."""
        queue, sizes, limit = self.queue, self.sizes, self.limit
        room = self.shadow - now
        begun = []
        for position in range(first, len(queue)):
            job = queue[position]
            size = sizes[job]
            if size > self.free:
                continue
            if limit[job] > room:
                if size > self.extra:
                    continue
                self.extra -= size
            self._begin(job, now)
            begun.append(position)
            if not self.free:
                break
        for position in reversed(begun):
            del queue[position]
