"""Machines on reservations at whose end the cloud ends them (EC2's capacity blocks).

As in Slurm, where a reservation takes their nodes from that time on, a job gets such a machine only
if its time limit does not reach into it. The simulator knows no jobs that are saved and moved in
time, so it places no longer job there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import floor
from typing import Protocol

from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.queues.idle_set import IdleMachines, Pieces
from slurm_elastic.simulate.scenario import Sold

Free = tuple[int, int, int]  # from which second, how many machines, and when the cloud ends them


def ends_of(sold: Sequence[Sold]) -> tuple[int, ...]:
    """Return by offer when the cloud ends its machines, or NEVER; empty if it ends none."""
    held = [item.offer.held for item in sold]
    ends = [None if row is None else row.machines_end_at for row in held]
    if all(end is None for end in ends):
        return ()
    return tuple(NEVER if end is None else floor(end) for end in ends)


class OwnMachines(Protocol):
    """The part of a pool's machines that this module uses."""

    batch_offer: array[int]
    live_of: list[int]
    free: IdleMachines

    def boot_delay(self, count: int, now: int) -> int:
        """Return the seconds until so many machines are ready."""
        ...

    def take(self, count: int, now: int) -> Pieces:
        """Give idle machines to a job."""
        ...


class EndingMachines:
    """The ends of a pool's machines. ``ends``: by offer."""

    def __init__(self, ends: Sequence[int], machines: OwnMachines) -> None:
        self.ends, self._machines = ends, machines

    def end(self, batch: int) -> int:
        """Return when the cloud ends the machines of a batch."""
        return self.ends[self._machines.batch_offer[batch]]

    def ends_now(self) -> Iterator[int]:
        """Yield when the cloud ends machines that exist now."""
        pairs = zip(self.ends, self._machines.live_of, strict=True)
        return (end for end, live in pairs if live and end < NEVER)

    def usable(self, need: int, limit: int, now: int) -> int:
        """Return how many idle machines a job may have that needs ``need`` for ``limit`` seconds.
        It starts when the machines that it lacks have booted.
        """
        idle = self.idle_until(now + limit)
        while idle < need:
            # The fewer machines the job may have, the more must boot, which may take longer.
            boot_s = self._machines.boot_delay(need - idle, now)
            fewer = self.idle_until(now + boot_s + limit)
            if fewer == idle:
                break
            idle = fewer
        return idle

    def idle_until(self, until: int) -> int:
        """Return how many idle machines may have a job until then."""
        entries = self._machines.free.entries()
        return sum([count for batch, _, count in entries if until <= self.end(batch)])

    def unplanned(self, falls: Sequence[int]) -> list[int]:
        """Return the offers with machines whose end is not in ``falls`` (by offer)."""
        live = self._machines.live_of
        return [n for n, end in enumerate(self.ends) if live[n] and falls[n] != end < NEVER]

    def take(self, count: int, now: int, until: int) -> Pieces:
        """Take machines that the cloud does not end before ``until``."""
        idle = self._machines.free
        early = [entry for entry in idle.entries() if self.end(entry[0]) < until]
        for batch, since, machines in early:
            idle.remove(batch, since, machines)
        pieces = self._machines.take(count, now)
        for batch, since, machines in early:
            idle.put(batch, machines, since)
        return pieces

    def free(self, now: int, busy: Iterable[tuple[int, Pieces]]) -> list[Free]:
        """Return the machines by when they should be free. ``busy``: (second, machines) of those
        that run jobs or boot.
        """
        entries = self._machines.free.entries()
        idle = [(now, count, self.end(batch)) for batch, _, count in entries]
        return idle + [
            (max(when, now), count, self.end(batch))
            for when, pieces in busy
            for batch, count in pieces
        ]


def shadow(
    need: int, limit: int, unstarted: int, machines: Sequence[Free], now: int
) -> tuple[int, int]:
    """Return when ``need`` machines are free for ``limit`` seconds, and how many more are free
    then. ``unstarted``: machines that could be started now.
    """
    for when in sorted({now, *(since for since, _, _ in machines)}):
        count = unstarted + sum(
            [n for since, n, end in machines if since <= when and when + limit <= end]
        )
        if count >= need:
            return when, count - need
    return NEVER, 0
