"""Tags that somebody poisoned: the machine is taken in with what is sure, and hides no other."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from slurm_elastic.controller.context import new_generation
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.state.ledger import Machine
from tests.controller.world import World


def left(world: World, count: int, **changes: object) -> list[str]:
    """Machines of an earlier ledger, the middle one changed."""
    generation = new_generation(world.now)
    for number in range(count):
        machine = Instance(
            id=f"pub-{number}", cloud="pub", node=f"pub{number + 1}", generation=generation,
            instance_type="small", zone="zone-1", market=Market.ON_DEMAND, price=0.1,
            state=InstanceState.RUNNING, launched=world.now, address=f"10.9.9.{number}",
        )  # fmt: skip
        if number == count // 2:
            machine = replace(machine, **changes)
        world.accounts["pub"].add_foreign(machine, owner="uuid-1")
    return [f"pub-{number}" for number in range(count)]


def machines(world: World) -> dict[str, Machine]:
    return {m.instance.id: m for m in world.ledger.machines.live()}


@pytest.mark.parametrize(
    "poison",
    [
        {"price": math.nan},
        {"price": -5.0},
        {"price": math.inf},
        {"node": "pub2\x1b[2J"},
        {"node": "\udcff\ud800"},
        {"generation": "\x00" * 500},
        {"generation": "g²²²²²²²²²²²²²-1"},
        {"launched": math.nan},
        {"zone": "z" * 100_000},
        {"address": "10.0.0.1 State=DOWN"},
    ],
    ids=lambda poison: str(poison)[:40],
)
def test_a_poisoned_machine_in_the_middle_hides_no_other(
    world: World, poison: dict[str, object]
) -> None:
    ids = left(world, 3, **poison)
    world.lose_ledger()
    world.tick()
    assert sorted(machines(world)) == ids
    assert "pub" in world.ledger.machines.clouds_read()
    one = machines(world)["pub-1"]
    assert (one.instance.price, one.worst_price) == (0.1, 0.1), "the limits count it"
    told = next(d for d in world.ledger.decisions.about(one.instance.node) if d.kind == "adopted")
    assert "its tags are not trusted" in str(told.reason)
    assert str(told.reason).isprintable()


def test_a_price_of_a_type_that_is_not_known_counts_as_the_dearest(world: World) -> None:
    left(world, 1, price=math.nan, instance_type="unheard-of")
    world.lose_ledger()
    world.tick()
    assert machines(world)["pub-0"].worst_price == 0.1


def test_a_tag_that_says_too_little_makes_no_room_for_more(world: World) -> None:
    left(world, 1, price=0.000001)
    world.lose_ledger()
    world.tick()
    assert world.site.usage().dollars_per_hour["cloud:pub"] == pytest.approx(0.1)


def test_a_machine_without_an_id_is_told_of_with_what_to_do(world: World) -> None:
    left(world, 3, id="i-\x1b]0;owned\x07")
    world.lose_ledger()
    world.advance(60)
    assert sorted(machines(world)) == ["pub-0", "pub-2"]
    health = {h.name: h.error for h in world.ledger.health.all()}
    assert health["paid machines"] == (
        r"1 serves no node: i-\x1b]0;owned\x07: its cloud lists it under an invalid id, so "
        "slurm-elastic cannot end it: end it with the cloud's own tools"
    )
    assert "pub" in world.ledger.machines.clouds_read(), "it was dealt with: the others may be used"
    world.accounts["pub"].machines.pop("i-\x1b]0;owned\x07")
    world.advance(60)
    assert {h.name: h.error for h in world.ledger.health.all()}["paid machines"] is None


def test_nothing_is_bought_while_a_listed_machine_could_not_be_taken_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = left(world, 3)
    world.lose_ledger()
    adopt = world.ledger.machines.adopt

    def full(instance: Instance, *rest: object) -> Machine | None:
        if instance.id == "pub-1":
            raise sqlite3.OperationalError("database or disk is full")
        return adopt(instance, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(world.ledger.machines, "adopt", full)
    world.slurm.submit(1, ("pub3",))
    world.advance(60)
    assert sorted(machines(world)) == ["pub-0", "pub-2"], "the later one is taken in"
    assert "pub" not in world.ledger.machines.clouds_read()
    assert sorted(i.id for i in world.alive("pub")) == ids, "nothing was bought"
    monkeypatch.setattr(world.ledger.machines, "adopt", adopt)
    world.advance(60)
    assert "pub" in world.ledger.machines.clouds_read()


def test_a_launchs_answer_with_a_poisoned_price_is_kept_at_the_offers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = world.clouds["pub"].launch

    def poisoned(spec: object) -> Sequence[Instance]:
        return [replace(i, price=math.nan) for i in launch(spec)]  # type: ignore[arg-type]

    monkeypatch.setattr(world.clouds["pub"], "launch", poisoned)
    world.advance(30)
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.ledger.machines.live()
    assert machine.instance.price == pytest.approx(0.03)
    assert "RUNNING" in world.slurm.queue()[1].states


def test_a_machine_whose_generation_was_changed_comes_back_under_its_own(world: World) -> None:
    """The ledger had it as ended: it would be paid for ever, and in no limit."""
    world.slurm.submit(1, ("pub1",))
    world.advance(30)
    (machine,) = world.alive("pub")
    world.ledger.machines.record_end(
        "pub", [machine.id], Quoted(text="somebody thought so"), world.now
    )
    record = world.accounts["pub"].machines[machine.id]
    record.instance = replace(machine, generation="g-of-nobody", state=InstanceState.STOPPING)
    world.advance(300)
    known = machines(world)[machine.id]
    assert known.instance.generation == machine.generation
