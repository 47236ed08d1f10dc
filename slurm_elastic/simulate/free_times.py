"""When the machines of a pool are expected to be free, and how many by then."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from slurm_elastic.simulate.market import NEVER

_COUNT = (1 << 32) - 1


def expectation(when: int, serial: int, count: int) -> int:
    """``count`` machines free at ``when``, as one number that sorts by time and ``serial``."""
    return (when << 32 | serial) << 32 | count


class Expected:
    """``keys`` are sorted ``expectation``s, kept only once somebody needs them (``tracks``)."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.tracks = False

    def track(self, keys: Iterable[int]) -> None:
        """Keep expectations from now on, beginning with running jobs and booting machines."""
        self.tracks = True
        self.keys = sorted(keys)

    def add(self, key: int) -> None:
        if self.tracks:
            insort(self.keys, key)

    def drop(self, key: int) -> None:
        if self.tracks:
            del self.keys[bisect_left(self.keys, key)]

    def shadow(self, need: int, free: int, now: int) -> tuple[int, int]:
        """When ``need`` machines are expected to be free, and how many more are free then."""
        missing, at, keys = need - free, 0, self.keys
        for key in keys:
            missing -= key & _COUNT
            at += 1
            if missing <= 0:
                break
        else:
            return NEVER, -missing
        shadow = key >> 64
        shadow = shadow if shadow > now else now
        beyond = (shadow + 1) << 64
        while at < len(keys) and keys[at] < beyond:
            missing -= keys[at] & _COUNT
            at += 1
        return shadow, -missing

    def pairs(self) -> list[tuple[int, int]]:
        """(when, machines), ordered by time."""
        return [(key >> 64, key & _COUNT) for key in self.keys]
