"""Where a node stands, by Slurm's words, and who answers at its address."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import (
    at_anothers_address,
    is_anothers_address,
    is_answering,
)
from tests.policies.strategies import instance

UP = frozenset({"ALLOCATED", "CLOUD"})
LOST = SlurmNode(name="pub1", states=UP, address="10.0.0.1", port=6818)
OTHER = SlurmNode(name="pub2", states=UP, address="10.0.0.2", port=6818)
MACHINE = replace(instance("i-2", "pub2", "g2"), address="10.0.0.1")


@pytest.mark.parametrize(
    ("flags", "answering"),
    [
        ((), True),
        (("DRAIN",), True),
        (("NOT_RESPONDING",), False),
        (("POWERING_UP",), False),
        (("POWERED_DOWN",), False),
    ],
)
def test_who_answers(flags: tuple[str, ...], answering: bool) -> None:
    assert is_answering(replace(LOST, states=UP | set(flags))) is answering
    assert not is_answering(replace(LOST, states=frozenset({"DOWN", "CLOUD", *flags})))


@pytest.mark.parametrize(
    ("other", "machine", "expected"),
    [
        (OTHER, None, False),
        (replace(OTHER, address="10.0.0.1"), None, True),
        (replace(OTHER, address="10.0.0.1", port=6819), None, False),
        (OTHER, MACHINE, True),
        (replace(OTHER, port=6819), MACHINE, False),
        (OTHER, replace(MACHINE, node="pub1"), False),
        (OTHER, replace(MACHINE, node="pub9"), True),
        (OTHER, replace(MACHINE, address=None), False),
    ],
)
def test_another_machine_has_the_address(other, machine, expected) -> None:  # type: ignore[no-untyped-def]
    """On one host all have one address, and a port each."""
    machines = [machine] if machine else []
    assert is_anothers_address(LOST, machines, (LOST, other)) is expected
    assert is_anothers_address(LOST, machines, (other,)) is expected
    assert ("pub1" in at_anothers_address(machines, (LOST, other))) is expected


def test_no_address_is_nobodys() -> None:
    without = replace(LOST, address="")
    assert at_anothers_address([], (without, replace(OTHER, address=""))) == frozenset()
