"""Limits count the cluster's own machines, whatever else a cloud lists or Slurm has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.world import T0, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Four machines may be had, and for a quarter of a dollar an hour in the public cloud."""
    made = World(tmp_path)
    yield made
    made.close()


def strangers(world: World, count: int) -> None:
    """Machines of another cluster that has nodes of the same names in the same accounts."""
    for cloud, account in world.accounts.items():
        for number in range(1, count + 1):
            one = Instance(
                id=f"{cloud}-theirs-{number}", cloud=cloud, node=f"pub{number}", generation="g0",
                instance_type="small", zone="zone-1", market=Market.ON_DEMAND, price=0.10,
                state=InstanceState.RUNNING, launched=T0,
            )  # fmt: skip
            account.add_foreign(one, owner="uuid-of-another")


def is_up(world: World, node: str) -> bool:
    return phase(world.slurm.node(node)) is Phase.UP


def test_machines_of_others_and_the_sites_own_nodes_are_in_no_limit(world: World) -> None:
    strangers(world, 9)
    for number in range(1, 6):
        world.slurm.set_node(f"st{number}", "ALLOCATED")
    world.advance(30)
    assert world.site.usage().nodes == {}
    for number, node in enumerate(("op1", "op2", "pub1", "pub2", "pub3"), 1):
        world.slurm.submit(number, (node,))
    world.advance(60)
    assert [n for n in ("op1", "op2", "pub1", "pub2", "pub3") if is_up(world, n)] == [
        "op1", "op2", "pub1", "pub2",
    ]  # fmt: skip
    used = world.site.usage()
    assert (used.nodes[""], used.nodes["cloud:onp"], used.nodes["cloud:pub"]) == (4, 2, 2)
    assert used.dollars_per_hour["cloud:pub"] == pytest.approx(0.20)


def test_a_machine_that_has_ended_makes_room(world: World) -> None:
    for number, node in enumerate(("op1", "op2", "pub1", "pub2"), 1):
        world.slurm.submit(number, (node,))
    world.advance(60)
    for number in range(1, 5):
        world.slurm.finish(number)
    world.advance(800)
    assert (world.alive(), world.site.usage().nodes.get("", 0)) == ([], 0)
    world.slurm.submit(5, ("pub3",))
    world.advance(60)
    assert is_up(world, "pub3")
