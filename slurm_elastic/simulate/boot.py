"""How long machines take to boot, depending on how many boot together."""

from __future__ import annotations

import math
from bisect import bisect_left

from msgspec import Struct


class BootTimes(Struct, frozen=True):
    """Boot times in seconds by batch size. Between two given sizes we interpolate by the logarithm
    of the size. Above the largest size we use its time. ``configure``: seconds from the end of the
    boot until the machine is usable. ``measured``: the number of machines that the time was
    measured on (0: it is assumed).
    """

    points: tuple[tuple[int, float], ...] = ((1, 120.0),)
    configure: int = 0
    measured: int = 0

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes[0] < 1 or sizes != sorted(set(sizes)):
            raise ValueError("boot times need ascending batch sizes from 1 on")

    def seconds(self, batch: int) -> int:
        """Return the seconds from the launch of ``batch`` machines until they are ready."""
        sizes = [size for size, _ in self.points]
        index = bisect_left(sizes, batch)
        if index == len(sizes):
            boot = self.points[-1][1]
        elif index == 0 or sizes[index] == batch:
            boot = self.points[index][1]
        else:
            (small, low), (large, high) = self.points[index - 1 : index + 1]
            share = math.log2(batch / small) / math.log2(large / small)
            boot = low + share * (high - low)
        return round(boot) + self.configure
