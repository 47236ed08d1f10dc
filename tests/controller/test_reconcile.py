"""Repair: whatever Slurm, the ledger and the clouds disagree on, and what must be left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ledger_cases import instance, offer
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, SlurmElasticError, SlurmError
from slurm_elastic.controller.context import new_generation
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.controller.strays import Strays
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.journal_owner import JournalOwner
from slurm_elastic.model.memory import generation_order
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.providers.fake.provider import FakeProvider
from tests.controller.world import PUB, World, make_config

ADMIN = "fan is broken"


def up(world: World, *nodes: str) -> list[Instance]:
    for number, node in enumerate(nodes, 1):
        world.slurm.submit(number, (node,))
    world.advance(30)
    assert all(phase(world.slurm.node(n)) is Phase.UP for n in nodes)
    return world.alive()


def known(world: World) -> list[str]:
    return [m.instance.id for m in world.ledger.machines.live()]


def add(world: World, machine: Instance, ident: str, **changes: object) -> Instance:
    other = replace(machine, id=ident, **changes)
    world.accounts[other.cloud].add_foreign(other, owner="uuid-1")
    return other


def test_a_lost_ledger_is_learnt_from_the_clouds_and_nothing_ends(world: World) -> None:
    up(world, "pub1", "op1")
    alive = sorted(i.id for i in world.alive())
    world.lose_ledger()
    world.advance(600)
    assert sorted(known(world)) == alive
    assert sorted(i.id for i in world.alive()) == alive
    (spot,) = [m for m in world.ledger.machines.live() if m.instance.cloud == "pub"]
    assert spot.worst_price == pytest.approx(0.10), "limits count it as before"


def test_with_a_new_ledger_no_round_buys_while_another_cloud_may_have_machines_under_the_cap(
    world: World,
) -> None:
    """The cluster may have four machines; it has two where nobody has looked yet."""
    up(world, "op1", "op2")
    world.lose_ledger()
    for node in PUB:
        world.slurm.set_node(node, "IDLE", "CLOUD", "POWERING_UP")
    slow, quick = Round(world.site, "onp"), Round(world.site, "pub")
    for _ in range(3):  # what is missing is bought again after a while alone
        world.now += 60
        quick.run()
    assert len(world.alive("pub")) == 0
    slow.run()
    quick.run()
    assert len(world.alive("pub")) == 2, "what the cap leaves"


@pytest.mark.parametrize("restarts", [0, 2])
def test_with_a_new_ledger_nothing_is_bought_before_the_cloud_was_read(
    world: World, restarts: int
) -> None:
    """The node's machine may exist already, also for a daemon that starts once more: the job goes
    back, and what there was ends when the cloud can be read.
    """
    world.slurm.submit(1, ("pub1",), requeue=False)
    world.advance(5)
    (machine,) = world.alive()
    world.program(*world.requests[-1], received=world.now)
    world.clouds["pub"].fail_next(AuthError, 1000, "instances")
    world.lose_ledger()
    for _ in range(restarts):
        world.tick()
        world.restart()
    world.advance(70)
    assert world.alive() == [machine]
    assert known(world) == []
    assert "refused" in world.kinds("pub1")
    assert world.spool.count() == 0
    world.clouds["pub"].heal()
    world.advance(world.config.timings.capacity_cooldown + 240)
    (own,) = world.machines_of("pub1")
    assert [own] == known(world)
    assert "RUNNING" in world.slurm.queue()[1].states


def test_a_cloud_that_was_read_once_is_bought_from_while_its_list_fails(world: World) -> None:
    world.advance(30)
    world.restart()
    world.clouds["pub"].fail_next(AuthError, 1000, "instances")
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    assert world.machines_of("pub1")


def test_a_lost_request_is_made_up_for(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()
    world.advance(200)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert world.machines_of("pub1")


def test_a_machine_that_dies_gives_its_job_back(world: World) -> None:
    (machine,) = up(world, "pub1")
    world.clouds["pub"].take(machine.id)
    world.advance(500)
    job = world.slurm.queue()[1]
    assert (job.restarts, "RUNNING" in job.states) == (1, True)
    assert len(world.machines_of("pub1")) == 1


@pytest.mark.parametrize("hidden", [60, 200, 280])
def test_a_fresh_machine_that_the_cloud_does_not_show_is_not_lost(
    world: World, hidden: float
) -> None:
    world.clouds["pub"].visible_after = hidden
    (machine,) = up(world, "pub1")
    world.advance(400)
    assert [i.id for i in world.alive()] == [machine.id]
    assert known(world) == [machine.id]
    assert world.slurm.queue()[1].restarts == 0


def test_a_machine_that_the_cloud_forgets_for_two_readings_is_not_lost(world: World) -> None:
    (machine,) = up(world, "pub1")
    record = world.accounts["pub"].machines[machine.id]
    record.visible_from = world.now + 2 * world.config.timings.reconcile_interval
    world.advance(200)
    assert known(world) == [machine.id]
    assert "ended" not in world.kinds("pub1")


def test_an_answer_that_shows_one_of_two_machines_is_not_the_whole(world: World) -> None:
    """The open launch is asked again, instead of buying what only is not shown yet."""
    cloud = world.clouds["pub"]
    world.hears = False  # they take long to boot
    cloud.lose_answer_next(1000)
    cloud.visible_after = 250
    world.slurm.submit(1, ("pub1", "pub2"), 2)
    world.advance(5)
    first, _ = world.accounts["pub"].machines.values()
    first.visible_from = world.now
    cloud.heal()
    world.advance(400)
    assert sorted(i.node for i in world.alive()) == ["pub1", "pub2"]
    assert sorted(known(world)) == sorted(i.id for i in world.alive())
    assert world.ledger.launches.open() == ()


def test_a_machine_of_an_open_launch_that_dies_before_it_answers_is_in_the_books(
    world: World,
) -> None:
    """Two are bought, no answer comes: one is never listed, the other one only while it lives."""
    cloud = world.clouds["pub"]
    cloud.lose_answer_next(1000)
    cloud.visible_after = 10_000
    world.slurm.submit(1, ("pub1", "pub2"), 2)
    world.advance(5)
    first, second = world.accounts["pub"].machines.values()
    first.visible_from = world.now
    world.advance(world.config.timings.reconcile_interval + 35)
    assert known(world) == [first.instance.id], "it is paid from now on, whatever becomes of it"
    assert len(world.ledger.launches.open()) == 1
    cloud.take(first.instance.id)
    cloud.take(second.instance.id)
    cloud.heal()
    world.advance(600)
    rows = {m.instance.id: m for m in world.ledger.machines.live(ended_since=0.0)}
    assert rows[first.instance.id].has_ended
    assert world.ledger.launches.open() == ()


def test_an_open_launch_that_nobody_wants_is_given_up_after_a_while(world: World) -> None:
    cloud = world.clouds["pub"]
    cloud.fail_next(AuthError, 100_000, "terminate")
    cloud.lose_answer_next(1000)
    cloud.visible_after = 300
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    world.slurm.update_nodes(["pub1"], state="power_down")
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
    world.slurm.finish(1)
    cloud.heal()
    world.advance(700)
    assert world.alive() == []
    assert world.ledger.launches.open() == ()


def test_an_orphan_ends_after_the_grace(world: World) -> None:
    (machine,) = up(world, "pub1")
    world.slurm.finish(1)
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
    world.advance(world.config.timings.orphan_timeout - 40)
    assert world.alive() == [machine]
    world.advance(120)
    assert world.alive() == []


def test_after_a_takeover_none_ends_that_slurm_has_not_asked_to_end(world: World) -> None:
    """Slurm has forgotten what it gave out last, and is about to ask for it again."""
    (machine,) = up(world, "pub1")
    world.stop()
    world.repairs_allowed_from = world.now + 400.0
    world.start()
    world.slurm.finish(1)
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
    world.advance(350)
    assert world.alive() == [machine]
    world.advance(120)
    assert world.alive() == []


def test_a_launch_tells_the_epoch_of_the_head_that_makes_it() -> None:
    made = new_generation(1_800_000_000.0, epoch=7)
    assert re.fullmatch(r"g1800000000000-[0-9a-f]{8}e7", made)
    assert generation_order(made) == 1_800_000_000.0
    late = new_generation(1_800_000_000.0, 1_800_000_060.0, 7)
    assert generation_order(late) == 1_800_000_060.001


def test_a_node_asked_for_while_the_round_ran_keeps_its_machine(world: World) -> None:
    """The orphan was found in a view that is a minute old."""
    (machine,) = up(world, "pub1")
    world.slurm.finish(1)
    world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
    original = world.clouds["pub"].instances

    def slow() -> Sequence[Instance]:
        seen = original()
        world.slurm.set_node("pub1", "ALLOCATED", "CLOUD", "POWERING_UP")
        return seen

    world.clouds["pub"].instances = slow  # type: ignore[method-assign]
    for _ in range(10):
        world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")
        world.now += 31
        world.tick()
    assert world.alive() == [machine]


def test_of_two_machines_the_one_that_serves_stays(world: World) -> None:
    (machine,) = up(world, "pub1")
    add(world, machine, "pub-newer", generation="g9999999999999-x", address="10.9.9.9")
    world.advance(300)
    assert world.alive() == [machine]


def test_a_round_says_how_many_deletions_its_cap_leaves_for_the_next(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (machine,) = up(world, "pub1")
    for number in range(12):
        add(world, machine, f"pub-double-{number}", generation=f"g-{number}", address="")
    world.advance(world.config.timings.orphan_timeout + 600)
    assert world.alive() == [machine]
    assert "deletions capped cloud=pub waiting=2" in caplog.text


def test_machines_that_must_not_end_yet_keep_no_other_repair_waiting(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """As machines with files that are still to be copied, which may stay for an hour."""
    (machine,) = up(world, "pub1")
    doubles = [f"pub-double-{number}" for number in range(12)]
    for number, name in enumerate(doubles):
        add(world, machine, name, generation=f"g-{number}", address="")
    kept = {machine.id, *doubles[:10]}
    world.site.extensions.find_unfinished.append(
        lambda machines: [m for m in machines if m.instance.id in kept]
    )
    world.advance(world.config.timings.orphan_timeout + 600)
    assert {one.id for one in world.alive()} == kept
    assert "deletions capped" not in caplog.text


def test_a_job_is_not_killed_for_a_double_that_cannot_be_told_apart(world: World) -> None:
    (machine,) = up(world, "pub1")
    world.slurm.set_node("pub1", address="pub1")  # by its name, as the site's DNS has it
    world.hears = False
    # As after a loss of the journal: the newer launch may be its own.
    world.ledger.owner.record(JournalOwner(knows_since=world.now))
    add(world, machine, "pub-newer", generation=new_generation(world.now), address="10.9.9.9")
    world.advance(300)
    assert len(world.alive()) == 2
    world.slurm.finish(1)
    world.advance(400)
    assert world.alive() == []


def test_a_machine_that_has_stopped_itself_ends_and_its_job_runs_elsewhere(world: World) -> None:
    (machine,) = up(world, "pub1")
    stopped = world.accounts["pub"].machines[machine.id]
    stopped.instance = replace(stopped.instance, state=InstanceState.STOPPING)
    world.advance(600)
    assert machine.id not in [i.id for i in world.alive()]
    assert world.slurm.queue()[1].restarts == 1
    assert len(world.alive()) == 1


def test_a_stopped_machine_that_the_ledger_lost_ends_too(world: World) -> None:
    (machine,) = up(world, "pub1")
    add(world, machine, "pub-stopped", generation="g0", state=InstanceState.STOPPING)
    world.advance(600)
    assert [i.id for i in world.alive()] == [machine.id]
    assert world.slurm.queue()[1].restarts == 0


def test_a_machine_that_is_stopping_is_not_adopted_at_once(world: World) -> None:
    (machine,) = up(world, "pub1")
    add(world, machine, "pub-stopping", generation="g0", state=InstanceState.STOPPING)
    world.advance(100)
    assert known(world) == [machine.id]


def test_one_failing_repair_does_not_stop_the_others(world: World) -> None:
    """The ledger refuses an id that it knows from another cloud, in every round."""
    (machine,) = up(world, "op1")
    add(world, replace(machine, cloud="pub", node="pub2", generation="g2"), machine.id)
    add(world, replace(machine, cloud="pub", node="pub3", generation="g3"), "pub-adopted")
    world.advance(40)
    assert "pub-adopted" in known(world)


def test_a_machine_that_cannot_be_taken_in_stops_no_other_and_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (machine,) = up(world, "op1")
    for ident, node in (("pub-a", "pub2"), ("pub-b", "pub3")):
        add(world, replace(machine, cloud="pub", node=node, generation=f"g-{node}"), ident)
    real = world.ledger.machines.adopt

    def adopt(one: Instance, *args: Any) -> Any:
        if one.id == "pub-a":
            raise RuntimeError("nobody thought of that")
        return real(one, *args)

    with monkeypatch.context() as patched:
        patched.setattr(world.ledger.machines, "adopt", adopt)
        world.advance(40)
        assert "pub-b" in known(world)
        assert "machine not adopted, tried again id=pub-a" in caplog.text
    assert "pub-a" not in known(world)
    world.advance(40)
    assert "pub-a" in known(world)


def test_why_a_machine_is_not_taken_in_is_in_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (machine,) = up(world, "op1")
    add(world, replace(machine, cloud="pub", node="pub2", generation="g-pub2"), "pub-a")

    def adopt(*_: Any) -> Any:
        raise SlurmElasticError("the ledger has no room")

    with monkeypatch.context() as patched:
        patched.setattr(world.ledger.machines, "adopt", adopt)
        world.advance(40)
    assert "machine not adopted id=pub-a error=the ledger has no room" in caplog.messages
    world.advance(40)
    assert "pub-a" in known(world)


def test_a_repair_that_fails_in_an_unknown_way_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (machine,) = up(world, "op1")
    add(world, replace(machine, cloud="pub", node="pub3", generation="g3"), "pub-adopted")
    world.clouds["onp"].take(machine.id)

    def broken(*_: object) -> None:
        raise RuntimeError("nobody thought of that")

    with monkeypatch.context() as patched:
        patched.setattr(world.ledger.machines, "record_end", broken)
        world.advance(100)
        assert "repair fails in an unknown way, tried again kind=" in caplog.text
        assert "pub-adopted" in known(world)
    world.advance(60)
    assert machine.id not in known(world)


def test_addresses_that_the_cloud_tells_are_slurms_before_the_machine_is_up(
    tmp_path: Path,
) -> None:
    clouds = [replace(c, node_address="provider") for c in make_config(tmp_path).clouds]
    world = World(tmp_path, clouds=tuple(clouds))
    world.slurm.submit(1, ("pub1",))
    world.tick()
    (machine,) = world.alive()
    node = world.slurm.node("pub1")
    assert (phase(node), node.address) == (Phase.POWERING_UP, machine.address)
    world.close()


def test_an_address_that_slurm_did_not_take_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clouds = [replace(c, node_address="provider") for c in make_config(tmp_path).clouds]
    world = World(tmp_path, clouds=tuple(clouds))

    def refuse(*_: object) -> None:
        raise SlurmError(("scontrol",), 1, "Access/permission denied")

    world.slurm.submit(1, ("pub1",))
    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "set_addresses", refuse)
        world.tick()
    assert "addresses not set, reconcile tries again" in caplog.text
    (machine,) = world.alive()
    for _ in range(10):
        world.now += world.config.timings.reconcile_interval
        world.tick()
    node = world.slurm.node("pub1")
    assert (phase(node), node.address) == (Phase.POWERING_UP, machine.address)
    world.close()


def test_what_raises_something_unknown_is_unreadable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(world, "pub1")

    def broken() -> None:
        raise msgspec.DecodeError("no JSON")

    monkeypatch.setattr(world.clouds["pub"], "instances", broken)
    world.advance(600)
    health = {h.name: h for h in world.ledger.health.all()}
    assert (health["pub"].code, health["onp"].error) == ("unreadable", None)
    assert len(world.alive()) == 1
    assert world.slurm.queue()[1].restarts == 0


def test_what_a_provider_found_at_its_hosts_is_a_health_until_it_is_mended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProvider, "trouble", "3 hosts are off", raising=False)
    world.tick()
    health = {h.name: h for h in world.ledger.health.all()}
    assert health["hosts of pub"].error == "3 hosts are off"
    assert health["pub"].error is None
    monkeypatch.setattr(FakeProvider, "trouble", "", raising=False)
    world.advance(60)
    assert {h.name: h.error for h in world.ledger.health.all()}["hosts of pub"] is None


def test_while_slurm_cannot_be_read_nothing_is_done(world: World) -> None:
    up(world, "pub1")
    world.slurm.broken = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")
    for i in world.alive():
        world.clouds["pub"].take(i.id)
    calls = len(world.clouds["pub"].calls)
    world.now += 1000
    world.tick()
    assert len(world.clouds["pub"].calls) == calls
    assert {h.name: h.code for h in world.ledger.health.all()}["slurm"] == "slurm"


def test_a_machine_over_its_age_goes_when_its_jobs_have(world: World) -> None:
    (machine,) = up(world, "pub1")
    pool = replace(world.site.pools["burst"], max_age=200.0)
    world.site.pools["burst"] = world.site.pool_of["pub1"] = pool  # type: ignore[index]
    world.advance(600)
    assert world.alive() == [machine]
    assert "RUNNING" in world.slurm.queue()[1].states
    assert world.kinds("pub1").count("power-down-asap") == 1, "it is asked for once"
    world.slurm.finish(1)
    world.advance(60)
    assert world.alive() == []


def test_an_admins_drain_outlives_the_maximum_age(world: World) -> None:
    (machine,) = up(world, "pub1")
    pool = replace(world.site.pools["burst"], max_age=200.0)
    world.site.pools["burst"] = world.site.pool_of["pub1"] = pool  # type: ignore[index]
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason=ADMIN)
    world.advance(400)
    assert world.alive() == [machine]
    assert world.slurm.node("pub1").reason == ADMIN


@pytest.mark.parametrize("busy", [True, False])
def test_a_drained_node_whose_machine_is_gone_stays_the_admins(world: World, busy: bool) -> None:
    (machine,) = up(world, "pub1")
    world.slurmd_timeout = 1e9  # Slurm itself does nothing about it
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason=ADMIN)
    if not busy:
        world.slurm.finish(1)
        world.slurm.set_since("pub1", world.now + 1e6)
    world.advance(40)
    world.clouds["pub"].take(machine.id)
    world.advance(400)
    node = world.slurm.node("pub1")
    assert node.reason == ADMIN
    assert "DRAIN" in node.states
    assert ("DOWN" in node.states) is busy
    if busy:
        assert world.slurm.queue()[1].restarts == 1


def test_a_node_that_slurm_gave_up_is_restored_and_an_admins_is_not(world: World) -> None:
    world.slurm.set_node("pub1", "DOWN", "CLOUD", "POWERED_DOWN", reason="ResumeTimeout reached")
    world.slurm.set_node("pub2", "DOWN", "CLOUD", "POWERED_DOWN", reason=ADMIN)
    world.slurm.set_node("pub3", "DOWN", "CLOUD", "NOT_RESPONDING", reason="Not responding")
    world.advance(100)
    assert world.slurm.node("pub1").states == {"IDLE", "CLOUD", "POWERED_DOWN"}
    assert "DOWN" in world.slurm.node("pub2").states
    assert world.slurm.node("pub3").states == {"IDLE", "CLOUD", "POWERED_DOWN"}


def test_machines_of_a_cloud_that_left_the_configuration_are_told_of_and_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (machine,) = up(world, "pub1")
    world.stop()
    onp = world.config.clouds[0], world.config.pools[0]
    world.config = replace(world.config, clouds=(onp[0],), pools=(onp[1],))
    world.clouds.pop("pub")
    world.start()
    world.advance(60)
    assert machine.id in [i.id for i in world.alive()]
    assert machine.id in known(world)
    assert "the configuration no longer has cloud pub" in caplog.text


def test_a_loss_that_the_cloud_tells_fails_the_node_in_the_same_round(world: World) -> None:
    """Else it takes three readings without the machine, and the patience for races."""
    cloud = world.clouds["pub"]
    cloud.tells_losses = True
    (machine,) = up(world, "pub1")
    cloud.take(machine.id)
    world.advance(world.config.timings.reconcile_interval + 5)
    assert "node-lost" in world.kinds("pub1")
    world.advance(300)
    assert [m.id for m in world.alive()] != [machine.id]
    assert len(world.alive()) == 1, "the job has another machine"


def test_a_round_is_over_however_it_went(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Round(world.site, "pub")
    assert not made.is_over
    monkeypatch.setattr(world.slurm, "nodes", lambda *_: {})
    with pytest.raises(SlurmError):
        made.run()
    assert made.is_over


def test_of_stopped_machines_those_are_paid_in_vain_whose_cloud_is_no_more(world: World) -> None:
    for cloud, node in (("pub", "pub1"), ("gone", "pub2")):
        one = instance(f"i-{cloud}", node, f"g-{cloud}", bought=offer(cloud=cloud))
        world.ledger.machines.adopt(one, "burst", world.now)
        world.ledger.stops.record_stopping(cloud, [one.id], Quoted(text="idle"), world.now)
        world.ledger.stops.record_stopped(cloud, {one.id: 0.01}, world.now)
    Strays(world.site, []).report(world.ledger.state())
    (health,) = [h for h in world.ledger.health.all() if h.name == "paid machines"]
    assert (health.error or "").startswith("1 serves no node: i-gone: ")


def offers_asked(world: World) -> list[str]:
    return [call.name for call in world.clouds["pub"].calls if call.name == "offers"]


def test_what_a_cloud_sells_is_asked_once_before_a_launch_needs_it(world: World) -> None:
    pools = [pool for pool in world.site.pools.values() if pool.cloud == "pub"]
    before = len(offers_asked(world))
    rounds = Round(world.site, "pub")
    world.clouds["pub"].fail_next(SlurmElasticError, 1, "instances")
    rounds.run()
    assert len(offers_asked(world)) == before, "a cloud that does not answer is not asked more"
    world.clouds["pub"].fail_next(ValueError, 1, "offers")
    for _ in range(3):
        rounds.run()
    assert len(offers_asked(world)) == before + len(pools), "whatever it answered"
