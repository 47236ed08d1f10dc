"""EASY backfill in plain Python with nothing around it: the floor for the simulator's speed."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import heappop, heappush


def bare_easy(  # noqa: C901 - one function on purpose: calls cost
    submit: array[int], run: array[int], limit: array[int], size: array[int], nodes: int
) -> list[int]:
    """Starts of all jobs: one function, one heap, one sorted list, every look from the head on."""
    count = len(submit)
    starts = [0] * count
    ends: list[int] = []
    expected: list[int] = []
    queue: list[int] = []
    free, arrival = nodes, 0
    while arrival < count or ends:
        now = ends[0] // count if ends else submit[arrival]
        if arrival < count and submit[arrival] < now:
            now = submit[arrival]
        while ends and ends[0] < (now + 1) * count:
            job = heappop(ends) % count
            free += size[job]
            del expected[bisect_left(expected, (starts[job] + limit[job]) * count + job)]
        while arrival < count and submit[arrival] == now:
            queue.append(arrival)
            arrival += 1
        while queue and size[queue[0]] <= free:
            job = queue.pop(0)
            starts[job] = now
            free -= size[job]
            heappush(ends, (now + run[job]) * count + job)
            insort(expected, (now + limit[job]) * count + job)
        if len(queue) < 2 or not free:
            continue
        missing, beyond, shadow = size[queue[0]] - free, 0, 0
        for key in expected:
            if beyond and key >= beyond:
                break
            missing -= size[key % count]
            if missing <= 0 and not beyond:
                shadow = max(key // count, now)
                beyond = (shadow + 1) * count
        extra = -missing
        waiting = queue[:1]
        for job in queue[1:]:
            need = size[job]
            if need > free or (now + limit[job] > shadow and need > extra):
                waiting.append(job)
                continue
            if now + limit[job] > shadow:
                extra -= need
            starts[job] = now
            free -= need
            heappush(ends, (now + run[job]) * count + job)
            insort(expected, (now + limit[job]) * count + job)
        queue = waiting
    return starts
