"""A request of slurmctld: what its nodes call for, by Slurm and the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_cases import instance, offer
from machine_cases import changed
from msgspec.structs import replace

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.repairs import (
    AlreadyServed,
    AskedBySlurm,
    NotPoweringDown,
    NotPoweringUp,
)
from slurm_elastic.model.memory import Launch, Machine
from slurm_elastic.model.slurm import Request, SlurmNode
from slurm_elastic.policies.actions import Action, Drop, FailBoot, Suspend
from slurm_elastic.policies.actions import LaunchMachine as Start
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, Terms
from slurm_elastic.policies.repair.request_rules import requested
from tests.policies.test_cluster import BOOTS, GOES, NOW, OFF, TERMS, UP

AT = NOW - 1.0
"""When the request came."""


def asked(
    *machines: Machine,
    kind: str = "resume",
    states: frozenset[str] | None = BOOTS,
    launches: tuple[Launch, ...] = (),
    nodes: tuple[str, ...] = ("pub1",),
    terms: Terms = TERMS,
) -> list[Action]:
    view = {} if states is None else {n: SlurmNode(name=n, states=states) for n in nodes}
    snapshot = ClusterSnapshot(
        now=NOW, terms=terms, nodes=view, machines=machines, launches=launches, exclusions=(),
        request=Request(id="r1", kind=kind, nodes=nodes, received=AT),
    )  # fmt: skip
    return list(requested(snapshot))


def machine(age: float, cloud: str = "aws", ident: str = "i-1", **fields: Any) -> Machine:
    """Launched so long ago, for pub1; of another cloud it is one that the pool had before."""
    made = instance(ident, "pub1", f"g{int((NOW - age) * 1000):013d}-0a", bought=offer(cloud=cloud))
    return changed(Machine(instance=made, pool="burst"), **fields)


def opened(cloud: str, age: float, request: str = "r0") -> Launch:
    return Launch(
        generation="g7", request=request, pool="burst", cloud=cloud, nodes=("pub1",), jobs=(),
        offer=offer(), created=NOW - age,
    )  # fmt: skip


LAUNCHED = [Start(node="pub1", cause=AskedBySlurm())]


def dropped(cause: AnyCause, node: str = "pub1") -> list[Drop]:
    return [Drop(node=node, cause=cause)]


@pytest.mark.parametrize("states", [None, UP, OFF, GOES])
def test_what_slurm_does_not_wait_for_gets_no_machine(states: frozenset[str] | None) -> None:
    assert asked(states=states) == dropped(NotPoweringUp())


def test_nodes_of_other_clouds_and_of_no_pool_are_nothing_to_this_one() -> None:
    assert asked(nodes=("own1", "pub1", "strange")) == LAUNCHED


@pytest.mark.parametrize(
    ("age", "cloud", "fields", "serves"),
    [
        (900.0, "aws", {}, True),
        (900.0, "aws", {"suspending": 7.0}, False),
        (599.0, "gcp", {}, True),
        (600.0, "gcp", {}, False),
        (599.0, "gcp", {"suspending": 7.0}, False),
        (900.0, "gcp", {"registered": NOW - 29.0}, True),
        (900.0, "gcp", {"registered": NOW - 30.0}, False),
        (0.5, "gone", {}, True),
        (2.0, "gone", {}, False),
    ],
)
def test_a_node_that_a_machine_serves_gets_no_other(
    age: float, cloud: str, fields: dict[str, Any], *, serves: bool
) -> None:
    """One of another cloud only while it may still come up, or may be up yet; of one that has left
    the configuration only where it was bought for this request.
    """
    assert asked(machine(age, cloud, **fields)) == (
        dropped(AlreadyServed()) if serves else LAUNCHED
    )


@pytest.mark.parametrize(("age", "serves"), [(899.0, True), (900.0, False)])
def test_a_boot_in_another_cloud_may_take_the_time_of_that_cloud(
    age: float, *, serves: bool
) -> None:
    slow = replace(TERMS, resume_timeouts={"aws": 600.0, "gcp": 900.0})
    expected = dropped(AlreadyServed()) if serves else LAUNCHED
    assert asked(machine(age, "gcp"), terms=slow) == expected
    assert asked(launches=(opened("gcp", age),), terms=slow) == expected


@pytest.mark.parametrize(("ago", "past"), [(30.0, True), (31.0, True), (29.0, False)])
def test_a_machine_that_was_up_long_before_its_node_is_asked_for_again_ends_first(
    ago: float, *, past: bool
) -> None:
    one = machine(900.0, registered=NOW - ago)
    (action,) = asked(one)
    assert action == (
        replace(LAUNCHED[0], machines_to_end_first=("i-1",))
        if past
        else dropped(AlreadyServed())[0]
    )


def test_it_stays_where_another_machine_boots_for_the_node() -> None:
    assert asked(machine(900.0, registered=NOW - 99.0), machine(5.0, ident="i-2")) == dropped(
        AlreadyServed()
    )


@pytest.mark.parametrize(
    ("cloud", "age", "request_", "serves"),
    [
        ("aws", 900.0, "r0", True),
        ("gcp", 599.0, "r0", True),
        ("gcp", 600.0, "r0", False),
        ("gone", 5.0, "r0", False),
        ("gone", 5.0, "r1", True),
    ],
)
def test_an_open_launch_stands_for_its_nodes(
    cloud: str, age: float, request_: str, *, serves: bool
) -> None:
    """One of a cloud that has left the configuration only for its own request."""
    found = asked(launches=(opened(cloud, age, request_),))
    assert found == (dropped(AlreadyServed()) if serves else LAUNCHED)


@pytest.mark.parametrize("kind", ["suspend", "resume-fail"])
@pytest.mark.parametrize(
    ("states", "ends"), [(None, False), (UP, False), (OFF, True), (GOES, True), (BOOTS, True)]
)
def test_the_machine_of_a_node_that_is_not_up_ends(
    states: frozenset[str] | None, kind: str, *, ends: bool
) -> None:
    found = asked(machine(900.0, registered=7.0), kind=kind, states=states)
    assert [(type(a), a.subject) for a in found] == [(Suspend, "i-1") if ends else (Drop, "pub1")]
    if not ends:
        assert found == dropped(NotPoweringDown())


@pytest.mark.parametrize(("age", "younger"), [(1.001, False), (1.0, False), (0.999, True)])
def test_a_machine_that_looks_younger_than_the_request_ends_only_if_slurm_says_so(
    age: float, *, younger: bool
) -> None:
    (action,) = asked(machine(age, registered=7.0), kind="suspend", states=OFF)
    assert isinstance(action, Suspend)
    assert action.unproven is younger


@pytest.mark.parametrize("kind", ["suspend", "resume-fail"])
@pytest.mark.parametrize("states", [OFF, BOOTS])
def test_one_that_was_made_after_the_request_by_an_earlier_launch_ends_only_if_slurm_says_so(
    kind: str, states: frozenset[str]
) -> None:
    """The head died in that launch, Slurm gave up and asked anew, then another head made it."""
    late = machine(900.0)
    late = replace(late, instance=replace(late.instance, launched=NOW - 0.5))
    (action,) = asked(late, kind=kind, states=states)
    assert isinstance(action, Suspend)
    assert action.unproven


def test_a_suspend_is_about_machines_of_its_nodes_in_this_cloud() -> None:
    one = machine(900.0)
    other = replace(one, instance=replace(one.instance, node="pub2"))
    assert asked(machine(900.0, "gcp"), other, kind="suspend", states=OFF) == []


@pytest.mark.parametrize(
    ("age", "fields", "failed"),
    [
        (10.0, {}, True),
        (10.0, {"registered": 7.0}, False),
        (0.5, {}, False),
        (10.0, {"missed_listings": 1}, False),
        (10.0, {"suspending": 7.0}, False),
    ],
    ids=["boots", "is up", "is younger", "may have been taken", "ends"],
)
def test_a_machine_whose_node_failed_to_come_up_counts_against_its_pool(
    age: float, fields: dict[str, Any], *, failed: bool
) -> None:
    (action,) = asked(machine(age, **fields), kind="resume-fail", states=OFF)
    assert isinstance(action, FailBoot) is failed
    if isinstance(action, FailBoot):
        assert action.ends


def test_one_whose_node_is_up_after_all_counts_and_stays() -> None:
    failed, drop = asked(machine(10.0), kind="resume-fail", states=UP)
    assert isinstance(failed, FailBoot)
    assert not failed.ends
    assert [drop] == dropped(NotPoweringDown())
