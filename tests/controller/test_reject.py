"""No offer is left: the jobs move on, the pool is held, and nobody's own settings are lost."""

from __future__ import annotations

import errno
import itertools
import os
import socket

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies.nodes.node_state import is_drained
from tests.controller.world import PUB, World

ADMIN = "fan is broken"
BROKEN = SlurmError(("scontrol", "update"), 1, "Unable to contact slurm controller")


@pytest.fixture
def empty(world: World) -> World:
    world.clouds["pub"].limit("*", 0)
    return world


def held(world: World) -> list[str]:
    return [
        n for n in PUB
        if is_drained(world.slurm.node(n))
        and world.slurm.node(n).reason.startswith("slurm-elastic:hold:")
    ]  # fmt: skip


def test_the_job_leaves_at_once_and_the_whole_pool_is_held(empty: World) -> None:
    empty.slurm.submit(1, ("pub1",))
    empty.advance(60)
    assert held(empty) == list(PUB)
    job = empty.slurm.queue()[1]
    assert "PENDING" in job.states
    assert job.restarts == 1
    assert job.start <= empty.now, "its 121 s of hold were lifted"
    assert "pub has 0 free" in empty.slurm.node("pub2").reason
    assert empty.alive() == []


def test_siblings_are_held_before_the_job_is_requeued(empty: World) -> None:
    """Or it would walk into them one by one."""
    empty.slurm.submit(1, ("pub1",))
    empty.advance(5)
    states = [c["state"] for name, c in empty.slurm.updates if name == "update_nodes"]
    assert states[:2] == ["DRAIN", "POWER_DOWN_FORCE"]


def test_slurmctld_is_not_left_to_look_for_a_refused_nodes_name(empty: World) -> None:
    """It would, for ten seconds (22.05). Once the node has powered down, its name is back."""
    empty.slurm.submit(1, ("pub1",))
    empty.advance(5)
    (forced,) = [
        c for name, c in empty.slurm.updates
        if name == "update_nodes" and c["state"] == "POWER_DOWN_FORCE"
    ]  # fmt: skip
    assert forced["address"] == NOWHERE
    assert empty.slurm.node("pub1").address == NOWHERE
    empty.advance(90)
    assert "POWERED_DOWN" in empty.slurm.node("pub1").states
    assert empty.slurm.node("pub1").address == "pub1"


def test_to_connect_to_nowhere_fails_at_once_and_is_not_tried_again() -> None:
    """slurmctld repeats what is refused or timed out (ECONNREFUSED, ETIMEDOUT), nothing else."""
    with socket.socket() as client:
        client.settimeout(30)
        with pytest.raises(OSError, match=os.strerror(errno.ENETUNREACH)):
            client.connect((NOWHERE, 6818))


def test_a_drain_sent_too_early_would_be_wiped_so_it_is_sent_later(empty: World) -> None:
    empty.slurm.submit(1, ("pub1",))
    empty.advance(1, step=1)
    assert "POWER_DOWN" in empty.slurm.node("pub1").states
    assert "pub1" not in held(empty)
    empty.advance(20, step=1)
    assert "POWERING_DOWN" in empty.slurm.node("pub1").states
    assert "pub1" in held(empty)
    empty.advance(40)
    assert "POWERED_DOWN" in empty.slurm.node("pub1").states
    assert "pub1" in held(empty)


def test_an_admins_drain_is_neither_overwritten_nor_undone(empty: World) -> None:
    empty.slurm.update_nodes(["pub3"], state="DRAIN", reason=ADMIN)
    empty.slurm.submit(1, ("pub1",))
    empty.advance(60)
    assert held(empty) == ["pub1", "pub2"]
    empty.clouds["pub"].limit("*", None)
    empty.slurm.finish(1)
    empty.advance(600)
    assert held(empty) == []
    assert empty.slurm.node("pub3").reason == ADMIN
    assert is_drained(empty.slurm.node("pub3"))


def test_a_node_that_an_admin_drained_while_it_boots_keeps_its_drain(empty: World) -> None:
    """power_down would clear it; the node runs into its ResumeTimeout instead."""
    empty.slurm.submit(1, ("pub1",))
    empty.slurm.update_nodes(["pub1"], state="DRAIN", reason=ADMIN)
    empty.advance(300)
    node = empty.slurm.node("pub1")
    assert is_drained(node)
    assert node.reason == ADMIN
    empty.advance(400)
    assert "PENDING" in empty.slurm.queue()[1].states
    assert empty.slurm.node("pub1").reason == ADMIN


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
def test_slurm_that_fails_in_the_middle_is_asked_again(empty: World, failing: int) -> None:
    """Whichever command it is: nodes, drain, jobs, power_down; the request stays until done."""
    empty.advance(5)
    empty.slurm.submit(1, ("pub1",), requeue=False, comment="spot=ok")
    fail_command(empty, failing)
    empty.advance(90)
    assert held(empty) == list(PUB)
    job = empty.slurm.queue()[1]
    assert ("PENDING" in job.states, job.restarts, job.requeue) == (True, 1, False)
    assert empty.spool.count() == 0


def fail_command(world: World, number: int) -> None:
    """The ``number``-th command from now on fails, once."""
    count = itertools.count(1)

    def before(_: str) -> None:
        if next(count) == number:
            raise BROKEN

    world.slurm.before_command = before


def test_a_job_that_forbids_requeueing_waits_again_and_keeps_its_word(empty: World) -> None:
    empty.slurm.submit(1, ("pub1",), requeue=False)
    empty.advance(60)
    job = empty.slurm.queue()[1]
    assert (job.restarts, job.requeue) == (1, False)


def test_where_a_limit_is_in_the_way_the_hold_ends_when_there_is_room(world: World) -> None:
    world.slurm.submit(1, PUB, 2)  # all that the money is for
    world.slurm.submit(2, PUB, 1)
    world.advance(120)
    assert held(world) == ["pub3"]
    assert "may spend $0.25/h" in world.slurm.node("pub3").reason
    assert len(world.alive()) == 2
    world.slurm.finish(1)
    world.advance(900)
    assert "RUNNING" in world.slurm.queue()[2].states
    assert held(world) == []


def test_the_other_nodes_of_a_job_get_an_address_before_one_is_given_back(world: World) -> None:
    """slurmctld has them end the job, and looks up the name of one without an address for 10 s."""
    world.slurm.submit(1, ("pub1", "pub2", "op1"), 3)
    boots = ("ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")
    for node, address in (("pub1", "pub1"), ("pub2", "10.0.0.2"), ("op1", "op1")):
        world.slurm.set_node(node, *boots, address=address)
    world.slurm.updates.clear()
    power_down_and_requeue(
        world.site, ["pub1"], world.slurm.nodes(), Quoted(text="none left"), "r1"
    )
    told = [name for name, _ in world.slurm.updates]
    assert told.index("set_addresses") < told.index("update_nodes")
    assert world.slurm.node("op1").address == NOWHERE
    assert world.slurm.node("pub2").address == "10.0.0.2", "it has one"
