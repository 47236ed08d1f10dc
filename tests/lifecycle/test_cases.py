"""Single cases of the daemon over fakes: what each of them must not cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config import Who
from slurm_elastic.lifecycle.refuse import give_back, refuse
from slurm_elastic.model import CoolDown, NodeRequest
from tests.lifecycle.world import ONP, PUB, World

SPOT = "pub/small/zone-1/spot"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def running(world: World, job: int) -> bool:
    return "RUNNING" in world.slurm.queue()[job].states


# a suspend that is served late


def test_a_node_asked_for_again_before_its_suspend_was_served_gets_a_new_machine(
    world: World,
) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (old,) = world.machines_of("pub1")
    world.slurm.finish(1)
    world.stop()
    world.advance(world.config.timings.suspend_time + 60)  # suspended, nobody serves it
    world.slurm.submit(2, ("pub1",))  # and asked for again
    asked = world.now
    world.start()
    world.advance(60)
    (new,) = world.machines_of("pub1")
    assert new != old
    assert running(world, 2)
    assert world.now - asked < world.config.timings.resume_timeout


def test_a_machine_younger_than_the_suspend_is_kept(world: World) -> None:
    world.program("suspend", ["pub1"], {}, received=world.now - 1)
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    assert running(world, 1)
    assert len(world.machines_of("pub1")) == 1


# cool-downs


def strikes(world: World, key: str = SPOT) -> int:
    return world.ledger.strikes(key, world.now)


def test_an_offer_that_gives_again_starts_from_the_shortest_cool_down(world: World) -> None:
    for key in (SPOT, "pub/*/*/spot", "pub/*/*/*"):
        over = CoolDown(key=key, until=world.now - 1, code="X", reason="none", strikes=4)
        world.ledger.cool_down(over)
    world.slurm.submit(1, PUB)
    world.advance(10)
    assert [strikes(world, k) for k in (SPOT, "pub/*/*/spot", "pub/*/*/*")] == [0, 0, 0]


def test_another_offers_refusals_are_not_forgiven(world: World) -> None:
    other = "pub/small/zone-1/on-demand"
    over = CoolDown(key=other, until=world.now - 1, code="X", reason="none", strikes=4)
    world.ledger.cool_down(over)
    world.slurm.submit(1, PUB)
    world.advance(10)
    assert strikes(world, other) == 4


def test_an_offer_that_gave_some_cools_down_no_longer_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = CoolDown(key=SPOT, until=world.now - 1, code="X", reason="none", strikes=4)
    world.ledger.cool_down(over)
    cloud = world.clouds["pub"]
    cloud.limit("small/zone-1/spot", 1)
    offers = cloud.offers  # a cloud that does not say how many it has
    monkeypatch.setattr(
        cloud, "offers", lambda pool: tuple(replace(o, free=None) for o in offers(pool))
    )
    world.slurm.submit(1, PUB, 2)
    world.tick()
    (cool,) = world.ledger.cool_downs(world.now)
    assert (cool.key, cool.code) == (SPOT, "Partial")
    assert cool.until <= world.now + world.config.timings.capacity_cooldown
    assert strikes(world) == 0


# nodes given back


@pytest.mark.parametrize(("state", "allowed"), [("CONFIGURING", True), ("RUNNING", False)])
def test_only_a_job_that_never_started_is_requeued_against_its_will(
    world: World, state: str, allowed: bool
) -> None:
    world.slurm.set_node("op1", "ALLOCATED", "CLOUD", "POWERING_UP")
    world.slurm.set_job(7, state, nodes=("op1", "op2"), requeue=False)
    give_back(world.site, ["op1"], world.slurm.nodes(), "none left", "r1")
    lifted = [u for u in world.slurm.updates if u[0] == "set_requeue"]
    assert lifted == ([("set_requeue", {"job": 7, "requeue": True})] if allowed else [])


# clouds that may not be used yet


def test_a_blocked_clouds_nodes_are_only_held_where_a_job_walks_into_them(tmp_path: Path) -> None:
    """Its partition is INACTIVE in the fragment; an older fragment may still let jobs in."""
    world = World(tmp_path, who=Who())
    world.advance(60)
    assert world.ledger.holds() == ()
    world.slurm.submit(1, PUB)
    world.advance(60)
    assert {row.node for row in world.ledger.holds()} == set(PUB)
    assert all("DRAIN" in world.slurm.node(n).states for n in PUB)
    assert all("DRAIN" not in world.slurm.node(n).states for n in ONP)
    world.close()


# ten thousand nodes


class Counted(tuple):  # type: ignore[type-arg]
    """How often somebody searched it from end to end."""

    searches = 0

    def __contains__(self, item: object) -> bool:
        Counted.searches += 1
        return super().__contains__(item)


def test_refusing_many_nodes_does_not_search_them_for_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    pool = replace(world.site.pools["burst"], nodes=Counted(PUB))
    request = NodeRequest(id="r1", pool=pool, nodes=Counted(PUB[:2]))
    monkeypatch.setattr(Counted, "searches", 0)
    refuse(world.site, request, Counted(PUB[:2]), "none left")
    assert Counted.searches == 0
    world.close()
