"""A suspend request ends the machines of its nodes: all of them, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from ledger_cases import instance, offer
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, InstanceNotFound, TransientError
from slurm_elastic.controller import apply, ending
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import EndAnswer, Instance
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Machine
from tests.controller.world import World


def up(world: World, *nodes: str) -> None:
    for number, node in enumerate(nodes, 1):
        world.slurm.submit(number, (node,))
    world.advance(30)
    assert all(phase(world.slurm.node(n)) is Phase.UP for n in nodes)


def idle(world: World, seconds: float = 320) -> None:
    for job in world.slurm.queue():
        world.slurm.finish(job)
    world.advance(seconds)


def add(world: World, machine: Instance, ident: str, **changes: object) -> Instance:
    """One more machine with our tags, in its cloud and in the ledger."""
    other = replace(machine, id=ident, **changes)
    world.accounts[other.cloud].add_foreign(other, owner="uuid-1")
    world.ledger.machines.adopt(other, "burst", world.now)
    return other


def test_an_idle_nodes_machine_ends(world: World) -> None:
    up(world, "pub1", "op1")
    idle(world)
    assert world.alive() == []
    assert world.ledger.machines.live() == ()
    assert world.kinds("pub1")[-1] == "terminated"


def test_both_machines_of_a_node_end(world: World) -> None:
    up(world, "pub1")
    (machine,) = world.alive()
    add(world, machine, "pub-second")
    idle(world)
    assert world.alive() == []


def test_a_suspend_of_a_node_that_is_up_is_dropped(world: World) -> None:
    up(world, "pub1")
    world.program("suspend", ["pub1"], {}, received=world.now)
    world.advance(10)
    assert len(world.machines_of("pub1")) == 1
    assert world.kinds("pub1")[-1] == "dropped"


def test_a_newer_machine_outlives_an_old_suspend(world: World) -> None:
    before = world.now - 50
    up(world, "pub1")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_DOWN")
    world.program("suspend", ["pub1"], {}, received=before)
    world.tick()
    assert len(world.machines_of("pub1")) == 1


def test_another_clouds_machine_for_the_node_is_not_asked_of_this_one(world: World) -> None:
    """The pool has moved to another cloud while its machine lived."""
    up(world, "pub1")
    (machine,) = world.alive()
    add(world, machine, "onp-left", cloud="onp")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERING_DOWN")
    world.program("suspend", ["pub1"], {}, received=world.now)
    world.tick()
    assert [i.id for i in world.alive()] == ["onp-left"]
    assert [m.instance.id for m in world.ledger.machines.live()] == ["onp-left"]


@pytest.mark.parametrize("error", [TransientError, AuthError])
def test_a_failed_end_is_repeated_until_it_is_done(
    world: World, error: type[TransientError]
) -> None:
    up(world, "pub1")
    world.clouds["pub"].fail_next(error, 2, "terminate")
    idle(world, 305)
    assert len(world.alive()) == 1
    assert [m.retired_at is not None for m in world.ledger.machines.live()] == [True]
    world.advance(120)
    assert world.alive() == []
    assert "terminate-failed" in world.kinds("pub1")


def test_a_failed_end_is_repeated_while_the_clouds_list_fails(world: World) -> None:
    up(world, "pub1")
    world.clouds["pub"].fail_next(TransientError, 100_000, "instances")
    world.clouds["pub"].fail_next(TransientError, 1, "terminate")
    idle(world, 400)
    assert world.alive() == []


def test_an_error_of_a_clouds_library_is_logged_told_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not each of them is translated, and the machine is paid until it ends."""
    up(world, "pub1")

    def broken(ids: object) -> None:
        raise RuntimeError("SDK: connection pool exhausted")

    with monkeypatch.context() as patched:
        patched.setattr(world.site.providers["pub"], "terminate", broken)
        idle(world, 305)
    assert "connection pool exhausted" in caplog.text
    (failed,) = [d for d in world.ledger.decisions.about("pub1") if d.kind == "terminate-failed"]
    assert "RuntimeError: SDK: connection pool exhausted" in str(failed.reason)
    world.advance(120)
    assert world.alive() == []


