"""The number of free machines over future time, for backfill with several reservations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

FAR = 2**62


class Profile:
    """Free machines as steps: ``free[i]`` from ``times[i]`` on; the last value has no end."""

    def __init__(self, now: int, free: int, releases: Iterable[tuple[int, int]]) -> None:
        self.times = [now]
        self.free = [free]
        for when, count in sorted(releases):
            step = max(when, now)
            free += count
            if step == self.times[-1]:
                self.free[-1] = free
            else:
                self.times.append(step)
                self.free.append(free)

    def earliest(self, need: int, length: int) -> int:
        """Return the first time from which ``need`` machines are free for ``length`` seconds."""
        start = None
        for when, free in zip(self.times, self.free, strict=True):
            if start is not None and when >= start + length:
                return start
            if free < need:
                start = None
            elif start is None:
                start = when
        return FAR if start is None else start

    def fits(self, when: int, need: int, length: int) -> bool:
        """Return True if ``need`` machines are free for ``length`` seconds from ``when`` on."""
        first_step = bisect_right(self.times, when) - 1
        beyond = bisect_left(self.times, when + length)
        return all(free >= need for free in self.free[first_step : max(beyond, first_step + 1)])

    def use(self, when: int, need: int, length: int) -> None:
        """Subtract ``need`` machines for ``length`` seconds from ``when`` on."""
        first_step = self._step(when)
        end_step = self._step(when + length) if length < FAR else len(self.times)
        for index in range(first_step, end_step):
            self.free[index] -= need

    def _step(self, when: int) -> int:
        index = bisect_left(self.times, when)
        if index == len(self.times) or self.times[index] != when:
            self.times.insert(index, when)
            self.free.insert(index, self.free[index - 1])
        return index
