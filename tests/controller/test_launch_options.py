"""Launches that choose among several offers, and clouds that start few machines at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config import PoolSettings, Timings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.policies.launch.next_launch import WORTH_A_CALL
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.world import World

TYPES = {
    "small": InstanceType(cpus=2, memory=4096, price=0.10),
    "large": InstanceType(cpus=4, memory=8192, price=0.20),
}
NODES = tuple(f"m{i}" for i in range(1, 61))


def build(directory: Path, dollars: float = 99.0) -> World:
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=TYPES, zones=("a", "b"),
        limits=Limits(dollars_per_hour=dollars),
    )  # fmt: skip
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-60]", cpus=2, memory=4096,
        markets=(Market.SPOT, Market.ON_DEMAND),
    )  # fmt: skip
    timings = Timings(suspend_time=900, suspend_timeout=30, resume_timeout=600)
    world = World(directory, clouds=(cloud,), pools=(pool,), limits=Limits(), timings=timings)
    world.clouds["pub"].alternatives = 19
    world.clouds["pub"].tells_free = False
    return world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = build(tmp_path)
    yield made
    made.close()


def ask(world: World, count: int) -> None:
    """A job for so many nodes, and the daemon's next turn."""
    world.slurm.submit(7, NODES[:count], count=count)
    world.tick()


def launches(world: World) -> list[int]:
    return [call.size for call in world.clouds["pub"].calls if call.name == "launch"]


def cooled(world: World) -> set[str]:
    return {c.scope for c in world.ledger.exclusions.cool_downs(world.now)}


def test_one_launch_may_use_all_offers_of_its_market(world: World) -> None:
    world.clouds["pub"].limit("small/a/spot", 3)
    world.clouds["pub"].limit("small/b/spot", 2)
    ask(world, 8)
    assert launches(world) == [8]
    machines = world.ledger.machines.live()
    assert len({m.instance.node for m in machines}) == 8
    bought = sorted(m.instance.offer_key for m in machines)
    assert bought == sorted(
        ["pub/small/a/spot"] * 3 + ["pub/small/b/spot"] * 2 + ["pub/large/a/spot"] * 3
    )
    assert {m.instance.offer_key: m.worst_price for m in machines} == {
        "pub/small/a/spot": 0.10, "pub/small/b/spot": 0.10, "pub/large/a/spot": 0.20,
    }  # fmt: skip
    reasons = [str(d.reason) for d in world.ledger.decisions.about("m1") if d.kind == "launched"]
    assert len(reasons) == 1
    assert "small in a, spot, $0.03/h (3)" in reasons[0]
    assert reasons[0].endswith("chosen by the cloud among 4 offers")


def test_offers_that_lacked_something_cool_down_each(world: World) -> None:
    for zone in ("a", "b"):
        world.clouds["pub"].limit(f"*/{zone}/spot", 2)
    ask(world, 8)
    assert launches(world) == [8, 4], "spot gave four, on-demand the rest"
    assert cooled(world) == {
        f"pub/{kind}/{zone}/spot" for kind in ("small", "large") for zone in ("a", "b")
    }


def test_a_launch_without_anything_cools_all_its_offers_at_once(world: World) -> None:
    world.clouds["pub"].limit("*/*/spot", 0)
    ask(world, 3)
    assert launches(world) == [3, 3]
    assert len(cooled(world)) == 4


def test_no_offer_is_among_them_that_could_pass_a_limit(tmp_path: Path) -> None:
    world = build(tmp_path, dollars=1.0)
    try:
        ask(world, 8)
        (row,) = {m.instance.generation for m in world.ledger.machines.live()}
        launch = world.ledger.launches.get(row)
        assert launch is not None
        assert [o.key for o in launch.offers] == ["pub/small/a/spot", "pub/small/b/spot"]
    finally:
        world.close()


def test_an_open_launch_counts_with_its_dearest_offer_and_is_repeated_whole(world: World) -> None:
    fake = world.clouds["pub"]
    fake.fail_next(TransientError, 10_000, "launch")
    ask(world, 2)
    world.advance(60)
    (intent,) = world.ledger.launches.open()
    assert len(intent.offers) == 4
    assert usage((), (intent,)).dollars_per_hour[""] == pytest.approx(0.40)
    fake.heal()
    fake.limit("small/*/spot", 0)
    world.advance(60)
    assert {m.instance.offer_key for m in world.ledger.machines.live()} == {"pub/large/a/spot"}
    assert {m.instance.generation for m in world.ledger.machines.live()} == {intent.generation}


def test_what_a_cloud_does_not_start_yet_waits_and_nobody_is_refused(world: World) -> None:
    fake = world.clouds["pub"]
    fake.start_limit = 40
    ask(world, 60)
    assert launches(world) == [40]
    assert cooled(world) == set()
    fake.start_limit = 3
    world.advance(5)
    assert launches(world) == [40], "not worth a call"
    fake.start_limit = WORTH_A_CALL
    world.advance(10)
    assert launches(world) == [40, 20]
    assert len({m.instance.node for m in world.ledger.machines.live()}) == 60
    reasons = [str(d.reason) for d in world.ledger.decisions.about("m60") if d.kind == "waiting"]
    assert "the API of cloud pub starts only so many machines a second" in reasons[0]
