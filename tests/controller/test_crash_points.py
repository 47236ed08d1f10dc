"""The daemon killed at each step of a launch, an end, a refusal and the end of a hold: a restart
repairs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from slurm_elastic.base import faults
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.providers.fake.provider import FakeProvider
from tests.controller.world import PUB, Killed, World

ADMIN = "fan is broken"
STEPS = [p for p in faults.POINTS if p.startswith(("refuse.", "release."))]
LIFTED = ("refuse.lifted", "refuse.put-back")
"""Only where a job's own --no-requeue stands in the way."""


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment that names the fault point; dying ends the daemon and empties it."""
    environment: dict[str, str] = {}

    def die(_signal: int) -> None:
        environment.clear()
        raise Killed

    monkeypatch.setattr(faults, "os", SimpleNamespace(environ=environment))
    monkeypatch.setattr(faults.signal, "raise_signal", die)
    return environment


def held(world: World) -> list[str]:
    nodes = [world.slurm.node(n) for n in PUB]
    return [n.name for n in nodes if is_drained(n) and n.reason.startswith(HOLD_MARK)]


@pytest.mark.parametrize("requeue", [True, False], ids=["requeue", "no-requeue"])
@pytest.mark.parametrize("point", STEPS)
def test_after_a_crash_at_any_step_of_a_refusal_the_job_is_served_elsewhere(
    world: World, env: dict[str, str], point: str, requeue: bool
) -> None:
    """No orphan, no job lost, an admin's drain not undone, and the hold ends. The daemon is away for
    some minutes, but back before ResumeTimeout.
    """
    world.clouds["pub"].limit("*", 0)
    world.slurm.update_nodes(["pub3"], state="DRAIN", reason=ADMIN)
    env["SLURM_ELASTIC_FAULT"] = point
    # May be lost on a spot machine: else it would close only its own node of both markets.
    world.slurm.submit(1, ("pub1", "pub2", "op1"), requeue=requeue, comment="spot=ok")
    world.advance(20, step=1)
    world.clouds["pub"].limit("*", None)
    world.advance(300, step=10)
    if point in LIFTED and requeue:
        assert env, "only a job's own --no-requeue has to be lifted"
        env.clear()
    else:
        assert not env, "it died there"
        assert world.daemon is None
        world.start()
    world.advance(600, step=10)
    job = world.slurm.queue()[1]
    assert ("RUNNING" in job.states, job.requeue) == (True, requeue)
    (machine,) = world.alive()
    assert machine.node in job.nodes
    assert held(world) == []
    assert world.ledger.exclusions.holds() == ()
    assert world.ledger.launches.open() == ()
    assert world.ledger.requeues.lifted() == ()
    assert world.spool.count() == 0
    admins = world.slurm.node("pub3")
    assert (is_drained(admins), admins.reason) == (True, ADMIN)


@pytest.mark.parametrize("point", [p for p in STEPS if p.startswith("refuse.")])
def test_a_crash_while_no_capacity_returns_leaves_the_pool_held(
    world: World, env: dict[str, str], point: str
) -> None:
    """The daemon is away for a short time only: siblings are held, and the job moves on."""
    world.clouds["pub"].limit("*", 0)
    env["SLURM_ELASTIC_FAULT"] = point
    world.slurm.submit(1, (*PUB, "op1"), requeue=False, comment="spot=ok")
    world.advance(30, step=1)
    assert not env, "it died there"
    if world.daemon is None:
        world.start()
    world.advance(170, step=2)
    assert held(world) == list(PUB)
    job = world.slurm.queue()[1]
    assert job.nodes == ("op1",)
    assert job.restarts == 1, "it did not walk into the held nodes one by one"
    assert [i.node for i in world.alive()] == ["op1"]


@pytest.mark.parametrize(
    "point", [p for p in faults.POINTS if p.startswith(("launch.", "suspend."))]
)
def test_after_a_crash_at_any_step_of_a_life_there_was_one_machine_and_it_has_ended(
    world: World, env: dict[str, str], point: str
) -> None:
    env["SLURM_ELASTIC_FAULT"] = point
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    if world.daemon is None:
        world.start()
        world.advance(120)
    assert [i.node for i in world.alive()] == ["pub1"]
    assert "RUNNING" in world.slurm.queue()[1].states
    world.slurm.finish(1)
    world.advance(400)
    assert not env, "it died there"
    if world.daemon is None:
        world.start()
        world.advance(120)
    assert world.alive() == []
    assert len(world.accounts["pub"].machines) == 1
    assert world.ledger.machines.live() == world.ledger.launches.open() == ()
    assert world.spool.count() == 0


def killed_in(cloud: FakeProvider, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon dies once the next such call has taken effect, before it has an answer."""
    call = getattr(cloud, verb)

    def die(what: object) -> None:
        call(what)
        raise Killed

    monkeypatch.setattr(cloud, verb, die)


def test_a_launch_without_an_answer_is_known_though_the_cloud_hides_its_machine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the intent another one would be bought beside it."""
    world.clouds["pub"].visible_after = 90.0
    killed_in(world.clouds["pub"], "launch", monkeypatch)
    world.slurm.submit(1, ("pub1",))
    world.advance(20, step=1)
    assert world.daemon is None
    world.start()
    assert [row.nodes for row in world.ledger.launches.open()] == [("pub1",)]
    world.advance(200)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert len(world.accounts["pub"].machines) == 1
    assert world.ledger.launches.open() == ()


def test_an_end_without_an_answer_is_known_before_the_cloud_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    killed_in(world.clouds["pub"], "terminate", monkeypatch)
    world.slurm.finish(1)
    world.advance(400)
    assert world.daemon is None
    world.start()
    (row,) = world.ledger.machines.live()
    assert row.retired_at is not None
    world.advance(60)
    assert world.ledger.machines.live() == ()
