"""Whose machine it is, where several clouds of a site are one account."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Market
from slurm_elastic.providers.base.ownership import AMBIGUOUS, Ownership
from slurm_elastic.providers.base.preflight import affordable, sum_of_largest
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, POOL, decided_at, market_of, price_of

ALONE = Ownership(cluster="u", clouds=frozenset({"a"}))
SHARED = Ownership(cluster="u", clouds=frozenset({"a", "b"}), pools={"p": "b"})
OURS = {CLUSTER: "u"}


@pytest.mark.parametrize(
    ("owners", "tags", "owner"),
    [
        (ALONE, {}, None),
        (ALONE, {CLUSTER: "another", CLOUD: "a"}, None),
        (ALONE, OURS, "a"),
        (ALONE, OURS | {CLOUD: "renamed"}, "a"),
        (SHARED, OURS | {CLOUD: "a", POOL: "p"}, "a"),
        (SHARED, OURS | {CLOUD: "renamed", POOL: "p"}, "b"),
        (SHARED, OURS | {POOL: "p"}, "b"),
        (SHARED, OURS | {POOL: "gone"}, AMBIGUOUS),
        (SHARED, OURS, AMBIGUOUS),
        (SHARED, {CLOUD: "a"}, None),
    ],
)
def test_the_tags_tell_whose_it_is(
    owners: Ownership, tags: Mapping[str, str], owner: str | None
) -> None:
    assert owners.owner(tags) == owner


# what else tags tell


TYPES = {
    "s": InstanceType(cpus=1, memory=1, price=0.1),
    "l": InstanceType(cpus=2, memory=2, price=0.4),
}


@pytest.mark.parametrize(
    ("tag", "kind", "price"),
    [
        ("0.25", "s", 0.25), (None, "s", 0.1), ("dear", "s", 0.1), ("-1", "s", 0.1),
        ("nan", "l", 0.4), (None, "gone", 0.4),
    ],
)  # fmt: skip
def test_a_price_is_the_tags_or_the_configurations_or_the_dearest(
    tag: str | None, kind: str, price: float
) -> None:
    assert price_of(tag, kind, TYPES) == price


def test_a_cloud_without_types_tells_no_price() -> None:
    assert price_of(None, "s", {}) == 0.0


def test_a_market_that_is_none_is_reserved() -> None:
    assert [market_of(w) for w in ("spot", "on-demand", "", "x")] == [
        Market.SPOT, Market.ON_DEMAND, Market.RESERVED, Market.RESERVED,
    ]  # fmt: skip


def test_a_launchs_name_tells_when_it_was_decided() -> None:
    assert decided_at("g1800000000500-ab") == 1_800_000_000.5
    assert [decided_at(g) for g in ("", "g18-ab", "x1800000000500-ab", "g1800000000500")] == [0] * 4


# the most that pools could ask for


@pytest.mark.parametrize(
    ("machines", "amount"), [(None, 58.0), (0, 0), (3, 24.0), (5, 40.0), (6, 42.0), (99, 58.0)]
)
def test_the_machines_that_have_most_of_it_count_first(machines: int | None, amount: float) -> None:
    assert sum_of_largest([(2.0, 9), (8.0, 5)], machines) == amount


def test_dollars_buy_what_is_cheapest_by_amount() -> None:
    assert affordable(1.0, [(2, 0.1), (8, 0.8)]) == pytest.approx(20)
    assert affordable(None, [(2, 0.1)]) == affordable(1.0, [(2, 0.0)]) == float("inf")
    assert affordable(1.0, []) == 0
