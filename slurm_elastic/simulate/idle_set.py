"""Idle machines, in the order in which jobs get them. Machines launched together are alike: a
batch, of which we keep only a count. An entry is (batch, since); ``since`` is 0 if nobody asks for
it, so that there is less to sort.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from slurm_elastic.policies.growth.release import IdleOrder

Pieces = list[tuple[int, int]]  # (batch, machines) that a job holds

_BATCHES = 1 << 24
_TIMES = 1 << 40


class IdleMachines(Protocol):
    """What every order can do."""

    def put(self, batch: int, count: int, since: int) -> None:
        """Machines of a batch become idle."""
        ...

    def take(self, count: int, now: int) -> Pieces:
        """Take ``count`` machines for a job; there must be that many."""
        ...

    def remove(self, batch: int, since: int, most: int) -> int:
        """Remove up to ``most`` that are idle since then; how many. The others keep their place."""
        ...

    def left(self) -> list[tuple[int, int, int]]:
        """(batch, since, machines) of all."""
        ...


def idle_machines(
    order: IdleOrder, starts: Sequence[int], lease: int, seed: int, *, sinces: bool
) -> IdleMachines:
    """An empty set that gives out machines in ``order``. ``starts``: when a batch's bill begins."""
    if order is IdleOrder.RANDOM:
        return _AtRandom(random.Random(seed))  # noqa: S311 - repeatable, not secret
    if order in (IdleOrder.MAX_IDLE, IdleOrder.MIN_IDLE):
        return _ByIdleTime(oldest=order is IdleOrder.MAX_IDLE)
    return _ByMargin(starts, lease, largest=order is IdleOrder.MAX_MARGIN, sinces=sinces)


class _ByMargin:
    """Sorted by the phase of the lease. The order by margin is this one, rotated, at any time."""

    def __init__(self, starts: Sequence[int], lease: int, *, largest: bool, sinces: bool) -> None:
        self.starts, self.lease, self.largest = starts, lease, largest
        # Without since, each phase needs only one slot of time, and the keys stay small.
        self.times = _TIMES if sinces else 1
        self.phase = self.times * _BATCHES
        self.keys: list[int] = []
        self.counts: dict[int, int] = {}

    def put(self, batch: int, count: int, since: int) -> None:
        key = self.starts[batch] % self.lease * self.phase + since * _BATCHES + batch
        counts = self.counts
        if key in counts:
            counts[key] += count
        else:
            counts[key] = count
            insort(self.keys, key)

    def take(self, count: int, now: int) -> Pieces:
        keys, counts, largest = self.keys, self.counts, self.largest
        # Leases with a phase up to this one were renewed last and have most time left; the one
        # after it has least.
        index = bisect_left(keys, (now % self.lease + 1) * self.phase)
        pieces = []
        while True:
            if largest:
                index = index - 1 if index > 0 else -1
            elif index >= len(keys):
                index = 0
            key = keys[index]
            there = counts[key]
            if there > count:
                counts[key] = there - count
                pieces.append((key % _BATCHES, count))
                return pieces
            del keys[index], counts[key]
            pieces.append((key % _BATCHES, there))
            if there == count:
                return pieces
            count -= there

    def remove(self, batch: int, since: int, most: int) -> int:
        key = self.starts[batch] % self.lease * self.phase + since * _BATCHES + batch
        count = self.counts.get(key, 0)
        if count > most:
            self.counts[key] = count - most
            return most
        if count:
            del self.keys[bisect_left(self.keys, key)], self.counts[key]
        return count

    def left(self) -> list[tuple[int, int, int]]:
        return [
            (key % _BATCHES, key // _BATCHES % self.times, self.counts[key]) for key in self.keys
        ]


class _ByIdleTime:
    """In the order in which they became idle."""

    def __init__(self, *, oldest: bool) -> None:
        self.oldest = oldest
        self.counts: OrderedDict[tuple[int, int], int] = OrderedDict()

    def put(self, batch: int, count: int, since: int) -> None:
        key = (batch, since)
        self.counts[key] = self.counts.get(key, 0) + count

    def take(self, count: int, now: int) -> Pieces:  # noqa: ARG002
        counts, pieces = self.counts, []
        while count:
            key, there = counts.popitem(last=not self.oldest)
            used = min(there, count)
            pieces.append((key[0], used))
            count -= used
            if there > used:
                counts[key] = there - used
                counts.move_to_end(key, last=not self.oldest)
        return pieces

    def remove(self, batch: int, since: int, most: int) -> int:
        count = self.counts.get((batch, since), 0)
        if count > most:
            self.counts[batch, since] = count - most
            return most
        return self.counts.pop((batch, since), 0)

    def left(self) -> list[tuple[int, int, int]]:
        return [(batch, since, count) for (batch, since), count in self.counts.items()]


class _AtRandom:
    """Any of them, each equally likely."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.machines: list[tuple[int, int]] = []

    def put(self, batch: int, count: int, since: int) -> None:
        self.machines.extend([(batch, since)] * count)

    def take(self, count: int, now: int) -> Pieces:  # noqa: ARG002
        machines, pick = self.machines, self.source.randrange
        taken: dict[int, int] = {}
        for _ in range(count):
            index = pick(len(machines))
            batch = machines[index][0]
            machines[index] = machines[-1]
            machines.pop()
            taken[batch] = taken.get(batch, 0) + 1
        return list(taken.items())

    def remove(self, batch: int, since: int, most: int) -> int:
        before = len(self.machines)
        gone = iter(range(most))
        self.machines = [
            machine
            for machine in self.machines
            if machine != (batch, since) or next(gone, None) is None
        ]
        return before - len(self.machines)

    def left(self) -> list[tuple[int, int, int]]:
        return [(batch, since, 1) for batch, since in self.machines]
