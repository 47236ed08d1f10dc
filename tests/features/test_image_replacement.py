"""``replace: when_changed``: the daemon with a cloud and a slurmctld in memory, and what may break."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import CapacityError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.model.boot_image import Replacement
from slurm_elastic.model.causes.image_changes import ImageChanged
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Departure, Pause
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.watch.door.orders import carry_out
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk
from tests.controller.world import World, make_config

RACK = tuple(f"r{n}" for n in range(1, 7))


def pools(**changes: Any) -> tuple[PoolSettings, ...]:
    """The world's own pools, with the first one larger."""
    rack, burst = make_config(Path("/nowhere")).pools
    values = {"nodes": compress(RACK), "replace": Replacement.WHEN_CHANGED, "max_unavailable": 2}
    return replace(rack, **(values | changes)), burst


@pytest.fixture
def world() -> Iterator[World]:
    made = World(limits=Limits(nodes=20, dollars_per_hour=10), pools=pools())
    yield made
    made.close()


def fill(world: World, count: int = 6) -> None:
    """So many jobs, each on a node of its own."""
    for job in range(1, count + 1):
        world.slurm.submit(job, RACK, 1, partitions=("onp",))
    world.advance(90)
    assert len(images(world)) == count


def images(world: World) -> dict[str, str]:
    return {i.node: i.image for i in world.alive("onp")}


def new_image(world: World, name: str = "image-2") -> None:
    world.accounts["onp"].image = name


def leaving(world: World) -> set[str]:
    return {n for n in RACK if world.slurm.node(n).states & {"POWER_DOWN", "POWERING_DOWN"}}


def away(world: World) -> int:
    """How many nodes take no job now, and are not simply off."""
    free = (Phase.UP, Phase.POWERED_DOWN)
    return sum(phase(world.slurm.node(n)) not in free or n in leaving(world) for n in RACK)


def finish(world: World, *jobs: int) -> None:
    for job in jobs:
        world.slurm.finish(job)


def running(world: World) -> dict[int, tuple[str, ...]]:
    return {j.id: j.nodes for j in world.slurm.queue().values() if "RUNNING" in j.states}


def busy_until_replaced(world: World, rounds: int = 40) -> int:
    """Keep as many jobs as there are nodes; one ends each round. The most nodes away at a time."""
    most, number = 0, 100
    for _ in range(rounds):
        for job in list(running(world))[:1]:
            finish(world, job)
        queue = [j for j in world.slurm.queue().values() if j.states & {"RUNNING", "PENDING"}]
        for _ in range(len(RACK) - len(queue)):
            number += 1
            world.slurm.submit(number, RACK, 1, partitions=("onp",))
        for _ in range(12):
            world.advance(5)
            most = max(most, away(world))
    return most


def test_a_new_image_replaces_all_in_time_and_never_too_many(world: World) -> None:
    fill(world)
    new_image(world)
    assert busy_until_replaced(world) <= 2
    assert set(images(world).values()) == {"image-2"}
    assert "image-works" in world.kinds("pool:rack")
    assert not any(job.restarts for job in world.slurm.queue().values()), "no job was interrupted"


def test_a_list_that_lacks_the_newest_image_for_a_while_changes_nothing(world: World) -> None:
    fill(world)
    new_image(world)
    busy_until_replaced(world)
    assert set(images(world).values()) == {"image-2"}
    new_image(world, "image-1")
    world.advance(120)
    new_image(world, "image-2")
    world.advance(300)
    assert leaving(world) == set()
    assert set(images(world).values()) == {"image-2"}
    new_image(world, "image-1")
    world.advance(240)
    assert leaving(world), "it is named for good"


def test_nothing_leaves_while_the_image_is_the_same(world: World) -> None:
    fill(world)
    world.advance(300)
    assert leaving(world) == set()
    assert "replaced" not in world.kinds("pool:rack")


