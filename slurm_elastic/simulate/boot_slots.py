"""A limit on how many machines boot at a time (``max_booting``): the others wait for their turn.

Machines that are started together boot in waves. As boots take a known time, we know at once when
each wave begins. Whoever asked first comes first. Nobody gives up waiting, while a daemon's node
does so after half of ResumeTimeout, and is asked for again by its requeued job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_elastic.policies.launch.boots import turn


class Turns:
    """One limit. ``booked``: (from, until, machines) of the boots that are not over yet."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.booked: list[tuple[int, int, int]] = []

    def left(self, begin: int, end: int) -> int:
        """How many more may boot during the whole time from ``begin`` to ``end``."""
        times = {begin, *(start for start, _, _ in self.booked if begin < start < end)}
        most = max(
            sum(count for start, end, count in self.booked if start <= when < end) for when in times
        )
        return turn([("", self.cap)], {"": most})[0]


def waves(
    caps: Sequence[Turns], count: int, now: int, seconds: Callable[[int], int]
) -> list[tuple[int, int]]:
    """Book ``count`` machines under all of ``caps`` from ``now`` on: (when they start, how many).
    ``seconds`` says how long so many take together.
    """
    for cap in caps:
        cap.booked = [boot for boot in cap.booked if boot[1] > now]
    found: list[tuple[int, int]] = []
    when = now
    while count:
        part = _fitting(caps, count, when, seconds)
        if not part:
            when = min(end for cap in caps for _, end, _ in cap.booked if end > when)
            continue
        for cap in caps:
            cap.booked.append((when, when + seconds(part), part))
        found.append((when, part))
        count -= part
    return found


def last_ready(caps: Sequence[Turns], count: int, now: int, seconds: Callable[[int], int]) -> int:
    """When ``count`` machines would all be ready, without booking anything."""
    copies = []
    for cap in caps:
        copies.append(Turns(cap.cap))
        copies[-1].booked = cap.booked
    return max(begin + seconds(part) for begin, part in waves(copies, count, now, seconds))


def _fitting(caps: Sequence[Turns], count: int, when: int, seconds: Callable[[int], int]) -> int:
    """The most machines, up to ``count``, that may start then."""
    while count > 0:
        left = min(cap.left(when, when + seconds(count)) for cap in caps)
        if left >= count:
            break
        # Asked again for these alone, as fewer may boot faster.
        count = left
    return count
