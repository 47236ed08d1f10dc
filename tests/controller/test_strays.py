"""Machines that are paid and serve nobody: told of, counted, and in no node's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.cli.orders.clear_gone import gone
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller.launching.budget import read_payer_spending, read_spending
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import EndAnswer, Instance, InstanceState, LaunchSpec, Market
from slurm_elastic.model.launch_states import Done, Failed
from slurm_elastic.model.memory import Launch
from slurm_elastic.state.ledger import Machine
from tests.controller.world import T0, World, make_config


def adopted(world: World, cloud: str, node: str, *, generation: str = "g0") -> str:
    """A machine with our tags that another hand, or another configuration, left."""
    account = world.accounts[cloud]
    left = Instance(
        id=f"{cloud}-left", cloud=cloud, node=node, generation=generation, instance_type="small",
        zone="zone-1", market=Market.ON_DEMAND, price=0.1, state=InstanceState.RUNNING,
        launched=world.now,
    )  # fmt: skip
    account.add_foreign(left, owner="uuid-1")
    return left.id


def strays(world: World) -> str | None:
    return next(h.error for h in world.ledger.health.all() if h.name == "paid machines")


def test_a_machine_whose_node_slurm_has_no_more_ends_after_an_hour(world: World) -> None:
    left = adopted(world, "pub", "former1")
    world.advance(3000, step=60)
    assert left in {i.id for i in world.alive()}
    assert "no pool of cloud pub has node former1 now" in (strays(world) or "")
    world.advance(1200, step=60)
    assert world.alive() == []
    assert strays(world) is None


def test_an_empty_answer_of_slurm_ends_no_machine(world: World) -> None:
    left = adopted(world, "pub", "former1")
    world.advance(60)
    world.slurm.nodes = lambda names=None: {}  # type: ignore[method-assign]
    world.advance(5000, step=60)
    assert left in {i.id for i in world.alive()}


def test_a_machine_of_a_former_pool_stays_while_slurm_has_its_node_up(world: World) -> None:
    world.slurm.set_node("former1", "ALLOCATED", "CLOUD")
    left = adopted(world, "pub", "former1")
    world.advance(5000, step=60)
    assert left in {i.id for i in world.alive()}
    world.slurm.set_node("former1", "IDLE", "CLOUD", "POWERED_DOWN")
    world.advance(300, step=60)
    assert world.alive() == []


def test_a_machine_without_a_nodes_name_is_told_of_and_ends_at_the_maximum_age(
    tmp_path: Path,
) -> None:
    pools = [replace(p, max_age=7200.0) for p in make_config(tmp_path).pools]
    world = World(tmp_path, pools=tuple(pools))
    left = adopted(world, "pub", "")
    world.advance(7000, step=60)
    assert left in {i.id for i in world.alive()}
    assert strays(world) == f"1 serves no node: {left}: its tags name no node"
    world.advance(600, step=60)
    assert world.alive() == []
    world.close()


def test_a_machine_of_a_cloud_that_left_the_configuration_is_told_of_every_round(
    world: World,
) -> None:
    gone = Instance(
        id="far-1", cloud="far", node="far1", generation="g0", instance_type="small", zone="z",
        market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=world.now,
    )  # fmt: skip
    world.advance(30)  # it is none at the start
    assert strays(world) is None
    world.ledger.machines.adopt(gone, "", world.now)
    world.advance(60)
    assert strays(world) == "1 serves no node: far-1: the configuration no longer has cloud far"


# a cloud that does not end what it said it would


def stop(world: World, machine: Instance) -> None:
    record = world.accounts[machine.cloud].machines[machine.id]
    record.instance = replace(record.instance, state=InstanceState.STOPPING)


def accepted(ids: Sequence[str]) -> Mapping[str, EndAnswer]:
    return dict.fromkeys(ids, EndAnswer.ENDED)


def fail_deletions(world: World, monkeypatch: pytest.MonkeyPatch, times: int) -> list[float]:
    """``pub`` takes so many deletions that fail afterwards: the machine stays, as no running one.
    Returns when it was asked.
    """
    asked: list[float] = []
    really = world.clouds["pub"].terminate

    def terminate(ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        asked.append(world.now)
        if len(asked) > times:
            return really(ids)
        for machine in world.alive("pub"):
            if machine.id in ids:
                stop(world, machine)
        return accepted(ids)

    monkeypatch.setattr(world.clouds["pub"], "terminate", terminate)
    return asked


def used(world: World, node: str = "pub1", job: int = 1) -> Instance:
    """The machine of a node whose job has ended."""
    world.slurm.submit(job, (node,))
    world.advance(30)
    (machine,) = (i for i in world.alive() if i.node == node)
    world.slurm.finish(job)
    return machine


def told(world: World, node: str, kind: str) -> int:
    return world.kinds(node).count(kind)


def row(world: World, machine: Instance) -> Machine:
    return next(m for m in world.ledger.machines.live(ended_since=0) if m.instance.id == machine.id)


def test_a_deletion_that_failed_after_it_was_taken_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fail_deletions(world, monkeypatch, 1)
    machine = used(world)
    world.advance(3600, step=30)
    assert world.alive() == []
    assert len(asked) == 3, "the last one proves its end"
    (why,) = [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "adopted"]
    assert why == "its end is recorded, but its cloud lists it as stopping"
    ended = row(world, machine).ended_at
    assert ended is not None
    assert ended >= asked[1], "it was paid until then"
    spent = world.ledger.books.dollars("pub", T0, world.now)
    assert spent == pytest.approx((ended - machine.launched) * machine.price / 3600)


def test_a_machine_that_its_cloud_may_not_end_is_told_of_with_the_clouds_words(
    world: World,
) -> None:
    machine = used(world)
    world.accounts["pub"].protected.add(machine.id)
    world.advance(2 * 3600, step=60)
    told = strays(world)
    assert told is not None
    assert told.endswith(f"OperationNotPermitted: {machine.id} may not be terminated")


def test_a_machine_that_its_cloud_does_not_end_is_counted_and_told_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fail_deletions(world, monkeypatch, 10_000)
    machine = used(world)
    world.advance(12 * 3600, step=60)
    stuck = "its end was decided over 15m ago, and its cloud has not confirmed it"
    assert strays(world) == f"1 serves no node: {machine.id}: {stuck}"
    assert len(asked) > 100
    why = "its end was decided and it is still there"
    ends = [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "terminated"]
    assert ends == ["suspended by Slurm", why], "not once a round"
    assert told(world, "pub1", "adopted") == 1
    assert world.site.usage().nodes["cloud:pub"] == 1
    hours = (world.now - machine.launched) / 3600
    assert world.ledger.books.dollars("pub", T0, world.now) == pytest.approx(hours * machine.price)

    world.slurm.submit(2, ("pub1",))
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[2].states, "its node is free for another machine"
    (second,) = (i for i in world.alive() if i.id != machine.id)
    assert world.slurm.node("pub1").address == second.address

    monkeypatch.undo()
    world.advance(120)
    assert [i.id for i in world.alive()] == [second.id]
    world.advance(120)
    assert strays(world) is None
    assert told(world, "pub1", "ended") == 1


def test_a_machine_that_goes_on_to_run_after_its_end_was_taken_is_counted_and_told_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.clouds["pub"], "terminate", accepted)
    machine = used(world)
    world.advance(6 * 3600, step=60)
    assert machine.id in (strays(world) or "")
    assert world.site.usage().nodes["cloud:pub"] == 1
    assert told(world, "pub1", "terminated") == 2, "not once a round"
    monkeypatch.undo()
    world.advance(180)
    assert world.alive() == []
    assert row(world, machine).ended_at is not None
    assert strays(world) is None


def lose_tags(world: World, machine: Instance) -> None:
    """The machine has another cluster's tags from now on: our lists lack it."""
    world.accounts["pub"].machines[machine.id].owner = "another cluster"