def test_the_cause_is_recorded_and_stands_on_the_node(world: World) -> None:
    fill(world)
    new_image(world)
    world.advance(60)
    (node,) = leaving(world)
    assert "replaced" in world.kinds(node)
    reason = world.slurm.node(node).reason
    assert reason.startswith("slurm-elastic:maintenance: pool rack starts machines from image imag")


def test_a_bad_image_costs_one_machine(world: World) -> None:
    fill(world)
    new_image(world, "broken")
    world.advance(60)
    (node,) = leaving(world)
    (job,) = (j for j, nodes in running(world).items() if nodes == (node,))
    finish(world, job)
    world.advance(120)
    world.unheard.add(node)  # its next machine never registers
    world.slurm.submit(99, (node,), 1, partitions=("onp",))
    world.advance(1500)
    others = {n: image for n, image in images(world).items() if n != node}
    assert others == dict.fromkeys(set(RACK) - {node}, "image-1")
    assert leaving(world) == set()
    assert "image-fails" in world.kinds("pool:rack")
    health = {h.name: h.error for h in world.ledger.health.all()}
    assert "image broken of pool rack does not work" in str(health["image of pool rack"])
    new_image(world, "image-1")  # a person takes it back
    world.advance(60)
    assert not {h.name: h.error for h in world.ledger.health.all()}["image of pool rack"]


@pytest.mark.parametrize("at", [5.0, 40.0, 100.0])
def test_a_restart_tries_no_second_machine(world: World, at: float) -> None:
    fill(world)
    new_image(world)
    world.advance(at)
    world.restart()
    world.advance(300)
    assert len(leaving(world)) == 1
    assert [d for d in world.kinds("pool:rack") if d == "replaced"] == ["replaced"]


def test_a_pause_stops_it_and_its_end_continues_it(world: World) -> None:
    fill(world)
    carry_out(world.config, DirectAsk(word=Pause(scope="pool:rack")), "alice", world.now)
    new_image(world)
    world.advance(120)
    assert leaving(world) == set()
    (order,) = world.ledger.directives.all()
    carry_out(world.config, EndAsk(numbers=(order.number,)), "alice", world.now)
    world.advance(60)
    assert len(leaving(world)) == 1


def growing(**policies: Any) -> World:
    """A world whose pools have a growth policy, which holds each node that is off."""
    rules = SitePolicies(growth="on_demand", poll_interval=5.0, **policies)
    return World(limits=Limits(nodes=20, dollars_per_hour=10), pools=pools(), policies=rules)


def test_where_a_growth_policy_holds_what_is_off_machines_are_replaced() -> None:
    world = growing()
    world.advance(30)
    fill(world, 3)
    new_image(world)
    world.advance(60)
    held = {row.scope for row in world.ledger.exclusions.holds() if row.kind == POLICY}
    assert held >= set(RACK[3:])
    assert len(leaving(world)) == 1, "one first"
    world.close()


@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize(("window", "leaves"), [("07:00-08:10", 0), ("07:00-09:00", 1)])
def test_outside_the_times_at_which_machines_may_start_nothing_leaves(
    count: int, window: str, leaves: int
) -> None:
    """Whether nodes are off, which are then held for this reason, or all are up."""
    world = growing(start_windows=(window,))
    world.advance(30)
    fill(world, count)
    world.advance(600)
    new_image(world)
    world.advance(120)
    assert time.strftime("%H:%M", time.gmtime(world.now)) == "08:14"
    assert len(leaving(world)) == leaves
    world.close()


def test_a_single_node_that_an_operator_closed_holds_up_no_other(world: World) -> None:
    fill(world, 4)
    word = Departure(verb="drain", about=RACK[5], nodes=RACK[5:])
    carry_out(world.config, DirectAsk(word=word), "alice", world.now)
    new_image(world)
    world.advance(60)
    assert {row.scope for row in world.ledger.exclusions.holds()} == {RACK[5]}
    assert len(leaving(world)) == 1


