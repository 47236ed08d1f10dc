"""The scope of a cool-down is a value with one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_cases import offer, pool
from msgspec.structs import replace

from slurm_elastic.model.cluster import Market
from slurm_elastic.model.exclusion import ANY, ExclusionKind, OfferScope, offer_scope

NAMES = st.one_of(st.just(ANY), st.text("abc.1-", min_size=1, max_size=4))
OFFER = offer()
POOL = pool()


@given(st.builds(OfferScope, NAMES, NAMES, NAMES, NAMES, NAMES))
def test_a_scope_is_read_as_it_is_written(scope: OfferScope) -> None:
    assert offer_scope(str(scope)) == scope


def test_an_offers_key_is_the_scope_of_it_alone() -> None:
    scope = offer_scope(OFFER.key)
    assert scope == OfferScope("aws", "c6i.xlarge", "eu-west-1a", "spot")
    assert scope.is_single_offer
    assert str(scope) == OFFER.key
    assert not offer_scope("aws/*/*/spot").is_single_offer
    assert not offer_scope(f"{OFFER.key}/burst").is_single_offer


@pytest.mark.parametrize(
    ("text", "covers"),
    [
        (OFFER.key, True),
        ("aws/*/*/spot", True),
        ("aws/*/*/*", True),
        ("*/*/*/*", True),
        ("aws/*/*/*/burst", True),
        ("aws/*/*/*/other", False),
        ("aws/*/*/on-demand", False),
        ("gcp/*/*/*", False),
        ("aws/c6i.xlarge/eu-west-1b/spot", False),
        ("aws/m6i.xlarge/eu-west-1a/spot", False),
        ("aws/*/*/spot:cr-a", False),
    ],
)
def test_a_scope_covers_offers_by_its_parts(text: str, covers: bool) -> None:
    assert offer_scope(text).covers(OFFER, POOL) == covers


@pytest.mark.parametrize(
    ("text", "touches"),
    [
        ("aws", True),
        ("aws/*/*/spot", True),
        ("aws/*/*/reserved", False),
        ("aws/*/*/reserved:cr-a", False),
        ("aws/*/*/spot:cr-a", True),
        ("aws/*/*/*/burst", True),
        ("aws/*/*/*/other", False),
        ("gcp/*/*/*", False),
        ("aws/m6i.xlarge/*/*", False),
        ("aws/c6i.xlarge/eu-west-1b/*", False),
    ],
)
def test_a_scope_touches_a_pool_that_may_use_its_offers(text: str, touches: bool) -> None:
    of = replace(
        POOL, markets=(Market.SPOT,), instance_types=("c6i.xlarge",), zones=("eu-west-1a",)
    )
    assert offer_scope(text).touches(of) == touches


def test_a_kind_is_the_word_of_the_ledger() -> None:
    assert {str(kind) for kind in ExclusionKind} == {
        "cool-down", "breaker", "doubt", "other-head", "no-spot", "committed", "capacity",
        "policy", "by-operator",
    }  # fmt: skip
