"""How long a spell on a spot market is expected to go on."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.checkpoint.market_spells import (
    GUESS_RESTARTS,
    GUESSES,
    HORIZON,
    NOTHING,
    Past,
    Spells,
)
from slurm_elastic.simulate.studies.deadline import pasts_by_tick

LENGTHS = st.lists(st.integers(1, 40_000), max_size=30)


@given(LENGTHS, st.integers(0, 40_000), st.integers(0, 1000))
def test_the_mean_is_of_those_that_lasted_as_long_and_the_guess(
    lengths: list[int], age: int, restart: int
) -> None:
    rests = [min(one - age, HORIZON) for one in lengths if one > age]
    rests += [age + GUESS_RESTARTS * restart] * GUESSES
    assert Spells.of(lengths).expected(age, restart) == pytest.approx(sum(rests) / len(rests))


def test_a_spell_that_was_always_there_never_ends() -> None:
    assert Spells.of([100.0]).expected(float("inf"), 10.0) == float("inf")


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_spells_that_began_and_ended_in_sight_are_counted(market: list[bool]) -> None:
    runs = [(spot, len(list(some))) for spot, some in groupby(market)]
    found = pasts_by_tick(market, 10)[-1]
    assert (found.spot, found.age) == (market[-1], (runs[-1][1] - 1) * 10)
    for spot, spells in ((True, found.ups), (False, found.downs)):
        assert spells == Spells.of(10 * n for which, n in runs[1:-1] if which is spot)


def test_the_first_look_knows_no_spell() -> None:
    assert NOTHING.then(60, spot=True) == Past(spot=True)
