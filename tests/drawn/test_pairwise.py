"""Which things a drawing asks for together: each pair of them in each round."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos.drawn_site import driven_keys, is_drawn, is_optional, number_of
from tests.drawn.pairwise import HALF, rounds, together


@pytest.mark.parametrize("count", [1, HALF, HALF + 1, 150])
def test_each_pair_meets_in_each_round(count: int) -> None:
    length = rounds(count)
    for begin in (0, length):
        met = set[tuple[int, int]]()
        for number in range(begin, begin + length):
            met.update(itertools.combinations(sorted(together(count, number)), 2))
        assert met >= set(itertools.combinations(range(count), 2))


def test_another_round_has_other_groups() -> None:
    assert together(150, 0) != together(150, rounds(150))


def test_drawn_sites_have_numbers_in_a_row_by_their_seeds_alone() -> None:
    drawn = [seed for seed in range(2000, 2400) if is_drawn(seed)]
    numbers = [number_of(seed) for seed in drawn]
    assert numbers == list(range(400, 400 + len(drawn)))


def test_a_round_of_drawn_sites_takes_few_seeds() -> None:
    keys = sum(map(is_optional, driven_keys()))
    assert rounds(keys) <= 60
