"""Which machines make room for a new image: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_cases import instance
from msgspec.structs import replace

from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.machine_states import BOOTING, MachineState, Serving
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.repair.image_replacement import ImageHistory, PoolImages, next_step

NODES = tuple(f"n{n}" for n in range(1, 11))
POOL = Pool(name="p", cloud="aws", nodes=NODES, cpus=1, real_memory=1, max_unavailable=3)
UP = frozenset({"IDLE", "CLOUD"})
BUSY = frozenset({"ALLOCATED", "CLOUD"})
LEAVING = frozenset({"ALLOCATED", "CLOUD", "DRAIN", "POWER_DOWN"})
BOOTS = frozenset({"ALLOCATED", "CLOUD", "POWERING_UP"})
DRAINED = frozenset({"IDLE", "CLOUD", "DRAIN"})


def node(name: str, states: frozenset[str] = UP, **fields: Any) -> SlurmNode:
    return SlurmNode(name=name, states=states, **fields)


def machine(name: str, life: MachineState | None = None, at: float = 0.0) -> Machine:
    made = replace(instance(f"i-{name}", name), launched=at, generation="")
    return Machine(instance=made, pool="p", life=life or Serving(registered_at=1.0))


def view(images: dict[str, str], **fields: Any) -> PoolImages:
    values: dict[str, Any] = {
        "pool": POOL,
        "image": "new",
        "image_of": {f"i-{name}": image for name, image in images.items()},
        "machines": [machine(name) for name in images],
        "nodes": {name: node(name) for name in images},
        "history": ImageHistory(works=True),
    }
    return PoolImages(**(values | fields))


OLD = dict.fromkeys(NODES, "old")


def test_a_new_image_is_tried_with_one_machine_and_then_waited_for() -> None:
    step = next_step(view(OLD, history=ImageHistory()))
    assert (step.power_down, step.works) == (("n1",), False)
    rest = dict.fromkeys(NODES[1:], "old")
    step = next_step(view(rest, history=ImageHistory(tried_nodes=("n1",))))
    assert (step.power_down, step.fails) == ((), False)


def test_when_its_first_machine_has_registered_a_few_at_a_time_follow() -> None:
    step = next_step(view(OLD | {"n1": "new"}, history=ImageHistory(tried_nodes=("n1",))))
    assert step.works
    assert step.power_down == ("n10", "n2", "n3")


def test_a_first_machine_that_boots_proves_nothing() -> None:
    machines = [machine("n1", BOOTING), *(machine(name) for name in NODES[1:])]
    nodes = {name: node(name, BOOTS if name == "n1" else UP) for name in NODES}
    history = ImageHistory(tried_nodes=("n1",))
    step = next_step(view(OLD | {"n1": "new"}, machines=machines, nodes=nodes, history=history))
    assert (step.power_down, step.works) == ((), False)


def test_a_first_machine_that_fails_ends_it() -> None:
    rest = dict.fromkeys(NODES[1:], "old")
    step = next_step(view(rest, history=ImageHistory(tried_nodes=("n1",)), failures=1))
    assert (step.power_down, step.fails) == ((), True)


def test_an_order_that_slurmctld_never_got_is_repeated_for_the_same_node() -> None:
    history = ImageHistory(tried_nodes=("n4",))
    assert next_step(view(OLD, history=history)).power_down == ("n4",)


@pytest.mark.parametrize("states", [LEAVING, BOOTS])
def test_machines_that_leave_or_boot_count(states: frozenset[str]) -> None:
    nodes = {name: node(name, states if name in ("n1", "n2") else UP) for name in NODES}
    assert next_step(view(OLD, nodes=nodes)).power_down == ("n10",)


def test_idle_ones_go_first_and_then_the_oldest() -> None:
    ages = {"n1": 30.0, "n2": 20.0, "n3": 10.0, "n4": 40.0}
    nodes = {name: node(name, BUSY if name == "n3" else UP) for name in ages}
    machines = [machine(name, at=at) for name, at in ages.items()]
    step = next_step(view(dict.fromkeys(ages, "old"), nodes=nodes, machines=machines))
    assert step.power_down == ("n2", "n1", "n4")


def test_what_a_person_drained_stays() -> None:
    nodes = {name: node(name, DRAINED, reason="disk?") for name in NODES}
    assert next_step(view(OLD, nodes=nodes)).power_down == ()


@pytest.mark.parametrize("fields", [{"is_closed": True}, {"failures": 1}])
def test_while_nothing_can_start_nothing_leaves(fields: dict[str, Any]) -> None:
    assert next_step(view(OLD, **fields)).power_down == ()


def test_a_machine_of_an_unknown_image_stays() -> None:
    assert next_step(view(OLD, image_of={})).power_down == ()


images = st.sampled_from(["old", "older", "new", "?"])
states = st.sampled_from([UP, BUSY, LEAVING, BOOTS, DRAINED])


@given(st.lists(st.tuples(images, states), max_size=10), st.booleans(), st.integers(0, 2),
       st.booleans(), st.integers(1, 5))  # fmt: skip
def test_never_more_than_the_bound_and_never_one_of_the_new_image(
    made: list[tuple[str, frozenset[str]]], works: bool, failures: int, tried: bool, most: int
) -> None:
    names = NODES[: len(made)]
    known = {n: image for n, (image, _) in zip(names, made, strict=True) if image != "?"}
    nodes = {n: node(n, state) for n, (_, state) in zip(names, made, strict=True)}
    history = ImageHistory(works=works, tried_nodes=NODES[:1] if tried else ())
    seen = view(
        known, machines=[machine(n) for n in names], nodes=nodes, failures=failures,
        history=history, pool=replace(POOL, max_unavailable=most),
    )  # fmt: skip
    step = next_step(seen)
    missing = sum(bool(n.states & {"POWER_DOWN", "POWERING_UP"}) for n in nodes.values())
    assert not step.power_down or len(step.power_down) + missing <= (most if step.works else 1)
    assert all(known[name] in ("old", "older") for name in step.power_down)
    assert not (failures and step.power_down)
