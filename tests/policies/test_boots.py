"""Boots that have had their time, by the ledger alone."""

from __future__ import annotations

import pytest
from ledger_cases import T0, instance, offer, pool
from machine_cases import changed, machine_with

from slurm_elastic.model.causes.limits import BootsLimited
from slurm_elastic.model.memory import Launch, Machine
from slurm_elastic.policies.launch.boots import (
    TimedOut,
    UnderWay,
    given_up_after,
    timed_out,
    turn,
    under_way,
)

POOL = pool()
NODES = dict.fromkeys(POOL.nodes, POOL)


def launch(generation: str, *nodes: str) -> Launch:
    return Launch(
        generation=generation, request="r", pool="burst", cloud="aws", nodes=nodes, jobs=(),
        offer=offer(), created=T0,
    )  # fmt: skip


def machine(node: str, generation: str, suspending: float | None = None) -> Machine:
    return machine_with(
        instance=instance(f"i-{node}", node, generation), pool="burst", suspending=suspending
    )


def test_a_late_launch_is_in_doubt_about_nodes_without_another_machine_alone() -> None:
    some = UnderWay(boots=(), opened=(launch("late", "pub1", "pub2", "pub3", "gone"),
                                      launch("early", "pub4")))  # fmt: skip
    machines = [machine("pub1", "other"), machine("pub2", "old", suspending=T0)]
    found = timed_out("aws", some, {"late"}, machines, NODES)
    assert found.doubtful == ("pub2", "pub3")


def test_a_boot_whose_launch_is_late_is_overdue() -> None:
    late, early = machine("pub1", "late"), machine("pub2", "early")
    some = UnderWay(boots=(late, early), opened=())
    found = timed_out("aws", some, {"late"}, [late, early], NODES)
    assert (found.machines, found.nodes) == ((late,), ("pub1",))


def test_what_boots_and_what_has_no_answer_is_told_by_cloud() -> None:
    """Nobody gives up the nodes of others: of a pool that is gone, or went to another cloud."""
    boots, up = machine("pub1", "g1"), changed(machine("pub2", "g2"), registered=T0)
    going, gone = machine("pub3", "g3", suspending=T0), machine("left", "g4")
    other = pool("own", "gcp", 2, "own")
    moved = machine("own1", "g5")
    opened = launch("g6", "pub5")
    nodes = NODES | dict.fromkeys(other.nodes, other)
    some = [boots, up, going, gone, moved]
    assert under_way(some, [opened], ["gcp", "aws"], nodes) == {
        "aws": UnderWay(boots=(boots,), opened=(opened,))
    }
    assert under_way([boots], [], ["aws"], nodes) == {"aws": UnderWay(boots=(boots,), opened=())}
    assert under_way([], [opened], ["aws"], nodes) == {"aws": UnderWay(boots=(), opened=(opened,))}
    assert under_way([up, going], [], ["aws"], nodes) == {}


def test_overdue_nodes_may_be_narrowed_to_some() -> None:
    first, second = machine("pub1", "g1"), machine("pub2", "g2")
    late = TimedOut(cloud="aws", machines=(first, second), doubtful=("pub3", "pub2", "pub4"))
    assert late.nodes == ("pub1", "pub2", "pub3", "pub4")
    assert late.among(["pub2", "pub4"]) == TimedOut(
        cloud="aws", machines=(second,), doubtful=("pub2", "pub4")
    )


@pytest.mark.parametrize(
    ("resume_timeout", "after"),
    [(10.0, 5.0), (20.0, 10.0), (60.0, 50.0), (100.0, 90.0), (200.0, 180.0), (600.0, 570.0)],
)
def test_a_tenth_of_resumetimeout_is_left_when_a_node_is_given_up(
    resume_timeout: float, after: float
) -> None:
    """It is 10 s at least and 30 s at most, but no more than half."""
    assert given_up_after(resume_timeout) == after


def test_the_tightest_cap_is_told_and_without_one_any_number_may_boot() -> None:
    caps = (("cloud:aws", 5), ("pool:burst", 3))
    assert turn(caps, {"cloud:aws": 1}) == (3, BootsLimited(scope="pool:burst", limit=3))
    assert turn(caps, {"cloud:aws": 4}) == (1, BootsLimited(scope="cloud:aws", limit=5))
