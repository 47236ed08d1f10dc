"""Which things a drawing asks for together, so that each pair of things meets after few drawings."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence

HALF = 16
"""Things in each of the two groups that a drawing asks for."""


def together(count: int, number: int) -> Sequence[int]:
    """The things, of so many, that drawing ``number`` asks for: two groups of those which the
    round has. In a round each group meets each other one, so each pair of things meets in it. The
    next round has other groups, as things that are asked for together may exclude each other.
    """
    blocks = _pairs_of_groups(count)
    turn, place = divmod(number, len(blocks))
    groups = _groups(count, turn)
    return tuple(thing for group in blocks[place] for thing in groups[group])


def rounds(count: int) -> int:
    """How many drawings a round has."""
    return len(_pairs_of_groups(count))


@functools.cache
def _pairs_of_groups(count: int) -> Sequence[tuple[int, int]]:
    """In an order in which the first ones have all groups."""
    groups = -(-count // HALF)
    pairs = itertools.combinations(range(groups), 2)
    return sorted(pairs, key=lambda pair: (pair[1] - pair[0], pair)) or [(0, 0)]


@functools.lru_cache(maxsize=4)
def _groups(count: int, turn: int) -> Sequence[Sequence[int]]:
    things = list(range(count))
    random.Random(f"{turn} groups").shuffle(things)
    return [things[n : n + HALF] for n in range(0, count, HALF)]
