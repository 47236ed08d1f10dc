"""A copy of a cloud's token bucket, so that calls wait for a token instead of being rejected.

Other programs use the account too. Therefore a rejection empties our copy of the bucket and halves
its refill rate, and each success restores a twentieth of the rate.
"""

from __future__ import annotations

from msgspec import Struct

_MIN_SHARE = 1 / 16
_SHARE_PER_SUCCESS = 1 / 20


class Rate(Struct, frozen=True):
    """The size of a bucket (tokens) and its refill rate (tokens per second)."""

    burst: float
    refill: float


class Bucket:
    """Tokens of one kind. Not thread-safe by itself. All times are of one monotonic clock.

    With ``margin`` the tokens of the last second do not count yet.
    """

    def __init__(self, rate: Rate, now: float, *, margin: bool = False) -> None:
        self.rate = rate
        # Clouds such as EC2 add tokens once per second, at a moment that we do not know.
        self._margin = rate.refill if margin else 0.0
        self._level = rate.burst
        self._at = now
        self._share = 1.0

    def level(self, now: float) -> float:
        """The tokens at ``now``. Negative while calls wait for tokens that they have taken in
        advance.
        """
        refilled = max(now - self._at, 0.0) * self.refill
        self._level, self._at = min(self._level + refilled, self.rate.burst), max(now, self._at)
        return self._level

    def usable(self, now: float, seconds: float = 0.0) -> float:
        """The tokens that will certainly be available now, or in ``seconds``."""
        level = self.level(now) + seconds * self.refill
        return self.rate.burst if level >= self.rate.burst else level - self._margin

    def wait(self, count: float, now: float) -> float:
        """Seconds until ``count`` tokens are available (at most a full bucket)."""
        if self.usable(now) >= min(count, self.rate.burst) - 1e-9:
            return 0.0
        # The margin must not make a call wait for more than a full bucket.
        lacking = min(count + self._margin, self.rate.burst) - self.level(now)
        return max(lacking - 1e-9, 0.0) / self.refill

    @property
    def refill(self) -> float:
        """Our share of the refill rate (tokens per second), as far as we know."""
        return self.rate.refill * self._share

    def take(self, count: float, now: float) -> None:
        """Take tokens, in advance if necessary. Later callers wait longer."""
        self._level = self.level(now) - count

    def give_back(self, count: float, now: float) -> None:
        """Return tokens that were not used."""
        self._level = min(self.level(now) + count, self.rate.burst)

    def rejected(self, now: float) -> None:
        """Note that the cloud had no token: other programs must be using the bucket, too."""
        self._level = min(self.level(now), 0.0)
        self._share = max(self._share / 2, _MIN_SHARE)

    def accepted(self) -> None:
        """Note that the cloud had a token."""
        self._share = min(self._share + _SHARE_PER_SUCCESS, 1.0)
