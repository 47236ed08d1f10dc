"""The machines of a pool that are expected to be free later: when, and how many by then."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from slurm_elastic.simulate.market import NEVER

_COUNT = (1 << 32) - 1


def expectation(when: int, serial: int, count: int) -> int:
    """``count`` machines are expected to be free at ``when``; sorts by that, then by ``serial``."""
    return (when << 32 | serial) << 32 | count


class Expected:
    """``keys`` are sorted, each (when, job or batch, machines) in one integer (``expectation``).
    They are kept once somebody asks for them: ``tracks``.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.tracks = False

    def track(self, keys: Iterable[int]) -> None:
        """Keep from now on what is expected: of the jobs that run, and of what boots."""
        self.tracks = True
        self.keys = sorted(keys)

    def add(self, key: int) -> None:
        """Note one."""
        if self.tracks:
            insort(self.keys, key)

    def drop(self, key: int) -> None:
        """Forget it."""
        if self.tracks:
            del self.keys[bisect_left(self.keys, key)]

    def shadow(self, need: int, free: int, now: int) -> tuple[int, int]:
        """(when ``need`` machines are expected to be free, how many more are free then)."""
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
        """(when, machines), in that order."""
        return [(key >> 64, key & _COUNT) for key in self.keys]
