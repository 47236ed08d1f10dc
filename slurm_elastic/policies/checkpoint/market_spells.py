"""How long a spot market's past spells lasted, and how long the present spell may last. Pure.

Spells differ greatly in length, and the longer a spell has lasted, the longer it continues. So its
remainder is estimated from past spells that lasted as long. Because these may be few, its own age
plus GUESS_RESTARTS restarts serves as a further estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

HORIZON = 4 * 3600.0
"""The remainder of a spell counts up to this (s), so that a single spell of days does not decide
the mean.
"""

GUESSES = 5
"""The estimate from a spell's age weighs as much as this many seen spells."""

GUESS_RESTARTS = 2.0
"""Restarts added to the age in that estimate: without them a new spell would have no expected
remainder.
"""


class Spells(Struct, frozen=True):
    """The durations of past spells (s), the shortest first, and their cumulated sums."""

    lengths: tuple[float, ...] = ()
    sums: tuple[float, ...] = (0.0,)

    @classmethod
    def of(cls, lengths: Iterable[float]) -> Spells:
        sorted_lengths = tuple(sorted(lengths))
        return cls(sorted_lengths, tuple(accumulate(sorted_lengths, initial=0.0)))

    def expected(self, age: float, restart: float) -> float:
        """Return for how many more seconds a spell of this age is expected to last."""
        count, lasted = self._after(age)
        return (lasted + GUESSES * (age + GUESS_RESTARTS * restart)) / (count + GUESSES)

    def _after(self, age: float) -> tuple[int, float]:
        """Return how many spells outlasted this age, and by how long in total, each up
        to HORIZON.
        """
        first_index = bisect_right(self.lengths, age)
        count = len(self.lengths) - first_index
        if not count:
            return 0, 0.0
        far_index = bisect_right(self.lengths, age + HORIZON)
        near = self.sums[far_index] - self.sums[first_index] - age * (far_index - first_index)
        return count, near + HORIZON * (len(self.lengths) - far_index)


class Past(Struct, frozen=True):
    """A spot market as it was observed: past spells with spot machines (``ups``) and without
    (``downs``), and the present spell, ``spot`` or not, of ``age`` s. ``whole``: its beginning was
    observed.
    """

    ups: Spells = Spells()
    downs: Spells = Spells()
    spot: bool | None = None
    age: float = 0.0
    whole: bool = False

    def then(self, look: float, *, spot: bool) -> Past:
        """Return the history after one more look."""
        if self.spot is None:
            return replace(self, spot=spot)
        if spot is self.spot:
            return replace(self, age=self.age + look)
        fresh = replace(self, spot=spot, age=0.0, whole=True)
        # The first spell does not count, because its beginning was not observed.
        if not self.whole:
            return fresh
        ended = self.age + look
        if self.spot:
            return replace(fresh, ups=Spells.of((*self.ups.lengths, ended)))
        return replace(fresh, downs=Spells.of((*self.downs.lengths, ended)))


NOTHING = Past()
