"""Machines that never register pause their pool; a cap keeps the others waiting for their turn."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.config import PoolSettings, Timings
from slurm_elastic.controller.launching.boots import KEY_REFUSED
from slurm_elastic.model.causes.pool_failures import KeyNotBrought
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.world import SHAPE, World

NODES = tuple(f"m{i}" for i in range(1, 7))
RESUME = 100.0


def build(
    directory: Path, *, cap: int | None = None, interval: float = 30.0, times: Any = None,
    **pool: Any,
) -> World:  # fmt: skip
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, max_booting=cap,
        limits=Limits(dollars_per_hour=9.0),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "name": "many", "cloud": "pub", "nodes": "m[1-6]", "cpus": 2, "memory": 4096,
        "markets": (Market.ON_DEMAND,),
    }  # fmt: skip
    timings = Timings(
        suspend_time=900,
        suspend_timeout=30,
        resume_timeout=RESUME,
        max_boot_failures=3,
        boot_cooldown=1800.0,
        reconcile_interval=interval,
    )
    timings = replace(timings, **(times or {}))  # fmt: skip
    return World(
        directory, clouds=(cloud,), pools=(PoolSettings(**(fields | pool)),), limits=Limits(),
        timings=timings,
    )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = build(tmp_path)
    yield made
    made.close()


def mute(world: World) -> None:
    """Machines boot, but their slurmd cannot reach slurmctld."""
    world.hears = False


def heard(world: World) -> None:
    world.hears = True


def fail(world: World, count: int) -> None:
    """As many machines that never register, one after the other; until its pool has rested."""
    mute(world)
    for number in range(count):
        world.slurm.submit(100 + number, NODES)
        world.advance(RESUME + 20)
        for job in list(world.slurm.queue()):
            world.slurm.finish(job)
        world.advance(60)
        while world.ledger.exclusions.holds() and all(
            not b.until for b in world.ledger.exclusions.breakers()
        ):
            world.advance(60)


# the breaker


def test_machines_that_never_register_pause_their_pool_loudly(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        fail(world, 3)
    (breaker,) = world.ledger.exclusions.breakers()
    assert (breaker.scope, breaker.count) == ("many", 3)
    assert breaker.until is not None
    assert any("pool paused pool=many" in r.getMessage() for r in caplog.records)
    assert all(is_drained(world.slurm.node(n)) for n in NODES)
    assert "slurm-elastic:hold:" in world.slurm.node("m6").reason
    assert world.alive() == []
    world.slurm.submit(1, NODES)
    world.advance(600)
    assert world.alive() == [], "no job buys the next one"


def test_a_machine_that_got_no_munge_key_is_said_to_have_got_none(world: World) -> None:
    mute(world)
    world.slurm.submit(1, NODES)
    world.advance(10)
    one = next(m.instance for m in world.ledger.machines.live())
    why = "wrong host key, nothing was sent: 10.0.0.7 shows the host key SHA256:abc"
    world.site.record(
        "join",
        KEY_REFUSED,
        (one.node,),
        KeyNotBrought(machine="i-another", error=f"{why} of another"),
    )
    world.site.record("join", KEY_REFUSED, (one.node,), KeyNotBrought(machine=one.id, error=why))
    world.site.record(
        "join",
        KEY_REFUSED,
        (one.node,),
        KeyNotBrought(machine="i-older", error=f"{why} of an older one"),
    )
    world.advance(RESUME)
    (told,) = [
        str(d.reason) for d in world.ledger.decisions.about(one.node) if d.kind == "boot-failed"
    ]
    assert told.endswith(f"1 in a row in pool many; munge key not brought: {why}")
    assert why in world.slurm.node(one.node).reason


def test_one_that_registers_in_between_starts_the_count_anew(world: World) -> None:
    fail(world, 2)
    assert [b.count for b in world.ledger.exclusions.breakers()] == [2]
    heard(world)
    world.slurm.submit(1, NODES)
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert world.ledger.exclusions.breakers() == ()
    fail(world, 2)
    assert [b.until for b in world.ledger.exclusions.breakers()] == [0]


def test_after_the_pause_one_machine_is_tried_and_heals_the_pool(world: World) -> None:
    fail(world, 3)
    heard(world)
    world.slurm.submit(1, NODES)
    world.slurm.submit(2, NODES)
    world.advance(1900)
    running = [j.id for j in world.slurm.queue().values() if "RUNNING" in j.states]
    assert world.ledger.exclusions.breakers() == (), "it registered"
    assert running == [1, 2], "and the others were let go"
    assert "breaker-closed" in world.kinds(world.slurm.queue()[1].nodes[0])
    assert world.ledger.exclusions.holds() == ()


def test_the_machine_that_is_tried_fails_alone_and_pauses_again(world: World) -> None:
    fail(world, 3)
    for number in range(4):
        world.slurm.submit(number + 1, NODES)
    bought = len([c for c in world.clouds["pub"].calls if c.name == "launch"])
    world.advance(1700)
    (breaker,) = world.ledger.exclusions.breakers()
    assert breaker.until is not None
    world.advance(breaker.until + RESUME + 120 - world.now)
    (again,) = world.ledger.exclusions.breakers()
    assert again.count == 4
    assert again.until is not None
    assert again.until > breaker.until
    assert len([c for c in world.clouds["pub"].calls if c.name == "launch"]) == bought + 1


def test_the_pause_outlives_the_daemon(world: World) -> None:
    fail(world, 3)
    world.restart()
    world.slurm.submit(1, NODES)
    world.advance(600)
    assert world.alive() == []


def test_a_machine_that_the_cloud_took_while_it_booted_is_no_failure(world: World) -> None:
    mute(world)
    world.slurm.submit(1, NODES)
    world.advance(10)
    (machine,) = world.alive()
    world.clouds["pub"].take(machine.id)
    world.advance(60)
    world.slurm.finish(1)
    world.advance(300)
    assert "terminated" in world.kinds(machine.node), "its time to resume was over"
    assert world.ledger.exclusions.breakers() == ()


# the cap on machines that boot


def booting(world: World) -> list[str]:
    nodes = {i.node for i in world.alive()}
    return sorted(n for n in nodes if phase(world.slurm.node(n)) is Phase.POWERING_UP)


@pytest.mark.parametrize("where", ["cloud", "pool"])
def test_no_more_than_the_cap_boot_at_once_and_all_come_in_the_end(
    tmp_path: Path, where: str
) -> None:
    world = build(tmp_path, cap=2) if where == "cloud" else build(tmp_path, max_booting=2)
    for number, node in enumerate(NODES[:5], 1):
        world.slurm.submit(number, (node,))
    most = 0
    for _ in range(60):
        world.advance(1, step=1)
        most = max(most, len(booting(world)))
    assert most == 2
    assert all("RUNNING" in j.states for j in world.slurm.queue().values())
    assert len([d for d in world.kinds("m5") if d == "waiting"]) == 1
    assert world.spool.count() == 0
    world.close()


def test_the_nodes_of_one_job_may_come_in_turns(tmp_path: Path) -> None:
    world = build(tmp_path, cap=2)
    world.slurm.submit(1, NODES, 5)
    world.advance(60, step=1)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert len(world.alive()) == 5
    world.close()


def test_a_turn_that_does_not_come_in_time_is_a_refusal_with_its_reason(tmp_path: Path) -> None:
    world = build(tmp_path, cap=2)
    mute(world)
    world.slurm.submit(1, ("m1",))
    world.slurm.submit(2, ("m2",))
    world.advance(2, step=1)
    world.slurm.submit(3, ("m3",))
    world.advance(RESUME / 2 - 10, step=1)
    assert phase(world.slurm.node("m3")) is Phase.POWERING_UP
    assert "refused" not in world.kinds("m3")
    world.advance(30, step=1)
    (refused,) = [
        str(d.reason) for d in world.ledger.decisions.about("job:3") if d.kind == "refused"
    ]
    assert "its turn to boot did not come in 5" in refused
    assert "cloud pub boots 2 at a time" in refused
    assert "PENDING" in world.slurm.queue()[3].states
    assert world.spool.count() == 0
    world.close()


def test_a_job_that_began_and_gets_no_turn_gives_its_machines_back(tmp_path: Path) -> None:
    world = build(tmp_path, cap=2)
    mute(world)
    world.slurm.submit(1, NODES, 3)
    world.advance(20, step=1)
    assert len(world.alive()) == 2
    world.advance(RESUME / 2, step=1)
    assert world.alive() == []
    assert "PENDING" in world.slurm.queue()[1].states
    world.close()


def test_a_waiting_request_outlives_the_daemon(tmp_path: Path) -> None:
    world = build(tmp_path, cap=2)
    for number, node in enumerate(NODES[:3], 1):
        world.slurm.submit(number, (node,))
    world.advance(2, step=1)
    assert len(world.alive()) == 2
    world.restart()
    world.advance(60, step=1)
    assert len(world.alive()) == 3
    world.close()


# machines that others end


@pytest.fixture
def watchful(tmp_path: Path) -> Iterator[World]:
    """Its lists are newer than what slurmctld notices by its pings."""
    made = build(tmp_path, interval=10.0)
    yield made
    made.close()


def end_by_others(world: World) -> None:
    """As a clean-up script of the account does it."""
    for machine in world.alive():
        world.clouds["pub"].take(machine.id)
    world.advance(35)  # until three lists lack it


def ended_again_and_again(world: World, times: int, lives_s: float) -> None:
    for _ in range(times):
        for _ in range(120):
            if world.alive():
                break
            world.advance(5)
        world.advance(lives_s)
        end_by_others(world)


def counts(world: World) -> list[int]:
    return [breaker.count for breaker in world.ledger.exclusions.breakers()]


@pytest.mark.parametrize("tells_losses", [False, True], ids=["missing in lists", "listed as ended"])
def test_machines_that_others_end_soon_pause_their_pool(
    watchful: World, tells_losses: bool
) -> None:
    world = watchful
    world.clouds["pub"].tells_losses = tells_losses
    world.slurm.submit(1, NODES)
    ended_again_and_again(world, 3, lives_s=30)
    (breaker,) = world.ledger.exclusions.breakers()
    assert breaker.until > world.now
    ended = "3 machines in a row were ended in the cloud by others, minutes after the start"
    assert ended in str(breaker.cause)
    world.advance(900)
    assert world.alive() == [], "nothing more is bought for the job"


def test_machines_that_others_end_before_they_register_count(watchful: World) -> None:
    world = watchful
    world.clouds["pub"].tells_losses = True
    world.slurm.submit(1, NODES)
    ended_again_and_again(world, 2, lives_s=0)
    assert counts(world) == [2]


def test_a_machine_that_stays_in_service_ends_the_count(watchful: World) -> None:
    world = watchful
    world.slurm.submit(1, NODES)
    ended_again_and_again(world, 2, lives_s=30)
    assert counts(world) == [2]
    world.advance(300)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert counts(world) == [2], "a registration alone proves nothing"
    world.advance(900)
    assert counts(world) == []


def test_machines_that_end_after_a_while_or_by_our_decision_are_no_failures(
    watchful: World,
) -> None:
    world = watchful
    world.slurm.submit(1, NODES)
    ended_again_and_again(world, 1, lives_s=900)
    world.slurm.finish(1)
    world.advance(3600)
    assert counts(world) == []


def test_a_spot_machine_counts_only_before_its_cloud_could_reclaim_it(tmp_path: Path) -> None:
    world = build(tmp_path, interval=10.0, markets=(Market.SPOT,))
    world.slurm.submit(1, NODES)
    ended_again_and_again(world, 1, lives_s=180)
    assert counts(world) == []
    ended_again_and_again(world, 1, lives_s=20)
    assert counts(world) == [1]
    world.close()


@pytest.mark.parametrize("times", [{}, {"boot_cooldown": 3600.0, "max_boot_failures": 1}])
def test_the_next_try_of_a_pool_is_another_node(tmp_path: Path, times: dict[str, float]) -> None:
    """Slurm takes the first node again and again. Only another one tells whether the pool is ill."""
    world = build(tmp_path, times=times)
    world.unheard.add("m1")
    world.slurm.submit(1, ("m1", "m2"), 1)
    world.advance(2 * 3600, step=15.0)
    assert {m.instance.node for m in world.ledger.machines.live()} == {"m2"}
    assert "RUNNING" in world.slurm.queue()[1].states
    assert not [row for row in world.ledger.exclusions.breakers() if row.count]
    world.close()
