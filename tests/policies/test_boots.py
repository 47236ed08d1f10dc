"""Boots that have had their time, by the ledger alone."""

from __future__ import annotations

from ledger_cases import T0, instance, offer, pool

from slurm_elastic.model_ledger import Launch, Machine
from slurm_elastic.policies.boots import UnderWay, timed_out

POOL = pool()
NODES = dict.fromkeys(POOL.nodes, POOL)


def launch(generation: str, *nodes: str) -> Launch:
    return Launch(
        generation=generation, request="r", pool="burst", cloud="aws", nodes=nodes, jobs=(),
        offer=offer(), state="intent", created=T0,
    )  # fmt: skip


def machine(node: str, generation: str, suspending: float | None = None) -> Machine:
    return Machine(
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
