"""Machines that somebody should look at."""

from __future__ import annotations

import pytest
from ledger_cases import T0, instance, offer, pool
from machine_cases import machine_with

from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.memory import Launch, Machine
from slurm_elastic.policies.repair.strays import stray, strays_of, unending


def test_an_end_may_take_a_quarter_of_an_hour() -> None:
    assert unending(None, T0) is None
    assert unending(T0, T0 + 900) is None
    assert (
        unending(T0, T0 + 900.5)
        == "its end was decided over 15m ago, and its cloud has not confirmed it"
    )


POOLS = {"pub1": pool(), "moved1": pool("own", "gcp", 1, "moved")}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (instance("i", "pub1"), None),
        (instance("i", "pub1", bought=offer("left")),
         "the configuration no longer has cloud left"),
        (instance("i", ""), "its tags name no node"),
        (instance("i", "pub99"), "no pool of cloud aws has node pub99 now"),
        (instance("i", "moved1"), "no pool of cloud aws has node moved1 now"),
    ],
)  # fmt: skip
def test_a_machine_is_stray_where_its_cloud_has_no_such_node(
    one: Instance, why: str | None
) -> None:
    assert stray(one, {"aws", "gcp"}, POOLS) == why


def test_all_that_somebody_should_look_at_is_told_by_cloud_and_machine() -> None:
    def row(generation: str, cloud: str) -> Launch:
        return Launch(
            generation=generation, request="r", pool="burst", cloud=cloud, nodes=("a", "b"),
            jobs=(), offer=offer(), created=T0,
        )  # fmt: skip

    good = machine_with(instance=instance("i-1", "pub1"), pool="burst", suspending=T0)
    strange = Machine(instance=instance("i-2", "pub99"), pool="burst")
    stays = machine_with(instance=instance("i-3", "pub1"), pool="burst", suspending=T0 - 901)
    found = strays_of([good, strange, stays], [row("g1", "aws"), row("g2", "left")], {"aws"},
                   POOLS, T0)  # fmt: skip
    assert found == {
        ("aws", "i-2"): "no pool of cloud aws has node pub99 now",
        ("aws", "i-3"): "its end was decided over 15m ago, and its cloud has not confirmed it",
        ("left", "g2"): ("its launch of 2 nodes has no answer, and the configuration has no left"),
    }
