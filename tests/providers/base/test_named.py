"""Machines whose names are their identity."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.errors import TransientError
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.providers.base.named import check_nodes, machine_name, node_of, with_hidden

UUID = "7d1f0c52-8f7e-4d5d-9d5e-111111111111"
RFC_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NODES = ("pub1", "pub2", "pub3")


def machine(node: str, generation: str = "g1") -> Instance:
    return Instance(
        id=machine_name(UUID, generation, node), cloud="mist", node=node, generation=generation,
        instance_type="t", zone="z", market=Market.SPOT, price=0.1, launched=0.0,
        state=InstanceState.RUNNING,
    )  # fmt: skip


def spec() -> LaunchSpec:
    pool = Pool(name="pub", cloud="mist", nodes=NODES, cpus=1, real_memory=1)
    offer = Offer(
        cloud="mist", location=Location.PUBLIC, instance_type="t", zone="z", market=Market.SPOT,
        price=0.1, cpus=1, memory=1,
    )  # fmt: skip
    return LaunchSpec(generation="g1", pool=pool, nodes=NODES, offer=offer)


@given(
    st.tuples(*[st.text("abc-1", min_size=1)] * 3), st.tuples(*[st.text("abc-1", min_size=1)] * 3)
)
def test_a_name_belongs_to_one_node_of_one_launch_of_one_cluster(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (machine_name(*one) == machine_name(*other)) is (one == other)
    assert node_of(machine_name(*one)) == one[2]


def test_a_machine_that_lists_lack_is_looked_up_by_its_name() -> None:
    asked: list[str] = []
    hidden = machine("pub2")

    def get(name: str) -> Instance | None:
        asked.append(name)
        return hidden if name == hidden.id else None

    listed = [machine("pub1"), machine("pub3", "g0")]
    assert list(with_hidden(UUID, spec(), listed, get)) == [*listed, hidden]
    assert sorted(asked) == sorted(machine_name(UUID, "g1", node) for node in ("pub2", "pub3"))


def test_a_look_up_that_fails_proves_nothing() -> None:
    def get(name: str) -> Instance | None:
        raise TransientError("mist", "503", name)

    with pytest.raises(TransientError):
        with_hidden(UUID, spec(), [], get)


@pytest.mark.parametrize(
    ("node", "is_wrong"),
    [
        ("B_1", True),
        ("b1-", True),
        ("1b", True),
        ("b1", False),
        ("b" * 52, False),
        ("b" * 53, True),
    ],
)
def test_a_node_whose_name_a_machine_cannot_have_is_a_mistake_of_the_file(
    node: str, *, is_wrong: bool
) -> None:
    found: list[Any] = []
    draft: Any = SimpleNamespace(
        pools={0: SimpleNamespace(cloud="other"), 1: SimpleNamespace(cloud="mist")},
        nodes={0: ["A_1"], 1: ["b0", node]},
        problems=SimpleNamespace(add=lambda *words: found.append(words)),
    )
    cloud: Any = SimpleNamespace(name="mist")
    check_nodes(draft, cloud, RFC_1035, 63, "lower case letters, digits and hyphens")
    text = "lower case letters, digits and hyphens, at most 52 characters, because machines get"
    assert [words[:2] for words in found] == (
        [(("pools", 1, "nodes"), f"'{node}'")] if is_wrong else []
    )
    assert all(text in words[2] for words in found)
