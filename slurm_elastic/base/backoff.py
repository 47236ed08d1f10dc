"""Back-off: how long to wait before a failed action is tried again."""

from __future__ import annotations

from msgspec import Struct

_MAX_DOUBLINGS = 64
"""2.0**1024 raises OverflowError, and 64 doublings exceed every ``longest_s``."""


class Backoff(Struct, frozen=True):
    """Pauses that double with each failure in a row, from ``first_s`` up to ``longest_s`` seconds.

    It keeps no state, so that the count of failures can be stored where it survives a restart.
    """

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """The pause (s) after that many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        doublings = min(failures - 1, _MAX_DOUBLINGS)
        return min(self.first_s * 2.0**doublings, self.longest_s)

    def longer(self, pause_s: float) -> float:
        """The pause (s) after a pause of ``pause_s`` seconds. Pass 0 before the first pause."""
        return min(max(2.0 * pause_s, self.first_s), self.longest_s)
