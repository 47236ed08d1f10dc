"""The duties of every ranking key, ours and keys of plug-ins, according to ``RankingKind``.

A key's tests inherit ``RankingContract`` and define the fixture ``kind``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product

import msgspec
import pytest
from msgspec.structs import replace

from slurm_elastic.config.ranking_kinds import API, NAME, RankingKind
from slurm_elastic.model.cluster import Limits, Location, Market, NodeRequest, Offer, Pool
from slurm_elastic.model.protocols import RankingKey
from slurm_elastic.policies.launch.pool_order import (
    AVAILABLE,
    JobShape,
    job_order,
    keys_of,
    terms_of,
)
from slurm_elastic.policies.launch.ranking import KEYS, Scope, rank
from slurm_elastic.slurm.hooks.order_file import parse, text_of

NOW = 1_800_000_000
REQUEST = NodeRequest(
    id="contract",
    pool=Pool(
        name="burst", cloud="mist", nodes=tuple(f"burst{i}" for i in range(1, 9)), cpus=2,
        real_memory=4000, markets=tuple(Market),
    ),
    nodes=("burst1", "burst2"),
    jobs=(7,),
)  # fmt: skip
OTHER_JOBS = (
    replace(REQUEST, nodes=REQUEST.pool.nodes),
    replace(REQUEST, nodes=("burst5",), jobs=()),
    replace(REQUEST, id="another", jobs=(8, 9)),
)
"""Requests of the same pool. The submit filter knows only one number for all of them."""


def offers() -> Iterator[Offer]:
    """Yield usual and odd offers: free of charge, sold out, huge, of an unknown type and zone."""
    for location, market, price, size, zone in product(
        Location,
        Market,
        (0.0, 1e-9, 0.1, 1e6),
        ((2, 4000), (100_000, 2**31)),
        ("default", "ö/x", ""),
    ):
        yield Offer(
            cloud="mist", location=location, instance_type=f"t{size[0]}", zone=zone, market=market,
            price=price, cpus=size[0], memory=size[1],
        )  # fmt: skip
    usual = Offer(
        cloud="mist", location=Location.PUBLIC, instance_type="", zone="a", market=Market.SPOT,
        price=0.03, cpus=2, memory=4096, on_demand_price=0.1,
    )  # fmt: skip
    yield usual
    yield replace(usual, free=0, free_reason="sold out", gres={"gpu": 8, "gpu:h100": 8})
    yield replace(usual, interruption_rate=1e9, reference_price=0.0, on_demand_price=0.0)


class RankingContract:
    """The properties on which the daemon, the submit filter and the simulator rely."""

    @pytest.fixture(autouse=True)
    def _installed(self, kind: RankingKind, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(KEYS, "others", _Only(kind))

    def test_its_name_can_stand_in_the_configuration(self, kind: RankingKind) -> None:
        assert NAME.fullmatch(kind.name)
        assert kind.name != AVAILABLE
        assert kind.api == API

    def test_each_offer_has_a_finite_number(self, kind: RankingKind) -> None:
        for offer in offers():
            number = kind.key(REQUEST, offer)
            assert isinstance(number, int | float), f"{number!r} for {offer}"
            assert math.isfinite(number), f"{number!r} for {offer}"

    def test_the_same_offer_has_the_same_number(self, kind: RankingKind) -> None:
        everything = tuple(offers())
        numbers = [kind.key(REQUEST, offer) for offer in everything]
        again = [kind.key(REQUEST, offer) for offer in reversed(everything)]
        assert numbers == again[::-1]

    def test_the_offer_stays_as_it_is(self, kind: RankingKind) -> None:
        for offer in offers():
            before = msgspec.json.encode((REQUEST, offer))
            kind.key(REQUEST, offer)
            assert msgspec.json.encode((REQUEST, offer)) == before, offer

    def test_the_number_is_the_same_for_each_job(self, kind: RankingKind) -> None:
        for offer in offers():
            numbers = {kind.key(request, offer) for request in (REQUEST, *OTHER_JOBS)}
            assert len(numbers) == 1, f"{numbers} for {offer}"

    def test_the_order_of_the_answers_does_not_matter(self, kind: RankingKind) -> None:
        # Each offer once: the cloud has one price for a type, zone and market.
        everything = list({offer.key: offer for offer in offers()}.values())
        scope, shuffle = Scope(limits=Limits()), random.Random(1).shuffle  # noqa: S311
        orders = set()
        for _ in range(20):
            shuffle(everything)
            placement = rank(REQUEST, everything, scope, NOW, (kind.name,))
            orders.add(tuple(row.offer.key for row in placement.ranked))
            numbers = [kind.key(REQUEST, row.offer) for row in placement.ranked]
            assert numbers == sorted(numbers)
        assert len(orders) == 1

    def test_the_submit_filter_gets_its_number(self, kind: RankingKind) -> None:
        ranking = (kind.name, "price")
        terms = terms_of(REQUEST, "mist", tuple(offers()), Scope(), NOW, ranking, boot_s=60.0)
        published = parse(text_of([terms], ranking, NOW), NOW)
        assert published is not None
        assert published.table == (terms,)
        job = JobShape(machines={"burst": 1}, seconds=3600.0)
        (row,) = job_order(job, published.table, ranking)
        number = dict(zip(keys_of(ranking), row.keys, strict=True))[kind.name]
        assert math.isfinite(number)
        # Some of our own keys depend on the job, so slurm-elasticd publishes no number.
        assert terms.keys.get(kind.name, number) == number


class _Only:
    """An installation with this key, found by no entry point."""

    def __init__(self, kind: RankingKind) -> None:
        self._kind = kind

    def names(self) -> tuple[str, ...]:
        return (self._kind.name,)

    def function(self, name: str) -> RankingKey:
        return {self._kind.name: self._kind.key}[name]
