"""Policies that look at prices, and what becomes of them when the prices cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pytest

from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.readers import PeriodicReader, spot_prices
from slurm_elastic.ckptman.service import Service
from slurm_elastic.config.checkpoint import PriceSettings
from slurm_elastic.providers.base.prices.book import Key, Points, PriceBook
from tests.ckptman.world import CkptWorld

PRICES = PriceSettings(source="ec2", poll_interval=10.0, bid_price=0.10)


class Feed:
    name = "prices of EC2"

    def __init__(self, world: CkptWorld) -> None:
        self.world, self.price, self.asked = world, 0.03, 0
        self.points: dict[float, float] = {}
        self.broken: Exception | None = None

    def read(self, keys: Iterable[Key], since: float) -> Mapping[Key, Points]:
        self.asked += 1
        if self.broken:
            raise self.broken
        self.points[self.world.now] = self.price
        return {key: tuple(sorted(self.points.items())) for key in keys}


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld(policy="threshold", prices=PRICES)
    yield made
    made.close()


def watched(world: CkptWorld, feed: Feed) -> PeriodicReader:
    book = PriceBook(feed, lambda: world.now)
    world.service = Service(world.ckpt, KeyedExecutor(0), book)
    read = partial(spot_prices, book, world.service.reader.machines)
    return PeriodicReader(world.ckpt, book.name, PRICES.poll_interval, read)


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
