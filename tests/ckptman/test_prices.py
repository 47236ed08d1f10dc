"""Policies that look at prices, and what becomes of them when the prices cannot be read."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.readers import PeriodicReader, spot_prices
from slurm_elastic.ckptman.service import Service
from slurm_elastic.config.sections.checkpoint import PriceSettings
from slurm_elastic.model.max_price import MaxPrice
from slurm_elastic.model.price_feed import Points, PriceKey
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.providers.base.prices.book import PriceBook
from tests.ckptman.world import CkptWorld
from tests.controller.world import make_config

PRICES = PriceSettings(source="cloud", poll_interval=10.0)


def site(max_price: float | MaxPrice | None) -> dict[str, Any]:
    """Configuration: the bid of the pool of spot machines, whose on-demand price is $0.10."""
    own, spot = make_config(Path("/nowhere")).pools
    return {"pools": (own, replace(spot, max_price=max_price))}


class Feed:
    name = "prices of EC2"

    def __init__(self, world: CkptWorld) -> None:
        self.world, self.price, self.asked = world, 0.03, 0
        self.points: dict[float, float] = {}
        self.broken: Exception | None = None

    def read(self, keys: Iterable[PriceKey], since: float) -> Mapping[PriceKey, Points]:
        self.asked += 1
        if self.broken:
            raise self.broken
        self.points[self.world.now] = self.price
        return {key: tuple(sorted(self.points.items())) for key in keys}


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld(site(MaxPrice(of_on_demand=1.0)), policy="threshold", prices=PRICES)
    yield made
    made.close()


def watched(world: CkptWorld, feed: Feed) -> PeriodicReader:
    book = PriceBook([feed], lambda: world.now)
    world.service = Service(world.ckpt, KeyedExecutor(0), book)
    read = partial(spot_prices, book, world.service.reader.machines)
    return PeriodicReader(world.ckpt, book.name, PRICES.poll_interval, read)


class Pauses(threading.Event):
    """Notes how long a thread waits, and ends it at the third pause."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        if len(self.seconds) == 3:
            self.set()
        return self.is_set()


def saves(world: CkptWorld) -> int:
    return world.saver.calls.count(("checkpoint", 7))


def test_a_price_over_the_threshold_saves_once_and_the_job_goes_on(world: CkptWorld) -> None:
    world.runs(7)
    feed = Feed(world)
    reader = watched(world, feed)
    assert reader.read()
    world.advance(30)
    assert saves(world) == 0
    feed.price = 0.08
    reader.read()
    world.advance(60)
    assert saves(world) == 1
    assert world.job(7).restarts == 0


def test_a_slow_answer_does_not_put_the_next_reading_off(world: CkptWorld) -> None:
    world.runs(7)
    feed, pauses = Feed(world), Pauses()

    def read() -> None:
        feed.read([], 0.0)
        world.now += 30.0  # the first one opens a session with the cloud

    ckpt = dataclasses.replace(world.ckpt, stop=pauses)
    reader = PeriodicReader(ckpt, feed.name, PRICES.poll_interval, read)
    reader.start()
    reader.join(30.0)
    assert pauses.seconds == [0.0, PRICES.poll_interval, PRICES.poll_interval]


@pytest.mark.parametrize(
    ("max_price", "is_saved"),
    [
        (None, False),
        (0.10, True),
        (9.0, True),
        (0.2, True),
        (MaxPrice(spot=0.08), False),  # the price is over it already
        (MaxPrice(types={"small": 0.09}), True),
        (MaxPrice(types={"large": 0.09}), False),
    ],
    ids=str,
)
def test_the_threshold_is_of_the_pools_bid_for_the_type(
    max_price: float | MaxPrice | None, is_saved: bool
) -> None:
    world = CkptWorld(site(max_price), policy="threshold", prices=PRICES)
    try:
        world.runs(7)
        feed = Feed(world)
        reader = watched(world, feed)
        reader.read()
        world.advance(30)
        feed.price = 0.085
        reader.read()
        world.advance(60)
        assert saves(world) == is_saved
    finally:
        world.close()


def test_a_price_over_the_bid_threatens_the_machines_of_that_type_alone() -> None:
    for max_price, causes in ((MaxPrice(spot=0.05), {ThreatCause.PRICE}), (None, set())):
        world = CkptWorld(site(max_price), policy="threshold", prices=PRICES)
        try:
            world.runs(7)
            feed = Feed(world)
            reader = watched(world, feed)
            feed.price = 0.06
            reader.read()
            assert world.service is not None
            threats = world.service.reader.read().threats
            assert {threat.cause for of_node in threats.values() for threat in of_node} == causes
        finally:
            world.close()


def test_a_throttled_price_api_is_said_and_the_last_prices_serve(world: CkptWorld) -> None:
    world.runs(7)
    feed = Feed(world)
    reader = watched(world, feed)
    reader.read()
    world.advance(20)
    feed.price = 0.08
    reader.read()
    feed.broken = RuntimeError("RequestLimitExceeded")
    assert not reader.read()
    (trouble,) = [h for h in world.ledger.health.all() if h.name == "prices of EC2"]
    assert trouble.error is not None
    assert "RequestLimitExceeded" in trouble.error
    world.advance(20)
    assert saves(world) == 1


def test_without_any_price_the_hour_still_counts(world: CkptWorld) -> None:
    world.runs(7)
    feed = Feed(world)
    feed.broken = RuntimeError("RequestLimitExceeded")
    watched(world, feed).read()
    world.advance(3600, step=20.0)
    assert saves(world) >= 1


def test_without_spot_machines_nobody_is_asked(world: CkptWorld) -> None:
    feed = Feed(world)
    assert watched(world, feed).read()
    assert feed.asked == 0
