"""The fake Slurm has the traps of the real one (measured on 22.05 to 26.05)."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.client.fake_reservations import with_reservation
from slurm_elastic.slurm.client.fake_timed import TimedSlurm

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture
def slurm() -> FakeSlurm:
    fake = FakeSlurm()
    fake.set_node("a", "IDLE", "CLOUD", "POWERED_DOWN")
    fake.set_node("b", "ALLOCATED", "CLOUD")
    fake.set_job(7, "RUNNING", nodes=("b",))
    return fake


def test_it_is_a_slurm(slurm: FakeSlurm) -> None:
    client: Slurm = slurm
    assert client.version() == (22, 5)
    assert set(client.nodes()) == {"a", "b"}
    assert set(client.nodes(["b", "unknown"])) == {"b"}
    assert [job.id for job in client.jobs()] == [7]
    assert slurm.calls == {"version": 1, "nodes": 2, "jobs": 1}


def test_a_drain_on_a_powered_down_node_lasts_until_it_is_undrained(slurm: FakeSlurm) -> None:
    slurm.update_nodes(["a"], state="drain", reason="slurm-elastic:hold:capacity")
    held = slurm.nodes()["a"]
    assert held.states >= {"DRAIN", "POWERED_DOWN"}
    assert held.reason == "slurm-elastic:hold:capacity"
    slurm.update_nodes(["a"], state="idle")
    assert slurm.nodes()["a"].states == {"IDLE", "CLOUD", "POWERED_DOWN"}


def test_a_powered_down_node_that_is_resumed_does_not_respond(slurm: FakeSlurm) -> None:
    slurm.update_nodes(["a"], state="drain", reason="x")
    slurm.update_nodes(["a"], state="resume")
    assert "NOT_RESPONDING" in slurm.nodes()["a"].states


def test_power_down_clears_a_drain(slurm: FakeSlurm) -> None:
    slurm.update_nodes(["b"], state="drain", reason="x")
    slurm.update_nodes(["b"], state="power_down")
    assert slurm.nodes()["b"].states == {"IDLE", "CLOUD", "POWERED_DOWN"}


def test_down_while_powering_up(slurm: FakeSlurm) -> None:
    slurm.update_nodes(["a"], state="power_up")
    slurm.update_nodes(["a"], state="down", reason="no capacity")
    assert slurm.nodes()["a"].states == {"DOWN", "CLOUD", "POWERING_UP"}


def test_a_requeued_job_is_held_until_it_is_started_now(slurm: FakeSlurm) -> None:
    slurm.requeue(7)
    (job,) = slurm.jobs()
    assert (job.states, job.restarts, job.nodes) == ({"PENDING"}, 1, ())
    assert job.start > time.time() + 60
    slurm.start_now(7)
    assert slurm.jobs()[0].start == 0


def test_what_slurm_does_not_know(slurm: FakeSlurm) -> None:
    with pytest.raises(SlurmError, match="Invalid node name"):
        slurm.update_nodes(["c"], state="drain")
    with pytest.raises(SlurmError, match="Invalid job id"):
        slurm.requeue(8)


def test_programmed_failures(slurm: FakeSlurm) -> None:
    slurm.fail_next.append(SlurmError(("sinfo",), 1, "first"))
    with pytest.raises(SlurmError, match="first"):
        slurm.nodes()
    assert slurm.nodes()
    slurm.broken = SlurmError(("sinfo",), None, "hangs")
    for _ in range(2):
        with pytest.raises(SlurmError, match="timed out: hangs"):
            slurm.jobs()


def test_changes_are_kept_in_order(slurm: FakeSlurm) -> None:
    slurm.set_addresses({"a": "10.0.0.1"})
    slurm.update_nodes(["a", "b"], state="drain", reason="x")
    assert slurm.nodes()["a"].address == "10.0.0.1"
    assert slurm.updates == [
        ("set_addresses", {"addresses": {"a": "10.0.0.1"}}),
        ("update_nodes", {"names": ("a", "b"), "state": "drain", "reason": "x"}),
    ]


def reserved(name: str, *nodes: str, **fields: Any) -> Reservation:
    return Reservation(name=name, **{"start": 100.0, "end": 200.0, "nodes": nodes} | fields)


@pytest.mark.parametrize(
    ("other", "request_", "refused"),
    [
        (reserved("other", "a"), reserved("own", "a", "b"), True),
        (reserved("other", "a", flags=frozenset({"MAINT"})), reserved("own", "a"), True),
        (reserved("other", "a"), reserved("own", "a", flags=frozenset({"MAINT"})), False),
        (reserved("other", "a"), reserved("own", "a", flags=frozenset({"OVERLAP"})), False),
        (reserved("other", "a", is_partial=True), reserved("own", "a"), False),
        (reserved("other", "a"), reserved("own", "b"), False),
        (reserved("other", "a"), reserved("own", "a", start=200.0, end=300.0), False),
        (reserved("own", "a"), reserved("own", "a", "b"), False),
    ],
)
def test_a_reservation_is_refused_as_a_whole_for_one_node(
    other: Reservation, request_: Reservation, refused: bool
) -> None:
    with pytest.raises(SlurmError, match="overlaps") if refused else nullcontext():
        assert with_reservation([other], request_)[-1] == request_


def queue() -> TimedSlurm:
    """Job 1 has node a, and job 2 waits for a and b."""
    made = TimedSlurm(("a", "b", "c"), lambda: 1000.0, lambda *_: None)
    made.submit(1, ("a",))
    made.submit(2, ("a", "b"), 2)
    return made


def test_a_later_job_does_not_take_the_nodes_that_an_earlier_one_waits_for() -> None:
    slurm = queue()
    slurm.submit(3, ("a", "b"))
    slurm.submit(4, ("b", "c"))
    assert slurm.queue()[2].nodes == slurm.queue()[3].nodes == ()
    assert slurm.queue()[4].nodes == ("c",)
    slurm.finish(1)
    slurm.register("a", "10.0.0.1")
    slurm.step()
    assert slurm.queue()[2].nodes == ("a", "b")


def test_a_job_whose_nodes_are_drained_keeps_none_from_later_jobs() -> None:
    slurm = queue()
    slurm.update_nodes(["a"], state="drain", reason="a disk fails")
    slurm.submit(3, ("a", "b"))
    assert slurm.queue()[3].nodes == ("b",)
