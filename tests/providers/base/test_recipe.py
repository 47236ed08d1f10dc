"""The recipe of machines, in a word."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.recipe import recipe

POOL = Pool(name="burst", cloud="pub", nodes=("pub1",), cpus=2, real_memory=3000)


def test_the_word_is_that_of_earlier_releases_else_an_upgrade_ends_what_is_stopped() -> None:
    assert recipe(POOL, {"b": 1, "a": [2]}, None) == "c5c459ac80405139"


@pytest.mark.parametrize(
    ("pool", "ingredients", "same"),
    [
        (POOL, [{"a": [2], "b": 1}, None], True),
        (replace(POOL, cpus=4, nodes=("pub1", "pub2")), [{"b": 1, "a": [2]}, None], True),
        (replace(POOL, name="other"), [{"b": 1, "a": [2]}, None], False),
        (replace(POOL, max_age=60.0), [{"b": 1, "a": [2]}, None], False),
        (POOL, [{"b": 1, "a": [3]}, None], False),
        (POOL, [{"b": 1, "a": [2]}], False),
    ],
)
def test_it_is_another_where_one_ingredient_is(
    pool: Pool, ingredients: list[object], *, same: bool
) -> None:
    assert (recipe(pool, *ingredients) == recipe(POOL, {"b": 1, "a": [2]}, None)) is same
