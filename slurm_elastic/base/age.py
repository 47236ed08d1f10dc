"""The age of a recorded time, if the clock can have been right. Pure: policies use it, too.

``base/since.py`` converts a recorded time to monotonic time, which no later step of the clock
changes.
"""

from __future__ import annotations

SKEW_S = 60.0
"""Clocks of two hosts that both are right differ by less. A record from at most this far in
our clock's future may come from such a host, and counts as made now.
"""


def known_age_s(
    recorded_at: float, now: float, bound_s: float, skew_s: float = SKEW_S
) -> float | None:
    """Return the seconds from ``recorded_at`` to ``now`` (both Unix time), or None if they are
    negative or more than ``bound_s``: then the clock was set in between, or the record is wrong.
    ``skew_s``: by so much (s) the record may be ahead and still be right.
    """
    age_s = now - recorded_at
    # Written so that NaN is unknown, too.
    return max(age_s, 0.0) if -skew_s <= age_s <= bound_s else None
