"""Whose machine it is, where several clouds of a site are one account."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_elastic.model.cluster import InstanceState, Location, Market
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.base.ownership import AMBIGUOUS, Ownership
from slurm_elastic.providers.base.preflight import affordable, sum_of_largest
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, POOL, PRICE, decided_at, market_of
from slurm_elastic.providers.fake.settings import FakeCloud

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


@pytest.mark.parametrize("tag", [None, "dear", "-1", "nan", "inf"])
def test_a_machine_without_a_price_in_its_tags_has_none_of_its_own(tag: str | None) -> None:
    settings = FakeCloud(name="c", location=Location.PUBLIC)
    marks = {} if tag is None else {PRICE: tag}
    told = machine_of("m1", {PRICE: "0.25"}, settings, InstanceState.RUNNING, None)
    assert (told.price, told.is_price_known) == (0.25, True)
    assert not machine_of("m1", marks, settings, InstanceState.RUNNING, None).is_price_known


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
