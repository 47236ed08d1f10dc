"""Requeued jobs start at once, and their own settings come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.first_image import VERIFICATION_S
from slurm_elastic.controller.requeues import REQUEUE_TIMEOUT_S, ExpectedRequeues
from slurm_elastic.policies.repair.requeue import SETTLING
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger

NOW = 1_800_000_000.0
GONE = ("pub1",)


class Case:
    def __init__(self, ledger: Ledger, *, nodes: tuple[str, ...] = GONE, **job: object) -> None:
        self.slurm = FakeSlurm()
        self.ledger = ledger
        self.slurm.set_job(7, "CONFIGURING", nodes=nodes, **job)
        self.restarts = ExpectedRequeues()
        self.restarts.expect(self.slurm.jobs()[0], 0.0, GONE)

    def tick(self, clock: float = 1.0) -> None:
        self.restarts.tick(self.slurm, self.ledger, NOW, clock)

    def pending(self, **fields: object) -> None:
        changes = {"restarts": 1, "start": NOW + 121, "reason": "BeginTime", "nodes": ()} | fields
        self.slurm.set_job(7, "PENDING", **changes)

    def started(self) -> int:
        return self.slurm.calls["start_now"]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def test_nothing_is_done_before_the_job_is_pending(ledger: Ledger) -> None:
    case = Case(ledger)
    case.tick()
    case.slurm.set_job(7, "PENDING", "COMPLETING", restarts=1, start=NOW + 121)
    case.tick()
    assert case.started() == 0
    assert case.restarts


def test_the_hold_is_lifted_once(ledger: Ledger) -> None:
    case = Case(ledger)
    case.pending()
    for _ in range(3):
        case.tick()
    assert case.started() == 1
    assert not case.restarts


def test_the_estimated_start_of_a_job_that_waits_for_nodes_is_no_hold(ledger: Ledger) -> None:
    case = Case(ledger)
    case.pending(reason="Resources", eligible=NOW - 5)
    case.tick()
    assert case.started() == 0
    assert not case.restarts


def test_a_begin_time_of_its_user_or_of_a_budget_stays(ledger: Ledger) -> None:
    case = Case(ledger)
    case.pending(start=NOW + 40_000, eligible=NOW + 40_000)
    case.tick()
    assert case.started() == 0
    assert not case.restarts


def test_the_start_time_counts_whatever_the_reason_says(ledger: Ledger) -> None:
    case = Case(ledger)
    case.pending(reason="Priority")
    case.tick()
    assert case.started() == 1


@pytest.mark.parametrize(
    "moved_on",
    [
        {"states": ("RUNNING",), "restarts": 1},
        {"states": ("CONFIGURING",), "restarts": 1},
        {"states": ("PENDING",), "restarts": 1, "reason": "Resources"},
    ],
)
def test_a_job_that_moved_on_by_itself_has_its_own_requeue_back(
    ledger: Ledger, moved_on: dict[str, object]
) -> None:
    case = Case(ledger, requeue=False)
    case.slurm.set_requeue(7, requeue=True)
    case.slurm.set_job(7, *moved_on.pop("states"), start=0.0, **moved_on)  # type: ignore[misc]
    case.tick()
    assert case.started() == 0
    assert case.slurm.jobs()[0].requeue is False
    assert not case.restarts


def test_a_job_that_is_never_requeued_has_it_back_in_the_end(ledger: Ledger) -> None:
    case = Case(ledger, requeue=False)
    case.slurm.set_requeue(7, requeue=True)
    case.tick(REQUEUE_TIMEOUT_S)
    assert case.slurm.jobs()[0].requeue is True
    case.tick(REQUEUE_TIMEOUT_S + 1)
    assert case.slurm.jobs()[0].requeue is False
    assert not case.restarts


def test_expected_twice_it_still_has_its_first_setting_back(ledger: Ledger) -> None:
    case = Case(ledger, requeue=False)
    case.slurm.set_requeue(7, requeue=True)
    case.restarts.expect(case.slurm.jobs()[0], 1.0, GONE)
    case.pending()
    case.tick()
    assert case.slurm.jobs()[0].requeue is False


def test_a_job_that_may_get_a_node_again_starts_when_slurmd_takes_it_again(ledger: Ledger) -> None:
    """Counted from when it is known to have left: its requeue may come long after it is expected,
    and end long before it is pending.
    """
    case = Case(ledger, nodes=("pub1", "pub2"))
    case.tick(50.0)
    case.slurm.set_job(7, "PENDING", "COMPLETING", restarts=1, start=NOW + 121, nodes=())
    case.tick(55.0)
    case.pending()
    for clock in (60.0, 60.3, 60.0 + SETTLING - 0.1):
        case.tick(clock)
    assert case.started() == 0
    assert case.restarts
    case.tick(60.0 + SETTLING)
    assert case.started() == 1
    assert not case.restarts


def test_expected_anew_it_is_waited_for_anew(ledger: Ledger) -> None:
    case = Case(ledger, nodes=("pub1", "pub2"))
    case.pending()
    case.tick(1.0)
    case.slurm.set_job(7, "CONFIGURING", restarts=1, nodes=("pub1", "pub3"))
    case.restarts.expect(case.slurm.jobs()[0], 2.0, GONE)
    case.pending(restarts=2)
    case.tick(3.5)
    assert case.started() == 0
    case.tick(3.5 + SETTLING)
    assert case.started() == 1


def test_a_job_that_an_earlier_daemon_expected_waits_out_its_hold(ledger: Ledger) -> None:
    """slurmctld may be about to tell the node that it had, whose machine is new, to kill it."""
    case = Case(ledger)
    ledger.requeues.lift(7, 0, NOW)
    case.restarts = ExpectedRequeues()
    case.restarts.recall(ledger, NOW, 0.0)
    case.pending()
    case.tick(1.0)
    case.tick(1.0 + SETTLING)
    assert case.started() == 0
    assert not case.restarts
    assert ledger.requeues.lifted() == ()


def test_a_new_daemon_leaves_the_lift_of_a_job_whose_image_is_being_verified(
    ledger: Ledger,
) -> None:
    """Slurm would end the job with its node although the image is whole."""
    case = Case(ledger)
    case.slurm.set_job(7, "RUNNING", nodes=GONE)
    ledger.requeues.lift(7, 0, NOW + VERIFICATION_S)
    case.restarts = ExpectedRequeues()
    case.restarts.recall(ledger, NOW, 0.0)
    case.tick()
    assert case.slurm.jobs()[0].requeue is True
    assert ledger.requeues.lifted() == ((7, 0),)
    case.restarts.recall_left(ledger, NOW + VERIFICATION_S + REQUEUE_TIMEOUT_S, 0.0)
    case.tick()
    assert case.slurm.jobs()[0].requeue is False, "ckptman was killed during the verification"


def test_what_somebody_else_lifted_and_left_is_put_back_once_the_job_runs(ledger: Ledger) -> None:
    """Not while it waits for its nodes: slurmctld would fail it if they do not come."""
    case = Case(ledger)
    ledger.requeues.lift(7, 0, NOW)
    case.restarts = ExpectedRequeues()
    case.restarts.recall_left(ledger, NOW + REQUEUE_TIMEOUT_S - 1, 0.0)
    assert not case.restarts, "whoever it was may be about to do it"
    case.restarts.recall_left(ledger, NOW + REQUEUE_TIMEOUT_S, 0.0)
    case.tick(2 * REQUEUE_TIMEOUT_S)
    assert case.restarts
    assert case.slurm.jobs()[0].requeue is True
    case.slurm.set_job(7, "RUNNING", nodes=GONE)
    case.tick(2 * REQUEUE_TIMEOUT_S + 1)
    assert not case.restarts
    assert case.slurm.jobs()[0].requeue is False
    assert ledger.requeues.lifted() == ()


def test_what_the_daemon_lifted_itself_is_not_taken_for_somebody_elses(ledger: Ledger) -> None:
    """It goes on being hurried, and is put back then."""
    case = Case(ledger, requeue=False)
    ledger.requeues.lift(7, 0, NOW - REQUEUE_TIMEOUT_S)
    case.restarts.recall_left(ledger, NOW, 0.0)
    case.pending(requeue=True)
    case.tick(1.0)
    case.tick(1.0 + SETTLING)
    assert case.started() == 1
    assert case.slurm.jobs()[0].requeue is False


def test_a_cancelled_job_is_forgotten(ledger: Ledger) -> None:
    case = Case(ledger, requeue=False)
    case.slurm.remove_job(7)
    case.tick()
    assert not case.restarts


def test_array_tasks_go_by_their_own_numbers(ledger: Ledger) -> None:
    """A task that was started has a number of its own, and keeps it when it is requeued."""
    case = Case(ledger)
    case.slurm.set_job(6, "PENDING", start=NOW + 9999, reason="BeginTime")
    case.pending()
    case.tick()
    assert case.slurm.updates == [("start_now", {"job": 7})]


def test_a_failing_command_is_tried_again(ledger: Ledger) -> None:
    case = Case(ledger)
    case.pending()
    failure = SlurmError(("scontrol",), 1, "try again")
    start_now, left = case.slurm.start_now, [failure]

    def once(job: int) -> None:
        if left:
            raise left.pop()
        start_now(job)

    case.slurm.start_now = once  # type: ignore[method-assign]
    with pytest.raises(SlurmError):
        case.tick()
    case.tick()
    assert not case.restarts


class Taken(FakeSlurm):
    """While Slurm lets a job start at once, somebody else does ``meanwhile``."""

    meanwhile: Callable[[], None]

    def start_now(self, job: int) -> None:
        super().start_now(job)
        self.meanwhile()


@pytest.fixture
def lifted(ledger: Ledger) -> Case:
    """A ``--no-requeue`` job, which we allowed to be requeued once, has started again by now; one
    before it in the list has not.
    """
    case = Case(ledger)
    case.slurm = Taken()
    case.slurm.set_job(8, "CONFIGURING", nodes=("pub3",))
    case.slurm.set_job(7, "CONFIGURING", requeue=False, nodes=GONE)
    case.restarts = ExpectedRequeues()
    for job in sorted(case.slurm.jobs(), key=lambda job: -job.id):
        case.restarts.expect(job, 0.0, job.nodes)
        if not job.requeue:
            requeue_setting.lift_until_it_runs(case.slurm, ledger, job.id, job.restarts, NOW)
    case.slurm.set_job(7, "CONFIGURING", requeue=True, restarts=1, nodes=("pub2",))
    return case


def test_a_job_that_is_expected_again_during_a_pass_may_still_be_requeued(lifted: Case) -> None:
    """Its second node is about to be powered down by force, which would fail the job."""
    slurm = lifted.slurm
    (again,) = [job for job in slurm.jobs() if job.id == 7]
    assert isinstance(slurm, Taken)
    slurm.meanwhile = lambda: lifted.restarts.expect(again, 1.0, ("pub2",))
    slurm.set_job(8, "PENDING", restarts=1, start=NOW + 121, reason="BeginTime", nodes=())
    lifted.tick()
    assert slurm.calls["start_now"] == 1
    assert _may_requeue(lifted)
    assert lifted.ledger.requeues.lifted(), "it is put back later"
    slurm.set_job(7, "RUNNING", requeue=True, restarts=2, nodes=("pub3",))
    lifted.tick(2.0)
    assert not _may_requeue(lifted), "after that requeue"
    assert not lifted.ledger.requeues.lifted()


def _may_requeue(case: Case) -> bool:
    return next(job.requeue for job in case.slurm.jobs() if job.id == 7)


def test_a_setting_that_was_put_back_meanwhile_is_the_users_own(lifted: Case) -> None:
    """The job was listed while the setting was lifted, and is read once more."""
    (listed,) = [job for job in lifted.slurm.jobs() if job.id == 7]
    lifted.tick()
    (fresh,) = [job for job in lifted.slurm.jobs() if job.id == 7]
    assert (listed.requeue, fresh.requeue) == (True, False)
    for job in (listed, fresh):
        lifted.restarts.expect(job, 1.0, ("pub2",))
    requeue_setting.lift_until_it_runs(lifted.slurm, lifted.ledger, fresh.id, fresh.restarts, NOW)
    lifted.slurm.set_job(7, "RUNNING", requeue=True, restarts=2, nodes=("pub3",))
    lifted.tick(2.0)
    assert not _may_requeue(lifted)
