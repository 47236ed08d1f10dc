"""The idle machines of a pool, in the order in which jobs get them.

Machines that were launched together (a batch) are equal, so we keep only their count. An entry is
(batch, since). ``since`` is 0 if no policy uses it, so that there are fewer entries to sort.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from slurm_elastic.policies.growth.release import IdleOrder

Pieces = list[tuple[int, int]]  # (batch, machines) that a job holds

_MAX_BATCHES = 1 << 32
_MAX_TIME_S = 1 << 40


class IdleMachines(Protocol):
    """The interface of all orders."""

    def put(self, batch: int, count: int, since: int) -> None:
        """Add ``count`` machines of a batch."""
        ...

    def take(self, count: int, now: int) -> Pieces:
        """Take ``count`` machines for a job. The caller checks that there are so many."""
        ...

    def remove(self, batch: int, since: int, limit: int) -> int:
        """Remove up to ``limit`` machines of an entry and return how many. The others keep their
        place.
        """
        ...

    def entries(self) -> list[tuple[int, int, int]]:
        """Return all entries as (batch, since, machines)."""
        ...


def idle_machines(
    order: IdleOrder, starts: Sequence[int], lease: int, seed: int, *, sinces: bool
) -> IdleMachines:
    """Return an empty set with that order. ``starts``: when the lease of each batch begins."""
    # The simulator knows no hosts, so all of them are equally full.
    if order in (IdleOrder.RANDOM, IdleOrder.PACKED):
        return _RandomOrder(random.Random(seed))  # noqa: S311 - repeatable, not secret
    if order in (IdleOrder.MAX_IDLE, IdleOrder.MIN_IDLE):
        return _IdleTimeOrder(oldest=order is IdleOrder.MAX_IDLE)
    return _MarginOrder(starts, lease, largest=order is IdleOrder.MAX_MARGIN, sinces=sinces)


class _MarginOrder:
    """The idle machines, sorted by the phase of the lease. The order by the rest of the lease is
    the same order, rotated by the present phase.
    """

    def __init__(self, starts: Sequence[int], lease: int, *, largest: bool, sinces: bool) -> None:
        self.starts, self.lease, self.largest = starts, lease, largest
        # Without ``since``, each phase needs only one slot of time, and the keys stay small.
        self.times = _MAX_TIME_S if sinces else 1
        self.phase = self.times * _MAX_BATCHES
        self.keys: list[int] = []
        self.counts: dict[int, int] = {}

    def put(self, batch: int, count: int, since: int) -> None:
        key = self.starts[batch] % self.lease * self.phase + since * _MAX_BATCHES + batch
        counts = self.counts
        if key in counts:
            counts[key] += count
        else:
            counts[key] = count
            insort(self.keys, key)

    def take(self, count: int, now: int) -> Pieces:
        keys, counts, largest = self.keys, self.counts, self.largest
        # The lease just before this index was renewed last and has the most time left. The lease
        # at this index has the least.
        index = bisect_left(keys, (now % self.lease + 1) * self.phase)
        pieces = []
        while True:
            if largest:
                index = index - 1 if index > 0 else -1
            elif index >= len(keys):
                index = 0
            key = keys[index]
            available = counts[key]
            if available > count:
                counts[key] = available - count
                pieces.append((key % _MAX_BATCHES, count))
                return pieces
            del keys[index], counts[key]
            pieces.append((key % _MAX_BATCHES, available))
            if available == count:
                return pieces
            count -= available

    def remove(self, batch: int, since: int, limit: int) -> int:
        key = self.starts[batch] % self.lease * self.phase + since * _MAX_BATCHES + batch
        count = self.counts.get(key, 0)
        if count > limit:
            self.counts[key] = count - limit
            return limit
        if count:
            del self.keys[bisect_left(self.keys, key)], self.counts[key]
        return count

    def entries(self) -> list[tuple[int, int, int]]:
        return [
            (key % _MAX_BATCHES, key // _MAX_BATCHES % self.times, self.counts[key])
            for key in self.keys
        ]


class _IdleTimeOrder:
    """The idle machines, sorted by the time at which they became idle."""

    def __init__(self, *, oldest: bool) -> None:
        self.oldest = oldest
        self.counts: OrderedDict[tuple[int, int], int] = OrderedDict()

    def put(self, batch: int, count: int, since: int) -> None:
        key = (batch, since)
        self.counts[key] = self.counts.get(key, 0) + count

    def take(self, count: int, now: int) -> Pieces:  # noqa: ARG002
        counts, pieces = self.counts, []
        while count:
            key, available = counts.popitem(last=not self.oldest)
            used = min(available, count)
            pieces.append((key[0], used))
            count -= used
            if available > used:
                counts[key] = available - used
                counts.move_to_end(key, last=not self.oldest)
        return pieces

    def remove(self, batch: int, since: int, limit: int) -> int:
        count = self.counts.get((batch, since), 0)
        if count > limit:
            self.counts[batch, since] = count - limit
            return limit
        return self.counts.pop((batch, since), 0)

    def entries(self) -> list[tuple[int, int, int]]:
        return [(batch, since, count) for (batch, since), count in self.counts.items()]


class _RandomOrder:
    """The idle machines in random order: each is equally likely."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.machines: list[tuple[int, int]] = []

    def put(self, batch: int, count: int, since: int) -> None:
        self.machines.extend([(batch, since)] * count)

    def take(self, count: int, now: int) -> Pieces:  # noqa: ARG002
        machines, pick = self.machines, self.source.randrange
        count_by_batch: dict[int, int] = {}
        for _ in range(count):
            index = pick(len(machines))
            batch = machines[index][0]
            machines[index] = machines[-1]
            machines.pop()
            count_by_batch[batch] = count_by_batch.get(batch, 0) + 1
        return list(count_by_batch.items())

    def remove(self, batch: int, since: int, limit: int) -> int:
        before = len(self.machines)
        removals = iter(range(limit))
        self.machines = [
            machine
            for machine in self.machines
            if machine != (batch, since) or next(removals, None) is None
        ]
        return before - len(self.machines)

    def entries(self) -> list[tuple[int, int, int]]:
        return [(batch, since, 1) for batch, since in self.machines]
