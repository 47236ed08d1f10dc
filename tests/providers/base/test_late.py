"""Machines that fail after their launch, in a cloud with any create call."""

from __future__ import annotations

import threading

from slurm_elastic.base.errors import CapacityError, TransientError
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.providers.base.late import FAILURE_COUNTS_S, LateFailures

FULL = CapacityError("mist", "AllocationFailed", "no room")


def machine(node: str, zone: str = "z") -> Instance:
    return Instance(
        id=f"i-{node}", cloud="mist", node=node, generation="g1", instance_type="t", zone=zone,
        market=Market.SPOT, price=0.1, launched=0.0, state=InstanceState.RUNNING,
    )  # fmt: skip


class Cloud:
    """The ends that it took, and the ids that it refuses to end."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.ended = set(refused), []

    def end(self, machine_id: str) -> None:
        if machine_id in self.refused:
            raise TransientError("mist", "503", "busy")
        self.ended.append(machine_id)


def states(machines: object) -> dict[str, InstanceState]:
    return {m.node: m.state for m in machines}  # type: ignore[attr-defined]


def test_a_failed_machine_is_ended_and_its_end_reported_once() -> None:
    cloud, failures = Cloud("i-b"), LateFailures("mist")
    listed = [machine("a"), machine("b"), machine("c")]
    failed = {"i-a": FULL, "i-b": FULL, "i-gone": FULL}
    assert states(failures.tidied(listed, failed, cloud.end)) == {
        "a": InstanceState.TERMINATED, "b": InstanceState.STOPPING, "c": InstanceState.RUNNING
    }  # fmt: skip
    assert cloud.ended == ["i-a"], "a refusal keeps no other machine"
    cloud.refused.clear()
    again = failures.tidied(listed[1:], failed, cloud.end)
    assert states(again) == {"b": InstanceState.TERMINATED, "c": InstanceState.RUNNING}
    assert cloud.ended == ["i-a", "i-b"]


def test_failed_machines_are_ended_several_at_a_time() -> None:
    """One after the other, hundreds of ends would keep the cloud's other calls waiting."""
    both = threading.Barrier(2)
    failures = LateFailures("mist", threads=2)
    listed = [machine("a"), machine("b")]
    tidied = failures.tidied(listed, {"i-a": FULL, "i-b": FULL}, lambda _: both.wait(60))
    assert set(states(tidied).values()) == {InstanceState.TERMINATED}


def test_the_failure_is_the_answer_to_the_next_launch_of_that_offer_once() -> None:
    now = [0.0]
    failures = LateFailures("mist", lambda: now[0])
    listed = [machine("a"), machine("b", "other")]
    failures.tidied(listed, {"i-a": FULL}, Cloud().end)
    assert failures.take(listed[1].offer_key) is None
    assert failures.take(listed[0].offer_key) is FULL
    assert failures.take(listed[0].offer_key) is None
    failures.tidied([machine("c")], {"i-c": FULL}, Cloud().end)
    now[0] += FAILURE_COUNTS_S
    assert failures.take(listed[0].offer_key) is None


def test_a_failed_machine_that_cannot_be_ended_keeps_one_launch_from_its_offer() -> None:
    """A lock may keep it for months. With an answer at each call the offer would never be bought
    again.
    """
    failures, cloud = LateFailures("mist"), Cloud("i-a", "i-b")
    failures.tidied([machine("a")], {"i-a": FULL}, cloud.end)
    assert failures.take(machine("a").offer_key) is FULL
    failures.tidied([machine("a")], {"i-a": FULL}, cloud.end)
    assert failures.take(machine("a").offer_key) is None
    failures.tidied([machine("a"), machine("b")], {"i-a": FULL, "i-b": FULL}, cloud.end)
    assert failures.take(machine("b").offer_key) is FULL, "another machine has failed"
    cloud.refused.clear()
    tidied = failures.tidied([machine("a")], {"i-a": FULL}, cloud.end)
    assert states(tidied) == {"a": InstanceState.TERMINATED}, "the end is tried at each call"
