"""A limit on the number of machines that boot at a time (``max_booting``).

Machines started together boot in waves. Boots take a known time, so we know at once when
each wave begins. Requests are served in order of arrival, and none gives up. This differs from the
daemon, which gives a waiting node back after half of ResumeTimeout; the requeued job then asks for
it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_elastic.policies.launch.boots import turn


class BootTurns:
    """A limit of ``cap`` machines. ``booked``: (begin, end, machines) of present and future
    boots.
    """

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.booked: list[tuple[int, int, int]] = []

    def free_at(self, begin: int, end: int) -> int:
        """Return how many more machines may boot during the whole time from ``begin`` to
        ``end``.
        """
        times = {begin, *(start for start, _, _ in self.booked if begin < start < end)}
        booting = max(
            sum(count for start, end, count in self.booked if start <= when < end) for when in times
        )
        return turn([("", self.cap)], {"": booting})[0]


def waves(
    caps: Sequence[BootTurns], count: int, now: int, seconds: Callable[[int], int]
) -> list[tuple[int, int]]:
    """Book the boots of ``count`` machines under all ``caps``. Returns (start, machines) per wave.
    ``seconds(machines)``: the boot time of so many machines together.
    """
    for cap in caps:
        cap.booked = [boot for boot in cap.booked if boot[1] > now]
    waves_found: list[tuple[int, int]] = []
    when = now
    while count:
        wave_size = _fitting(caps, count, when, seconds)
        if not wave_size:
            when = min(end for cap in caps for _, end, _ in cap.booked if end > when)
            continue
        for cap in caps:
            cap.booked.append((when, when + seconds(wave_size), wave_size))
        waves_found.append((when, wave_size))
        count -= wave_size
    return waves_found


def last_ready(
    caps: Sequence[BootTurns], count: int, now: int, seconds: Callable[[int], int]
) -> int:
    """Return when ``count`` machines would all be ready, without booking anything."""
    copies = []
    for cap in caps:
        copies.append(BootTurns(cap.cap))
        copies[-1].booked = cap.booked
    return max(
        begin + seconds(wave_size) for begin, wave_size in waves(copies, count, now, seconds)
    )


def _fitting(
    caps: Sequence[BootTurns], count: int, when: int, seconds: Callable[[int], int]
) -> int:
    """Return the largest number of machines, up to ``count``, that may start at ``when``."""
    while count > 0:
        free_slots = min(cap.free_at(when, when + seconds(count)) for cap in caps)
        if free_slots >= count:
            break
        # Check the smaller number again: fewer machines may boot faster, so more of them may fit.
        count = free_slots
    return count
