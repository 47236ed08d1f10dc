"""A clock that moves by being slept on, in the place of the module ``time``."""

from __future__ import annotations


class Slept:
    """``pauses`` are the seconds that were slept, one after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
