"""A node without a machine has no address that another machine may have by now."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.world import PUB, World

REUSED = "10.9.9.9"


def up(world: World, node: str) -> Instance:
    world.slurm.submit(1, (node,))
    world.advance(30)
    assert phase(world.slurm.node(node)) is Phase.UP
    (machine,) = world.alive()
    return machine


def node_updates(world: World, state: str) -> list[tuple[tuple[str, ...], str | None]]:
    """Which nodes were set so, each time, and the address that they got with it."""
    return [
        (tuple(c["names"]), c.get("address"))
        for name, c in world.slurm.updates
        if name == "update_nodes" and c["state"] == state
    ]


def test_by_the_clouds_word_a_lost_node_has_no_address_from_the_very_command_on(
    world: World,
) -> None:
    """Or slurmctld's order to kill the job reaches whoever has the address, and the job there."""
    cloud = world.clouds["pub"]
    cloud.tells_losses = True
    machine = up(world, "pub1")
    old = machine.address
    world.slurm.submit(2, ("pub2",))
    cloud.take(machine.id)
    # The cloud gives the address to the next machine, as clouds do.
    world.advance(30, step=1)
    (other,) = [m for m in world.accounts["pub"].machines.values() if m.instance.node == "pub2"]
    other.instance = replace(other.instance, address=old)
    world.slurm.set_addresses({"pub2": old or ""})
    world.advance(world.config.timings.reconcile_interval + 5, step=1)
    assert node_updates(world, "DOWN") == [(("pub1",), NOWHERE)]
    assert world.slurm.node("pub2").address == old, "its new owner keeps it"
    world.advance(300)
    (fresh,) = [i for i in world.alive() if i.node == "pub1"]
    assert fresh.id != machine.id
    assert world.slurm.node("pub1").address == fresh.address, "a fresh machine has its own"
    assert "RUNNING" in world.slurm.queue()[1].states
    assert "RUNNING" in world.slurm.queue()[2].states, "nobody killed it"


def test_a_machine_that_is_only_not_listed_still_hears_that_its_job_is_killed(
    world: World,
) -> None:
    """It may run: then its job would run twice. With the next round its address goes, too."""
    machine = up(world, "pub1")
    world.slurmd_timeout = 1e9  # Slurm itself does nothing about it
    world.clouds["pub"].take(machine.id)
    world.advance(700)
    assert node_updates(world, "DOWN")[0] == (("pub1",), None)
    assert node_updates(world, "POWER_DOWN")[0] == (("pub1",), NOWHERE)


def test_unless_another_machine_has_its_address_already(world: World) -> None:
    """As where clouds only stop listing what is gone, and lease the first free address."""
    machine = up(world, "pub1")
    world.hears = False
    world.clouds["pub"].take(machine.id)
    world.slurm.set_node("op2", address=machine.address or "")
    world.advance(700)
    assert node_updates(world, "DOWN")[0] == (("pub1",), NOWHERE)


def test_so_does_a_node_that_slurmctld_itself_gave_up(world: World) -> None:
    world.slurm.set_node("pub3", "DOWN", "CLOUD", reason="Not responding", address=REUSED)
    world.advance(world.config.timings.reconcile_interval + 5)
    assert node_updates(world, "POWER_DOWN") == [(("pub3",), NOWHERE)]
    world.advance(120)
    node = world.slurm.node("pub3")
    assert "POWERED_DOWN" in node.states
    assert node.address == "pub3", "slurmctld has reset it"


def test_an_admins_down_node_keeps_its_address(world: World) -> None:
    world.slurm.set_node("pub3", "DOWN", "CLOUD", reason="fan is broken", address=REUSED)
    world.advance(200)
    assert world.slurm.node("pub3").address == REUSED


def test_a_node_that_is_too_old_keeps_the_address_of_its_machine(world: World) -> None:
    up(world, "pub1")
    pool = replace(world.site.pools["burst"], max_age=200.0)
    world.site.pools["burst"] = world.site.pool_of["pub1"] = pool  # type: ignore[index]
    world.slurm.finish(1)
    world.advance(290)
    assert [address for nodes, address in node_updates(world, "POWER_DOWN")] == [None]
    assert not [n for n in PUB if world.slurm.node(n).address == NOWHERE]