def test_a_machine_that_lost_its_tags_before_its_end_stays_counted_and_is_reported(
    world: World,
) -> None:
    machine = used(world)
    lose_tags(world, machine)
    world.advance(2 * 3600, step=60)
    assert row(world, machine).ended_at is None, "it runs and is paid"
    assert told(world, "pub1", "ended") == told(world, "pub1", "terminated") == 0
    # Once before slurmctld has given the node up, and once after it is restored.
    assert told(world, "pub1", "terminate-failed") == 2, "not once a round"
    assert f"{machine.id} runs without this cluster's tags" in (strays(world) or "")
    world.accounts["pub"].machines[machine.id].owner = "uuid-1"
    world.advance(180)
    assert world.alive() == []
    assert row(world, machine).ended_at is not None
    assert strays(world) is None


def test_a_machine_that_lost_its_tags_and_was_then_ended_by_a_person_is_gone(world: World) -> None:
    machine = used(world)
    lose_tags(world, machine)
    world.advance(600, step=60)
    assert row(world, machine).ended_at is None
    world.clouds["pub"].take(machine.id)
    world.advance(120)
    assert row(world, machine).ended_at is not None


def test_a_refusal_to_end_a_machine_is_told_once_and_when_it_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["may not be terminated"]

    def terminate(ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        raise ProviderError("pub", "OperationNotPermitted", words[0])

    monkeypatch.setattr(world.clouds["pub"], "terminate", terminate)
    machine = used(world)
    world.advance(2 * 3600, step=30)
    assert told(world, "pub1", "terminate-failed") == 1
    words[0] = "may still not be terminated"
    world.advance(600, step=30)
    assert told(world, "pub1", "terminate-failed") == 2
    assert machine.id in (strays(world) or "")


def test_a_machine_that_ended_by_misses_and_comes_back_stopped_is_ended(world: World) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.alive()
    missing = "the cloud did not list it 3 times in a row"
    world.ledger.machines.record_end("pub", [machine.id], Quoted(text=missing), world.now)
    stop(world, machine)
    world.advance(600)
    assert machine.id not in {i.id for i in world.alive()}
    found = row(world, machine)
    assert found.ended_at is not None
    assert str(found.cause_text) != missing


# a machine whose node is told later


def test_a_machine_adopted_without_a_node_gets_it_and_goes_with_it(world: World) -> None:
    """As a fleet's machine whose tag was not set yet when the ledger was lost."""
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.alive()
    record = world.accounts["pub"].machines[machine.id]
    record.instance = replace(machine, node="")
    world.lose_ledger()
    world.advance(60)
    assert (row(world, machine).instance.node, row(world, machine).pool) == ("", "")
    record.instance = machine
    world.advance(60)
    assert (row(world, machine).instance.node, row(world, machine).pool) == ("pub1", "burst")
    assert strays(world) is None
    world.slurm.finish(1)
    world.advance(3600, step=30)
    assert world.alive() == []


# clouds that are called otherwise, or are gone


def rename(world: World, new: str) -> None:
    """``pub`` has another name in the configuration from now on."""
    world.stop()
    c = world.config
    clouds = tuple(replace(x, name=new) if x.name == "pub" else x for x in c.clouds)
    pools = tuple(replace(p, cloud=new) if p.cloud == "pub" else p for p in c.pools)
    world.config = replace(c, clouds=clouds, pools=pools)
    account = world.accounts[new] = world.accounts.pop("pub")
    for machine in account.machines.values():
        machine.instance = replace(machine.instance, cloud=new)
    del world.clouds["pub"]
    world.start()


def test_a_renamed_clouds_machines_are_the_same_ones_and_are_paid_once(world: World) -> None:
    for number, node in enumerate(("pub1", "pub2"), 1):
        world.slurm.submit(number, (node,))
    world.advance(600)
    before = {m.instance.id: m for m in world.ledger.machines.live()}
    usage = world.site.usage()
    spent = world.ledger.books.dollars("pub", T0, world.now)
    rename(world, "east")
    world.advance(5)
    after = {m.instance.id: m for m in world.ledger.machines.live()}
    assert {m.instance.cloud for m in after.values()} == {"east"}
    assert [after[i].registered_at for i in before] == [m.registered_at for m in before.values()]
    assert world.site.usage().nodes[""] == usage.nodes[""] == 2
    assert world.site.usage().dollars_per_hour[""] == usage.dollars_per_hour[""]
    assert world.ledger.books.dollars("pub", T0, world.now) == 0
    assert world.ledger.books.dollars("east", T0, world.now) == pytest.approx(spent, rel=0.02)
    world.advance(60)
    assert strays(world) is None
    why = [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "adopted"]
    assert why == ["it is now of cloud east; the configuration no longer has pub"]
    for job in (1, 2):
        assert "RUNNING" in world.slurm.queue()[job].states
        world.slurm.finish(job)
    world.advance(1200, step=30)
    assert world.alive() == []
    assert world.site.usage().nodes == {}
    world.slurm.submit(3, ("pub1",))
    world.advance(30)
    assert "RUNNING" in world.slurm.queue()[3].states, "at the first try"
    assert told(world, "pub1", "dropped") == 0


def test_a_launch_in_doubt_of_a_renamed_cloud_is_done_where_its_machine_is_there(
    world: World,
) -> None:
    world.clouds["pub"].lose_answer_next(100)
    world.slurm.submit(1, ("pub1",))
    world.advance(5)
    (launch,) = world.ledger.launches.open()
    rename(world, "east")
    world.advance(60)
    assert world.ledger.launches.open() == ()
    found = world.ledger.launches.get(launch.generation)
    assert found is not None
    assert (found.cloud, type(found.state)) == ("east", Done)
    assert len(world.machines_of("pub1")) == 1
    assert "RUNNING" in world.slurm.queue()[1].states


def leave_behind(world: World) -> tuple[Instance, Launch]:
    """A machine for pub1 and an open launch for pub2, of a cloud that the configuration lacks."""
    left = Instance(
        id="far-1", cloud="far", node="pub1", generation="g0", instance_type="small", zone="z",
        market=Market.ON_DEMAND, price=0.1, state=InstanceState.RUNNING, launched=world.now,
    )  # fmt: skip
    world.ledger.machines.adopt(left, "burst", world.now)
    pool = world.site.pools["burst"]
    offer = replace(world.clouds["pub"].offers(pool)[0], cloud="far")
    spec = LaunchSpec(generation="g00", pool=pool, nodes=("pub2",), offer=offer)
    world.ledger.launches.record_intent(spec, "r", world.now)
    (launch,) = world.ledger.launches.open()
    return left, launch


def test_what_a_former_cloud_has_is_counted_and_told_of_but_in_no_nodes_way(world: World) -> None:
    world.advance(5)
    leave_behind(world)
    for number, node in enumerate(("pub1", "pub2"), 1):
        world.slurm.submit(number, (node,))
    world.advance(60)
    assert all("RUNNING" in world.slurm.queue()[job].states for job in (1, 2))
    assert world.site.usage().nodes[""] == 4
    text = strays(world) or ""
    assert text.startswith("2 serve no node: ")
    assert "far-1: the configuration no longer has cloud far" in text
    assert "g00: its launch of 1 node has no answer, and the configuration has no far" in text


def test_an_operator_says_that_what_a_former_cloud_had_is_gone(world: World) -> None:
    world.advance(5)
    left, launch = leave_behind(world)
    lines = gone(world.config, world.ledger, ["far"], world.now, 0)
    assert lines == (
        "machine far-1 of cloud far, node pub1",
        "launch g00 of cloud far, 1 node",
    )
    world.advance(60)
    assert strays(world) is None
    assert world.site.usage().nodes == {}
    assert row(world, left).ended_at is not None
    assert isinstance(world.ledger.launches.get(launch.generation).state, Failed)  # type: ignore[union-attr]
    assert world.kinds("pub1")[-1] == world.kinds("pub2")[-1] == "cleared"


def test_what_a_former_cloud_cost_is_still_spent(tmp_path: Path) -> None:
    policies = SitePolicies(
        budget=Budget(per_day=9.0), account_budgets={"physics": Budget(per_day=9.0)}
    )
    world = World(tmp_path, policies=policies)
    world.slurm.submit(1, ("pub1",), account="physics")
    world.advance(1800)
    world.slurm.finish(1)
    world.advance(600, step=30)
    assert world.alive() == []
    before = read_spending(world.config, world.ledger, world.now)[""].day
    of_physics = read_payer_spending(world.config, world.ledger, world.now)["account:physics"].day
    rename(world, "east")
    world.advance(60)
    assert before > 0
    assert of_physics > 0
    after = read_spending(world.config, world.ledger, world.now)
    assert after[""].day == pytest.approx(before, rel=0.02)
    accounts = read_payer_spending(world.config, world.ledger, world.now)
    assert accounts["account:physics"].day == pytest.approx(of_physics, rel=0.02)
    world.close()
