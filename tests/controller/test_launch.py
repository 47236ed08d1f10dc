"""One launch: what each failure of the cloud means, and that no answer is bought twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from slurm_elastic.controller.context import new_generation
from slurm_elastic.controller.launch import Outcome, launch, spec_of
from slurm_elastic.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.model import Instance, LaunchSpec
from tests.controller.world import World

FOREVER = 10_000


def spec_for(world: World, *nodes: str) -> LaunchSpec:
    pool = world.site.pools["burst"]
    offer = world.clouds["pub"].offers(pool)[0]
    spec = LaunchSpec(
        generation=new_generation(world.now), pool=pool, nodes=nodes, offer=offer, jobs=(7,)
    )
    world.ledger.intend(spec, "r1", world.now)
    return spec


def launches(world: World) -> int:
    return sum(call.name == "launch" for call in world.clouds["pub"].calls)


def test_a_throttled_call_is_repeated_under_its_token(world: World) -> None:
    spec = spec_for(world, "pub1", "pub2")
    world.clouds["pub"].fail_next(TransientError, 3, "launch")
    result = launch(world.site, spec, "r1")
    assert result.outcome is Outcome.STARTED
    assert launches(world) == 4
    assert len(world.alive()) == 2
    assert world.ledger.open_launches() == ()


def test_a_lost_answer_is_asked_for_again(world: World) -> None:
    world.clouds["pub"].lose_answer_next(2)
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is Outcome.STARTED
    assert len(world.alive()) == 1


def test_after_the_deadline_the_launch_stays_open(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    began = world.now
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is Outcome.IN_DOUBT
    assert 30 < world.now - began <= world.config.timings.transient_deadline
    assert len(world.ledger.open_launches()) == 1


def test_a_call_is_not_repeated_once_nothing_may_be_bought(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger fails between two tries; the launch stays open for a round that knows all."""
    world.clouds["pub"].fail_next(TransientError, 1, "launch")
    spec = spec_for(world, "pub1")
    wait = world.site.wait

    def meanwhile(seconds: float) -> bool:
        monkeypatch.setattr(type(world.ledger), "end_only", "the disk is full")
        return wait(seconds)

    object.__setattr__(world.site, "wait", meanwhile)
    result = launch(world.site, spec, "r1")
    assert (result.outcome, launches(world), world.alive()) == (Outcome.IN_DOUBT, 1, [])
    assert "the disk is full" in result.why
    assert [row.generation for row in world.ledger.open_launches()] == [spec.generation]


def test_an_open_launch_is_repeated_without_waiting(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    began = world.now
    result = launch(world.site, spec_for(world, "pub1"), "r1", again=True)
    assert result.outcome is Outcome.IN_DOUBT
    assert (launches(world), world.now) == (1, began)


def test_what_only_time_can_tell_is_left_to_a_later_round(world: World) -> None:
    """The wait would hold up the cloud's other launches."""
    world.clouds["pub"].fail_next(UnsettledError, FOREVER, "launch")
    began = world.now
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is Outcome.IN_DOUBT
    assert (launches(world), world.now) == (1, began)
    assert len(world.ledger.open_launches()) == 1


def test_a_launch_of_an_earlier_round_says_so_to_the_provider(world: World) -> None:
    spec = spec_for(world, "pub1")
    (row,) = world.ledger.open_launches()
    assert spec_of(world.site, row) == replace(spec, again=True)


@pytest.mark.parametrize(
    ("error", "key", "seconds"),
    [
        (CapacityError, "pub/small/zone-1/spot", 180),
        (QuotaError, "pub/*/*/spot", 1800),
        (AuthError, "pub/*/*/*", 60),
        (InstanceNotFound, "pub/small/zone-1/spot", 180),
    ],
)
def test_a_refusal_cools_down_what_it_is_about(
    world: World, error: type[ProviderError], key: str, seconds: float
) -> None:
    world.clouds["pub"].fail_next(error, 1, "launch")
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is Outcome.REFUSED
    (cool_down,) = world.ledger.cool_downs(world.now)
    assert (cool_down.scope, cool_down.until) == (key, world.now + seconds)
    assert world.ledger.open_launches() == ()
    assert world.alive() == []


def test_cool_downs_double_up_to_the_maximum(world: World) -> None:
    lengths = []
    for _ in range(7):
        world.clouds["pub"].fail_next(CapacityError, 1, "launch")
        launch(world.site, spec_for(world, "pub1"), "r1")
        (cool_down,) = world.ledger.cool_downs(world.now)
        lengths.append(cool_down.until - world.now)
        world.now = cool_down.until + 1
    assert lengths == [180, 360, 720, 1440, 2880, 3600, 3600]


def test_a_refused_credential_is_reported(world: World) -> None:
    world.clouds["pub"].fail_next(AuthError, 1, "launch")
    launch(world.site, spec_for(world, "pub1"), "r1")
    (health,) = world.ledger.health()
    assert (health.name, health.code) == ("pub", "auth")


@pytest.mark.parametrize("error", [AuthError, InstanceNotFound])
def test_a_refusal_after_a_lost_answer_says_nothing_of_it(
    world: World, error: type[ProviderError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines are there: another offer for their nodes would double them."""
    spec = spec_for(world, "pub1")
    cloud = world.clouds["pub"]
    cloud.lose_answer_next()

    def then_refuse(seconds: float) -> bool:
        cloud.fail_next(error, 1, "launch")
        return world.wait(seconds)

    object.__setattr__(world.site, "wait", then_refuse)
    assert launch(world.site, spec, "r1").outcome is Outcome.IN_DOUBT
    assert [row.generation for row in world.ledger.open_launches()] == [spec.generation]
    assert len(world.alive()) == 1


def test_capacity_under_the_token_of_a_busy_call_is_an_answer(world: World) -> None:
    world.clouds["pub"].fail_next(TransientError, 1, "launch")
    world.clouds["pub"].fail_next(CapacityError, 1, "launch")
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is Outcome.REFUSED
    assert world.ledger.open_launches() == ()


def test_an_unknown_exception_leaves_the_launch_open(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(spec: LaunchSpec) -> Sequence[Instance]:
        raise KeyError("InstanceId")

    monkeypatch.setattr(world.clouds["pub"], "launch", broken)
    result = launch(world.site, spec_for(world, "pub1"), "r1")
    assert result.outcome is Outcome.IN_DOUBT
    assert len(world.ledger.open_launches()) == 1
    assert "Traceback" in caplog.text


def test_a_result_that_cannot_be_kept_leaves_the_launch_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    spec = spec_for(world, "pub1")
    with monkeypatch.context() as patched:
        patched.setattr(world.ledger, "launched", full)
        with pytest.raises(sqlite3.OperationalError):
            launch(world.site, spec, "r1")
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    assert len(world.machines_of("pub1")) == 1
    assert world.ledger.open_launches() == ()


def test_a_stopping_service_does_not_wait_for_a_busy_cloud(world: World) -> None:
    object.__setattr__(world.site, "wait", lambda _: True)
    world.clouds["pub"].fail_next(TransientError, FOREVER, "launch")
    assert launch(world.site, spec_for(world, "pub1"), "r1").outcome is Outcome.IN_DOUBT
    assert launches(world) == 1