def test_while_a_machine_leaves_by_an_order_no_other_leaves_for_its_image(world: World) -> None:
    fill(world)
    word = Departure(verb="drain", about=RACK[0], nodes=RACK[:1])
    carry_out(world.config, DirectAsk(word=word), "alice", world.now)
    new_image(world)
    world.advance(60)
    assert leaving(world) == {RACK[0]}
    (job,) = (job for job, nodes in running(world).items() if nodes == RACK[:1])
    finish(world, job)
    world.advance(120)
    assert len(leaving(world)) == 1
    assert leaving(world) != {RACK[0]}


def test_while_launches_are_refused_nothing_leaves(world: World) -> None:
    fill(world, 5)
    world.clouds["onp"].fail_next(CapacityError, 1, "launch")
    world.slurm.submit(50, RACK, 1, partitions=("onp",))
    world.advance(20)
    assert world.ledger.exclusions.cool_downs(world.now)
    new_image(world)
    world.advance(60)
    assert leaving(world) == set()


def test_an_order_that_slurmctld_did_not_take_is_given_again(world: World) -> None:
    fill(world)
    refused: list[str] = []

    def refuse(command: str) -> None:
        if not refused and command == "update_nodes":
            refused.append(command)
            raise SlurmError("scontrol", "refused")

    new_image(world)
    world.slurm.before_command = refuse  # type: ignore[method-assign]
    world.advance(90)
    assert refused
    assert len(leaving(world)) == 1


def test_a_person_who_took_the_image_back_ends_it(world: World) -> None:
    fill(world)
    new_image(world)
    world.advance(60)
    assert len(leaving(world)) == 1
    new_image(world, "image-1")
    world.advance(300)
    assert len(leaving(world)) == 1, "the one that was told to go goes, and no other"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_breaks_the_bounds_hold(world: World, seed: int) -> None:
    """Restarts, refusals, pauses and bad images at random moments, with jobs that come and go."""
    rng, number = random.Random(seed), 1000
    fill(world)
    for _ in range(80):
        match rng.choice(["jobs", "jobs", "jobs", "restart", "refusal", "pause", "image"]):
            case "restart":
                world.restart()
            case "refusal":
                world.clouds["onp"].fail_next(CapacityError, 1, "launch")
            case "pause" if orders := world.ledger.directives.all():
                carry_out(world.config, EndAsk(numbers=(orders[0].number,)), "al", world.now)
            case "pause":
                carry_out(world.config, DirectAsk(word=Pause(scope="pool:rack")), "al", world.now)
            case "image":
                new_image(world, rng.choice(["image-1", "image-2", "bad-1", "bad-2"]))
            case _:
                finish(world, *list(running(world))[: rng.randrange(3)])
                number += 1
                world.slurm.submit(number, RACK, 1, partitions=("onp",))
        for _ in range(6):
            before = leaving(world)
            bad = {node for node, image in images(world).items() if image.startswith("bad")}
            world.unheard = bad & {n for n in RACK if phase(world.slurm.node(n)) is not Phase.UP}
            world.advance(5)
            began = leaving(world) - before
            assert len(began) <= 2
            assert not began or away(world) <= 2
        for image in ("bad-1", "bad-2"):
            assert len(replaced_for(world, image)) <= 1, "a bad image costs one machine"


def replaced_for(world: World, image: str) -> set[str]:
    """The nodes whose machines had to leave for that image."""
    return {
        subject
        for decision in world.ledger.decisions.about("image:rack")
        if isinstance(decision.cause, ImageChanged) and decision.cause.image == image
        for subject in decision.subjects
        if subject in RACK
    }


def test_by_hand_is_the_default() -> None:
    plain = World(
        limits=Limits(nodes=20, dollars_per_hour=10), pools=pools(replace=Replacement.BY_HAND)
    )
    fill(plain)
    new_image(plain)
    plain.advance(300)
    assert leaving(plain) == set()
    plain.close()
