"""The end of a pause, as a field of causes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from msgspec import Struct

_DAY_S = 86400


class Deadline(Struct, frozen=True, kw_only=True):
    """``at``: Unix time, None if only a person ends the pause. ``is_another_day``: the end is on
    another day (UTC) than the decision, so that people need the date as well.
    """

    at: float | None
    is_another_day: bool = False

    @classmethod
    def of(cls, end: float, now: float) -> Deadline:
        """The deadline ``end`` of a decision made ``now`` (both Unix time; infinity: no end)."""
        if math.isinf(end):
            return cls(at=None)
        other = math.ceil(end) // _DAY_S != math.ceil(now) // _DAY_S
        return cls(at=end, is_another_day=other)

    def __str__(self) -> str:
        """The text for people. It is absolute, so that it is true also when it is read later."""
        if self.at is None:
            return "until an operator ends it"
        end = datetime.fromtimestamp(math.ceil(self.at), UTC)
        return f"until {end:{'%Y-%m-%d %H:%M' if self.is_another_day else '%H:%M:%S'}} UTC"
