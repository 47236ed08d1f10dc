"""Machines that leave by an operator's word: which nodes next, and where their jobs go."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.model.directive import Departure
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK
from slurm_elastic.policies.repair.departure import NextStep, jobs_on, next_step

IDLE, BUSY = frozenset({"IDLE", "CLOUD"}), frozenset({"ALLOCATED", "CLOUD"})
BOOTS = frozenset({"ALLOCATED", "CLOUD", "POWERING_UP"})
OFF = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
WORD = Departure(verb="drain", about="cloud aws", nodes=())
HARD = replace(WORD, aggressive=True)


def node(name: str, states: frozenset[str], reason: str = "") -> SlurmNode:
    return SlurmNode(name=name, states=states, reason=reason)


NODES = [
    node("busy", BUSY),
    node("idle", IDLE),
    node("going", BUSY | {"POWER_DOWN"}),
    node("ours", BUSY | {"DRAIN"}, f"{OUR_MARK}hold: x"),
    node("theirs", BUSY | {"DRAIN"}, "broken fan"),
    node("boots", BOOTS),
    node("off", OFF),
    node("drained and going", IDLE | {"DRAIN", "POWERING_DOWN"}, "broken fan"),
]
ALL = ("idle", "busy", "ours")


@pytest.mark.parametrize(
    ("word", "leave", "press", "give_up"),
    [
        (WORD, ALL, (), ()),
        (replace(WORD, unavailable=2), (), (), ()),
        (replace(WORD, unavailable=1), (), (), ()),
        (replace(WORD, unavailable=3), ("idle",), (), ()),
        (replace(WORD, unavailable=4), ("idle", "busy"), (), ()),
        (HARD, ALL, ("going", "busy", "ours"), ("boots",)),
        (replace(HARD, unavailable=3), ("idle",), ("going",), ()),
        (replace(HARD, unavailable=5), ALL, ("going", "busy", "ours"), ()),
        (replace(HARD, unavailable=6), ALL, ("going", "busy", "ours"), ("boots",)),
    ],
)
def test_idle_nodes_leave_first_and_no_more_than_may_be_away(
    word: Departure, leave: tuple[str, ...], press: tuple[str, ...], give_up: tuple[str, ...]
) -> None:
    """Two are on their way already. A node that a person has drained is theirs."""
    assert next_step(word, NODES) == NextStep(
        power_down=leave, hurry=press, give_up=give_up, kept=("theirs",), remaining_count=8
    )


def job(number: int, *partitions: str, state: str = "PENDING", **fields: Any) -> SlurmJob:
    states = frozenset(state.split())
    return SlurmJob(id=number, states=states, partitions=partitions, **fields)


def test_jobs_on_nodes_are_those_that_have_them_now() -> None:
    some = [
        job(1, state="RUNNING", nodes=("n1", "n2")),
        job(2, state="COMPLETING", nodes=("n2",)),
        job(3, state="RUNNING", nodes=("n3",)),
        job(4, state="PENDING", nodes=("n1",)),
        job(5, state="RUNNING"),
    ]
    assert [one.id for one in jobs_on(some, ["n1", "n2"])] == [1, 2]