def test_a_machine_that_is_gone_already_has_ended(world: World) -> None:
    up(world, "pub1")
    (machine,) = world.alive()
    world.clouds["pub"].fail_next(InstanceNotFound, 1, "terminate")
    world.clouds["pub"].take(machine.id)
    idle(world, 305)
    assert world.ledger.machines.live() == ()


def test_an_error_that_one_machine_is_gone_proves_no_end_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(world, "pub1", "pub2")
    (gone,) = world.machines_of("pub1")
    cloud = world.clouds["pub"]
    really = cloud.terminate

    def strict(ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        if gone in ids:
            raise InstanceNotFound("pub", "NotFound", "one of them is gone")
        return really(ids)

    cloud.take(gone)
    monkeypatch.setattr(cloud, "terminate", strict)
    machines = world.ledger.machines.live()
    assert len(machines) == 2
    ending.terminate(world.site, "pub", machines, Quoted(text="idle"), "r1")
    assert world.ledger.machines.live() == ()
    assert world.alive() == [], "the other one was ended, too"


def test_a_machine_that_a_cloud_wrongly_calls_gone_is_ended_when_it_shows(world: World) -> None:
    up(world, "pub1")
    world.clouds["pub"].fail_next(InstanceNotFound, 1, "terminate")
    idle(world, 400)
    assert world.alive() == []
    ends = [c for c in world.clouds["pub"].calls if c.name == "terminate"]
    assert len(ends) == 3, "the last one proves its end"


def test_a_node_that_never_came_up_loses_its_machine(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    world.slurm.finish(1)
    world.slurm.give_up("pub1")
    world.program("resume-fail", ["pub1"], {}, received=world.now)
    world.advance(40)
    assert world.alive() == []
    assert world.slurm.node("pub1").reason.startswith("slurm-elastic:hold:pool burst cools down")
    # It is held for a cool-down longer than its pool, so that another node is tried first.
    world.advance(2 * world.config.timings.capacity_cooldown)
    assert world.slurm.node("pub1").states == {"IDLE", "CLOUD", "POWERED_DOWN"}


# which machines stand for a node


def row(
    world: World, ident: str = "i-1", node: str = "pub1", cloud: str = "pub", age: float = 0.0
) -> Machine:
    at = world.now - age
    made = instance(
        ident, node, f"g{at * 1000:.0f}-{ident[2:]}", launched=at, bought=offer(cloud=cloud)
    )
    world.ledger.machines.adopt(made, "burst", world.now)
    return next(m for m in world.ledger.machines.live() if m.instance.id == ident)


def test_another_word_of_the_cloud_about_an_end_is_told_too(world: World) -> None:
    row(world)
    world.site.record("r0", "launched", ["pub1"], Quoted(text="x"))
    for error in (TransientError, TransientError, AuthError, AuthError):
        world.clouds["pub"].fail_next(error, 1, "terminate")
        ending.terminate(world.site, "pub", world.ledger.machines.live(), Quoted(text="idle"), "r1")
    told = [
        str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "terminate-failed"
    ]
    assert told == [f"pub: Fake{e}: as it was asked to" for e in ("TransientError", "AuthError")]


def test_a_late_machine_that_registers_before_its_end_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm gave its node up, and has powered it up again since the daemon read the nodes."""
    world.unheard.add("pub1")
    world.slurm.submit(1, ("pub1",))
    world.advance(20)
    (machine,) = world.machines_of("pub1")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
    real = apply.expect_requeued

    def powered_up_again(site: Site, machines: Sequence[Machine]) -> list[int]:
        world.slurm.set_node("pub1", "ALLOCATED", "CLOUD")
        return real(site, machines)

    monkeypatch.setattr(apply, "expect_requeued", powered_up_again)
    world.program("resume-fail", ["pub1"], {}, received=world.now)
    world.advance(5)
    assert world.machines_of("pub1") == [machine]
