"""Months of UTC, written as ``2026-10``. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from msgspec import Struct

_FORM = re.compile(r"(\d{4})-(\d\d)")


class Month(Struct, frozen=True, order=True):
    """A month of UTC."""

    year: int
    number: int

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    @property
    def begin(self) -> float:
        """The first moment of the month (Unix time)."""
        return datetime(self.year, self.number, 1, tzinfo=UTC).timestamp()

    @property
    def end(self) -> float:
        """The first moment of the next month (Unix time)."""
        return self.next.begin

    @property
    def days(self) -> int:
        """The number of days in the month."""
        return round((self.end - self.begin) / 86400)

    @property
    def next(self) -> Month:
        """The month after this month."""
        return self._moved(1)

    @property
    def previous(self) -> Month:
        """The month before this month."""
        return self._moved(-1)

    @property
    def name(self) -> str:
        """The name for people: ``October 2026``."""
        return f"{datetime(self.year, self.number, 1, tzinfo=UTC):%B %Y}"

    def _moved(self, months: int) -> Month:
        year, number = divmod(self.year * 12 + self.number - 1 + months, 12)
        return Month(year, number + 1)


def month_at(timestamp: float) -> Month:
    """The month of UTC at that time."""
    moment = datetime.fromtimestamp(timestamp, UTC)
    return Month(moment.year, moment.month)


def parse_month(text: str) -> Month:
    """The month of ``2026-10``. ValueError for another text."""
    match = _FORM.fullmatch(text.strip())
    if not match or not 1 <= int(match[2]) <= 12 or not 1970 <= int(match[1]) < 9999:
        raise ValueError(f"{text[:24]!r} is not a month such as 2026-10")
    return Month(int(match[1]), int(match[2]))
