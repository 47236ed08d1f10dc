"""When a waiting prolog is let go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.repair.prolog_release import FAILED, NOT_UP, ready_reason

CONFIGURING = SlurmJob(id=7, states=frozenset({"CONFIGURING"}), nodes=("a", "b"))


def node(name: str, *states: str) -> SlurmNode:
    return SlurmNode(name=name, states=frozenset(states))


def view(*nodes: SlurmNode) -> dict[str, SlurmNode]:
    return {n.name: n for n in nodes}


# As `sinfo --json` of 22.05.8 gave them while a job's node came up, in this order.
STARTING = [
    ("CLOUD", "IDLE", "POWERED_DOWN"),
    ("ALLOCATED", "CLOUD", "POWERED_DOWN"),
    ("ALLOCATED", "CLOUD", "POWERED_DOWN", "POWER_UP"),
    ("ALLOCATED", "CLOUD", "NOT_RESPONDING", "POWERING_UP"),
]
UP = ("ALLOCATED", "CLOUD")


@pytest.mark.parametrize("states", STARTING)
def test_waits_while_a_node_comes_up(states: tuple[str, ...]) -> None:
    assert ready_reason(CONFIGURING, view(node("a", *UP), node("b", *states)), ("a", "b")) is None


def test_goes_when_all_nodes_are_up() -> None:
    nodes = view(node("a", *UP), node("b", "MIXED", "CLOUD"))
    assert ready_reason(CONFIGURING, nodes, ("a", "b")) == "nodes are up"


def test_goes_as_newer_slurm_spells_a_configuring_job() -> None:
    job = SlurmJob(id=7, states=frozenset({"RUNNING", "CONFIGURING"}))
    assert ready_reason(job, view(node("a", *UP)), ("a",)) == "nodes are up"


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (None, "job is gone"),
        (SlurmJob(id=7, states=frozenset({"PENDING"})), "job is PENDING"),
        (SlurmJob(id=7, states=frozenset({"RUNNING"})), "job is RUNNING"),
        (SlurmJob(id=7, states=frozenset({"CANCELLED", "COMPLETING"})), "CANCELLED+COMPLETING"),
        (SlurmJob(id=7, states=frozenset()), "without a state"),
    ],
)
def test_never_outlasts_its_job(job: SlurmJob | None, reason: str) -> None:
    nodes = view(node("a", "ALLOCATED", "POWERING_UP"))
    answer = ready_reason(job, nodes, ("a",))
    assert answer is not None
    assert reason in answer


@pytest.mark.parametrize("state", sorted(FAILED))
def test_goes_when_a_node_fails_even_if_others_are_not_up(state: str) -> None:
    nodes = view(node("a", "ALLOCATED", "POWERING_UP"), node("b", "POWERING_UP", state))
    assert ready_reason(CONFIGURING, nodes, ("a", "b")) == f"node b is {state}"


def test_a_node_that_slurm_hides_is_not_up() -> None:
    assert ready_reason(CONFIGURING, view(node("a", *UP)), ("a", "b")) is None


@given(st.lists(st.sets(st.sampled_from([*FAILED, *NOT_UP, "ALLOCATED", "CLOUD", "MIXED"]))))
def test_lets_a_configuring_job_go_exactly_on_a_failure_or_with_all_up(
    states: list[set[str]],
) -> None:
    nodes = view(*(node(f"n{i}", *s) for i, s in enumerate(states)))
    failed = any(s & FAILED for s in states)
    up = not any(s & NOT_UP for s in states)
    assert (ready_reason(CONFIGURING, nodes, tuple(nodes)) is not None) == (failed or up)
