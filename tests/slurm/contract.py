"""The duties of every Slurm client; a bed has one, with a site behind it.

Static nodes ``st1``, ``st2`` are idle, the cloud nodes ``op1``, ``op2`` powered down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import pytest
from patience import patience, pause

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob, SlurmNode

T = TypeVar("T")
PATIENCE = 120.0
REASON = "slurm-elastic:hold:a reason of several words"


AWAY = ("stopped", "hanging")
"""The ways in which a slurmctld gives no answer."""


class Bed(Protocol):
    """``run`` starts a job on ``st1`` that lasts; ``end`` takes it away. ``away`` is a time in
    which slurmctld gives no answer, in one of the ways of ``AWAY``, or for want of munged
    (``unauthenticated``). ``reserved`` is one in which there is a reservation for a maintenance;
    ``words`` are what the job's user reads in its output and its comment.
    """

    slurm: Slurm
    version: tuple[int, int]

    def run(self) -> int: ...
    def end(self, job: int) -> None: ...
    def reserved(self, name: str, begin: float, node: str) -> AbstractContextManager[None]: ...
    def words(self, job: int) -> str: ...
    def away(self, how: str) -> AbstractContextManager[None]: ...


TWO_LINES = "slurm-elastic: a plain line\nslurm-elastic: and a second one"


def until(read: Callable[[], T], holds: Callable[[T], object]) -> T:
    """A real slurmctld needs a moment."""
    began = time.monotonic()
    deadline = began + patience(PATIENCE)
    while not holds(value := read()):
        assert time.monotonic() < deadline, value
        pause(began, 0.2)
    return value


class Contract:
    """Mixed into a test class with a fixture ``bed``."""

    def node(self, bed: Bed, name: str, holds: Callable[[SlurmNode], object]) -> SlurmNode:
        return until(lambda: bed.slurm.nodes([name])[name], holds)

    def job(self, bed: Bed, job: int, holds: Callable[[SlurmJob], object]) -> SlurmJob:
        found = {j.id: j for j in bed.slurm.jobs()}
        return until(lambda: found | {j.id: j for j in bed.slurm.jobs()}, lambda q: holds(q[job]))[
            job
        ]

    def test_it_knows_its_version(self, bed: Bed) -> None:
        assert bed.slurm.version() == bed.version

    def test_all_nodes_are_there_powered_down_ones_too(self, bed: Bed) -> None:
        nodes = bed.slurm.nodes()
        assert set(nodes) == {"st1", "st2", "op1", "op2"}
        assert nodes["st1"].states == {"IDLE"}
        # From 25.11 on one that was never up is not responding either.
        assert nodes["op1"].states - {"NOT_RESPONDING"} == {"IDLE", "CLOUD", "POWERED_DOWN"}
        assert (nodes["st1"].cpus, nodes["st1"].memory) == (2, 1000)
        assert nodes["st1"].partitions == ("batch",)
        assert nodes["op1"].partitions == ("onprem",)
        assert len({(node.address, node.port) for node in nodes.values()}) == len(nodes)

    def test_some_nodes_without_those_that_are_none(self, bed: Bed) -> None:
        assert set(bed.slurm.nodes(["op1", "st2", "nobody"])) == {"op1", "st2"}
        assert bed.slurm.nodes([]) == {}

    def test_a_held_node_bears_its_reason_until_it_is_released(self, bed: Bed) -> None:
        bed.slurm.update_nodes(["op1", "op2"], state="DRAIN", reason=REASON)
        held = self.node(bed, "op1", lambda n: "DRAIN" in n.states)
        assert held.states >= {"CLOUD", "POWERED_DOWN"}
        assert held.reason.startswith(REASON)
        assert "DRAIN" in bed.slurm.nodes()["op2"].states
        bed.slurm.update_nodes(["op1", "op2"], state="RESUME")
        free = self.node(bed, "op1", lambda n: "DRAIN" not in n.states)
        assert "POWERED_DOWN" in free.states

    def test_a_node_that_is_down_comes_back(self, bed: Bed) -> None:
        bed.slurm.update_nodes(["st2"], state="DOWN", reason="a test")
        assert self.node(bed, "st2", lambda n: "DOWN" in n.states).reason.startswith("a test")
        bed.slurm.update_nodes(["st2"], state="RESUME")
        self.node(bed, "st2", lambda n: "IDLE" in n.states)

    def test_addresses_are_set_each_its_own(self, bed: Bed) -> None:
        bed.slurm.set_addresses({"op1": "127.0.0.2", "op2": "127.0.0.3"})
        nodes = bed.slurm.nodes(["op1", "op2"])
        assert {n: v.address for n, v in nodes.items()} == {"op1": "127.0.0.2", "op2": "127.0.0.3"}

    def test_an_address_goes_with_a_new_state(self, bed: Bed) -> None:
        bed.slurm.update_nodes(["op1", "op2"], state="DRAIN", reason=REASON, address="127.0.0.4")
        held = self.node(bed, "op1", lambda n: "DRAIN" in n.states)
        assert held.address == "127.0.0.4"
        assert bed.slurm.nodes()["op2"].address == "127.0.0.4"
        bed.slurm.update_nodes(["op1", "op2"], state="RESUME")

    def test_unknown_nodes_and_jobs_are_slurm_errors(self, bed: Bed) -> None:
        with pytest.raises(SlurmError):
            bed.slurm.update_nodes(["nobody"], state="DRAIN", reason="x")
        with pytest.raises(SlurmError):
            bed.slurm.requeue(999_999)

    def test_a_job_is_requeued_and_starts_again(self, bed: Bed) -> None:
        job = bed.run()
        seen = self.job(bed, job, lambda j: "RUNNING" in j.states)
        assert (seen.nodes, seen.restarts, seen.requeue) == (("st1",), 0, True)
        assert seen.user == "nobody"
        bed.slurm.set_requeue(job, requeue=False)
        assert not self.job(bed, job, lambda j: not j.requeue).requeue
        bed.slurm.set_requeue(job, requeue=True)
        bed.slurm.requeue(job)
        # While it still completes it is pending already, on its nodes and not yet counted.
        waiting = self.job(bed, job, lambda j: "PENDING" in j.states and not j.nodes)
        assert waiting.restarts == 1
        assert waiting.is_requeue_hold(time.time())
        assert waiting.start > time.time() + 30
        bed.slurm.change_pending([job], begin_in=3600.0)
        self.job(bed, job, lambda j: j.start > time.time() + 3000)
        bed.slurm.hold(job)
        held = self.job(bed, job, lambda j: j.reason == "JobHeldUser")
        assert "PENDING" in held.states
        bed.slurm.release(job)
        self.job(bed, job, lambda j: j.reason != "JobHeldUser")
        bed.slurm.start_now(job)
        self.job(bed, job, lambda j: j.start < time.time() + 30)
        bed.end(job)
        until(bed.slurm.jobs, lambda jobs: job not in {j.id for j in jobs})

    def test_a_job_that_has_ended_is_in_the_list_only_where_ended_ones_are_asked_for(
        self, bed: Bed
    ) -> None:
        job = bed.run()
        self.job(bed, job, lambda j: "RUNNING" in j.states)
        bed.end(job)
        until(bed.slurm.jobs, lambda jobs: job not in {j.id for j in jobs})
        (ended,) = (j for j in bed.slurm.jobs(ended=True) if j.id == job)
        assert ended.has_ended

    @pytest.mark.parametrize("how", [*AWAY, "unauthenticated"])
    def test_without_slurmctld_nothing_is_an_answer(self, bed: Bed, how: str) -> None:
        """No list is empty, no change counts as made or as refused."""
        calls: tuple[Callable[[], object], ...] = (
            bed.slurm.nodes,
            bed.slurm.jobs,
            lambda: bed.slurm.jobs(ended=True),
            lambda: bed.slurm.update_nodes(["op1"], state="DRAIN", reason=REASON),
            lambda: bed.slurm.requeue(999_999),
        )
        with bed.away(how):
            for call in calls:
                with pytest.raises(SlurmError) as raised:
                    call()
                assert raised.value.unanswered, raised.value
        # slurmctld may get to an order that it was sent while it hung.
        bed.slurm.update_nodes(["op1"], state="DRAIN", reason=REASON)
        bed.slurm.update_nodes(["op1"], state="RESUME")
        assert set(bed.slurm.nodes()) == {"st1", "st2", "op1", "op2"}

    def test_a_reservation_for_a_maintenance_is_read(self, bed: Bed) -> None:
        begin = time.time() + 3600
        with bed.reserved("window one", begin, "st2"):
            (found,) = bed.slurm.reservations()
        assert found.nodes == ("st2",)
        assert "MAINT" in found.flags
        assert abs(found.start - begin) < 2
        assert found.end > found.start
        assert not found.is_partial

    def test_an_admin_comment_is_set_and_read(self, bed: Bed) -> None:
        job, text = bed.run(), "their text, a=b [slurm-elastic clouds=a,b]"
        try:
            bed.slurm.set_admin_comment(job, text)
            assert bed.slurm.admin_comments()[job] == text
            bed.slurm.set_admin_comment(job, "")
            assert bed.slurm.admin_comments().get(job, "") == ""
        finally:
            bed.end(job)

    def test_the_comments_of_some_jobs_and_of_all_are_the_same(self, bed: Bed) -> None:
        job = bed.run()
        try:
            bed.slurm.set_admin_comment(job, "two\twords Comment=x")
            assert bed.slurm.admin_comments([job]) == {job: "two\twords Comment=x"}
            assert bed.slurm.admin_comments()[job] == "two\twords Comment=x"
            assert bed.slurm.admin_comments([job + 1000]) == {}
            assert bed.slurm.mail_of(job) is None
            assert bed.slurm.mail_of(job + 1000) is None
        finally:
            bed.end(job)

    def test_one_job_is_as_in_the_list_of_all(self, bed: Bed) -> None:
        job = bed.run()
        try:
            self.job(bed, job, lambda j: "RUNNING" in j.states)
            (listed,) = (one for one in bed.slurm.jobs() if one.id == job)
            assert bed.slurm.job(job) == listed
            assert bed.slurm.job(job + 1000) is None
        finally:
            bed.end(job)

    def test_nodes_are_reserved_changed_and_given_back(self, bed: Bed) -> None:
        """A job that runs may run on; others are kept off from the start on."""
        start = float(round(time.time())) + 3600
        bed.slurm.reserve("slurm-elastic-aws-block", ["st1"], start, start + 1800)
        try:
            (found,) = bed.slurm.reservations()
            assert (found.name, found.nodes) == ("slurm-elastic-aws-block", ("st1",))
            assert (abs(found.start - start) < 2, abs(found.end - start - 1800) < 62) == (
                True,
                True,
            )
            bed.slurm.reserve_other_nodes(found.name, ["st1", "op1"])
            (found,) = bed.slurm.reservations()
            assert set(found.nodes) == {"st1", "op1"}
        finally:
            bed.slurm.unreserve("slurm-elastic-aws-block")
        assert list(bed.slurm.reservations()) == []

    def test_nodes_are_reserved_and_changed_beside_reservations_of_others(self, bed: Bed) -> None:
        """slurmctld refuses a request without OVERLAP or MAINT as a whole for a single node."""
        start = float(round(time.time())) + 3600
        with bed.reserved("window two", start, "st2"):
            try:
                bed.slurm.reserve("slurm-elastic-aws-block", ["st1", "st2"], start, start + 1800)
                bed.slurm.reserve_other_nodes("slurm-elastic-aws-block", ["st1"])
                bed.slurm.reserve_other_nodes("slurm-elastic-aws-block", ["st1", "st2"])
                found = {r.name: r for r in bed.slurm.reservations()}["slurm-elastic-aws-block"]
                assert set(found.nodes) == {"st1", "st2"}
                assert found.flags >= {"IGNORE_JOBS", "OVERLAP"}
            finally:
                bed.slurm.unreserve("slurm-elastic-aws-block")

    def test_limits_of_partitions_and_free_licences_are_read(self, bed: Bed) -> None:
        limits = bed.slurm.max_times()
        assert (limits["batch"], limits["onprem"]) == (None, 3600.0)
        assert dict(bed.slurm.default_times()) == {"batch": 600.0, "onprem": 600.0}
        assert bed.slurm.free_licenses() == {}
        assert bed.slurm.default_partition() == "batch"

    def test_a_pending_job_avoids_the_nodes_that_it_is_told_to(self, bed: Bed) -> None:
        job = bed.run()
        try:
            self.job(bed, job, lambda j: "RUNNING" in j.states)
            with pytest.raises(SlurmError, match="no longer pending"):
                bed.slurm.exclude_nodes(job, ["op1"])
            bed.slurm.requeue(job)
            self.job(bed, job, lambda j: "PENDING" in j.states and not j.nodes)
            bed.slurm.exclude_nodes(job, ["op1", "op2"])
            assert bed.slurm.excluded_nodes(job) == ("op1", "op2")
            (waiting,) = (one for one in bed.slurm.jobs() if one.id == job)
            avoided = {job: waiting.excluded} | dict(bed.slurm.excluded_by_job())
            assert avoided[job] == ("op1", "op2")
            bed.slurm.exclude_nodes(job, [])
            assert bed.slurm.excluded_nodes(job) == ()
        finally:
            bed.end(job)

    def test_a_running_job_is_told_a_line_and_its_user_sees_the_admin_comment(
        self, bed: Bed
    ) -> None:
        job = bed.run()
        try:
            self.job(bed, job, lambda j: "RUNNING" in j.states)
            until(lambda: self.tells(bed, job), bool)
            bed.slurm.set_admin_comment(job, "cannot be saved: it has a 'quoted' word")
            words = bed.words(job)
            assert TWO_LINES in words
            assert "cannot be saved: it has a 'quoted' word" in words
        finally:
            bed.end(job)

    def test_a_job_that_a_person_suspends_is_known_by_its_priority(self, bed: Bed) -> None:
        job = bed.run()
        try:
            self.job(bed, job, lambda j: "RUNNING" in j.states)
            bed.slurm.suspend(job)
            seen = self.job(bed, job, lambda j: j.is_suspended)
            assert seen.is_suspended_by_person
            bed.slurm.suspend(job)  # no error
            bed.slurm.resume(job)
            assert self.job(bed, job, lambda j: "RUNNING" in j.states).priority > 0
            with pytest.raises(SlurmError):
                bed.slurm.resume(job)
        finally:
            bed.end(job)

    def test_it_knows_whose_jobs_are(self, bed: Bed) -> None:
        job = bed.run()
        try:
            self.job(bed, job, lambda j: "RUNNING" in j.states)
            assert bed.slurm.owners([job]) == {job: {"user": "nobody"}}
        finally:
            bed.end(job)

    def tells(self, bed: Bed, job: int) -> bool:
        """A job that has only just begun has no step yet that would write."""
        try:
            bed.slurm.tell(job, TWO_LINES)
        except SlurmError:
            return False
        return TWO_LINES in until(lambda: bed.words(job), lambda _: True)
