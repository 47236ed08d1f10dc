"""How long a spot market stayed as it was, each time, and how long it may yet do so. Pure.

Spells on these markets are of very different lengths, and the longer one has lasted, the longer it
goes on. So the rest of one is guessed from those seen before that lasted as long, and beside them,
as they may be few, by its own age and FRESH restarts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

HORIZON = 4 * 3600.0
"""Seconds beyond which the rest of a spell is not counted, so that one of days is not all there is
of a mean.
"""

GUESSES = 5
"""How many spells seen weigh as much as the guess by a spell's age."""

FRESH = 2.0
"""Restarts that are added to the age in that guess: nothing would be expected of a new one else."""


class Spells(Struct, frozen=True):
    """Seconds that spells lasted which are over, the shortest first, and their sums up to each."""

    lengths: tuple[float, ...] = ()
    sums: tuple[float, ...] = (0.0,)

    @classmethod
    def of(cls, lengths: Iterable[float]) -> Spells:
        found = tuple(sorted(lengths))
        return cls(found, tuple(accumulate(found, initial=0.0)))

    def expected(self, age: float, restart: float) -> float:
        """Seconds for which a spell of this age is expected to go on."""
        count, lasted = self._after(age)
        return (lasted + GUESSES * (age + FRESH * restart)) / (count + GUESSES)

    def _after(self, age: float) -> tuple[int, float]:
        """How many went on after this age, and for how long in all, each up to HORIZON."""
        first = bisect_right(self.lengths, age)
        count = len(self.lengths) - first
        if not count:
            return 0, 0.0
        far = bisect_right(self.lengths, age + HORIZON)
        near = self.sums[far] - self.sums[first] - age * (far - first)
        return count, near + HORIZON * (len(self.lengths) - far)


class Past(Struct, frozen=True):
    """A spot market as it was seen: the spells ``ups`` with spot machines and ``downs`` without
    that are over, and the one under way, ``spot`` or not, which is ``age`` old. ``whole``: somebody
    saw that one begin.
    """

    ups: Spells = Spells()
    downs: Spells = Spells()
    spot: bool | None = None
    age: float = 0.0
    whole: bool = False

    def then(self, look: float, *, spot: bool) -> Past:
        """One look later."""
        if self.spot is None:
            return replace(self, spot=spot)
        if spot is self.spot:
            return replace(self, age=self.age + look)
        fresh = replace(self, spot=spot, age=0.0, whole=True)
        # The first spell seen counts for nothing, as nobody saw it begin.
        if not self.whole:
            return fresh
        ended = self.age + look
        if self.spot:
            return replace(fresh, ups=Spells.of((*self.ups.lengths, ended)))
        return replace(fresh, downs=Spells.of((*self.downs.lengths, ended)))


NOTHING = Past()
