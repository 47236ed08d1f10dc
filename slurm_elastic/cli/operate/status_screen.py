"""How much of ``status`` a screen shows, and in which order."""

from __future__ import annotations

from msgspec import Struct

WIDE, NARROW = 120, 72
"""Columns from which on the tables have all columns, and from which on they are tables at all."""
TOP_WIDE, TOP_NARROW, TOP_SMALL = 10, 8, 5
SORTS = ("node", "cost", "price", "age")


class Screen(Struct, frozen=True, kw_only=True):
    """Options: ``top`` rows per table (None: as many as fit) or the ``whole``; order ``sort``.

    ``pattern``: show only machines with this text. ``selected``: the id of the marked machine.
    """

    top: int | None = None
    whole: bool = False
    sort: str | None = None
    pattern: str = ""
    selected: str = ""

    def rows(self, width: int) -> int | None:
        """The most rows per table at this width; None: all."""
        fit = TOP_WIDE if width >= WIDE else TOP_NARROW if width >= NARROW else TOP_SMALL
        return None if self.whole else self.top or fit


SHORT = Screen()
