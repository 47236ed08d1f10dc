"""A refused call as a finding, and the most that pools could ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from slurm_elastic.base.errors import AuthError, ProviderError, TransientError
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.preflight import (
    CheckRunner,
    affordable,
    demand_bounds,
    max_machines,
    sum_of_largest,
)

LOOK = CheckRunner("allow it", "look at the cloud")


@pytest.mark.parametrize(
    ("kind", "advice"), [(AuthError, "allow it"), (TransientError, "look at the cloud")]
)
def test_missing_rights_are_told_from_other_refusals(
    kind: type[ProviderError], advice: str
) -> None:
    def ask() -> str:
        raise kind("aws", "Denied", "you may not")

    (found,) = LOOK.at("images", "an image", ask)
    assert found == Finding.wrong("images", "Denied: you may not", "an image", advice)
    (spared,) = LOOK.at("images", "an image", ask, spared="it goes without")
    if kind is AuthError:
        told = "cannot be checked: Denied: you may not"
        assert spared == Finding.note("images", told, advice="it goes without")
    else:
        assert spared == found


def test_what_was_found_is_told() -> None:
    def asked() -> Iterator[Finding]:
        yield Finding.note("image 1", "an old one")
        raise ProviderError("aws", "Gone", "no more images")

    assert [*LOOK.at("images", "an image", lambda: "3 images")] == [
        Finding.ok("images", "3 images")
    ]
    assert [*LOOK.at("images", "an image", dict)] == [Finding.ok("images", "there")]
    assert [*LOOK.at("images", "an image", asked)] == [
        Finding.note("image 1", "an old one"),
        Finding.wrong("images", "Gone: no more images", "an image", "look at the cloud"),
    ]


@pytest.mark.parametrize(
    ("sizes", "least", "greatest"),
    [
        ({"m5.large": 2.0}, 0.0, 0.0),
        ({"c5.large": 2.0, "c5.xlarge": 4.0, "m5.large": 9.0}, 2.0, 4.0),
    ],
)
def test_a_pool_asks_for_one_of_its_smallest_and_for_all_of_its_largest(
    sizes: dict[str, float], least: float, greatest: float
) -> None:
    pool = Pool(
        name="p", cloud="aws", nodes=("n1",), cpus=2, real_memory=4000,
        markets=(Market.SPOT,), instance_types=("c5.large", "c5.xlarge"),
    )  # fmt: skip
    assert demand_bounds([pool], sizes, None) == (least, greatest)


@pytest.mark.parametrize(("bound", "machines"), [(None, 3), (2, 2), (0, 0), (9, 3)])
def test_a_pool_has_as_many_machines_as_nodes_and_its_bound_at_most(
    bound: int | None, machines: int
) -> None:
    pool = Pool(
        name="p", cloud="aws", nodes=("n1", "n2", "n3"), cpus=2, real_memory=4000,
        markets=(Market.SPOT,), max_nodes=bound,
    )  # fmt: skip
    assert max_machines(pool) == machines


def test_the_machines_that_have_most_count_first() -> None:
    sizes = [(2.0, 10), (8.0, 3)]
    assert sum_of_largest(sizes) == 44.0
    assert sum_of_largest(sizes, 5) == 28.0
    assert sum_of_largest(sizes, 0) == 0.0


@pytest.mark.parametrize(
    ("dollars", "machines", "amount"),
    [
        (None, [(8.0, 0.5)], math.inf),
        (1.0, [(8.0, 0.5), (2.0, 0.1)], 20.0),
        (1.0, [(8.0, 0.5), (2.0, 0.0)], math.inf),
        (1.0, [], 0.0),
    ],
)
def test_a_bound_in_dollars_pays_for_so_much(
    dollars: float | None, machines: list[tuple[float, float]], amount: float
) -> None:
    assert affordable(dollars, machines) == pytest.approx(amount)
