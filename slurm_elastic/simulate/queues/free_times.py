"""When the machines of a pool are expected to be free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from slurm_elastic.simulate.bills.market import NEVER

COUNT = (1 << 32) - 1


def expectation(when: int, serial: int, count: int) -> int:
    """Encode "``count`` machines are free at ``when``" as a number that sorts by time and then by
    ``serial``.
    """
    return (when << 32 | serial) << 32 | count


class Expected:
    """The sorted ``expectation`` values of a pool (``keys``). They are kept only after the first
    reservation needed them (``tracks``), because most histories without a queue never do.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.tracks = False

    def track(self, keys: Iterable[int]) -> None:
        """Begin to keep expectations. ``keys``: the entries of running jobs and booting
        machines.
        """
        self.tracks = True
        self.keys = sorted(keys)

    def add(self, key: int) -> None:
        if self.tracks:
            insort(self.keys, key)

    def drop(self, key: int) -> None:
        if self.tracks:
            del self.keys[bisect_left(self.keys, key)]

    def shadow(self, need: int, free: int, now: int) -> tuple[int, int]:
        """Return when ``need`` machines are expected to be free, and how many more are free
        then.
        """
        missing, index, keys = need - free, 0, self.keys
        for key in keys:
            missing -= key & COUNT
            index += 1
            if missing <= 0:
                break
        else:
            return NEVER, -missing
        shadow = key >> 64
        shadow = shadow if shadow > now else now
        beyond = (shadow + 1) << 64
        while index < len(keys) and keys[index] < beyond:
            missing -= keys[index] & COUNT
            index += 1
        return shadow, -missing

    def pairs(self) -> list[tuple[int, int]]:
        """Return (when, machines), ordered by time."""
        return [(key >> 64, key & COUNT) for key in self.keys]
