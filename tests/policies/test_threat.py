"""Threats to a job: by which source, until when, and when each is to be answered."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.units import money
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.checkpoint.threat import (
    HORIZON,
    LEAD,
    Response,
    Threat,
    ThreatCause,
    age_threat,
    by_subject,
    due,
    longest_saves,
    moving,
    notices,
    of_end,
    of_limit,
    of_node,
    of_notice,
    of_preemption,
    of_price,
    of_reservations,
)

NOW = 1_800_000_000.0
OURS = "slurm-elastic:"


def job(limit: int | None = 3600, ran: float = 0.0, reservation: str = "") -> SlurmJob:
    return SlurmJob(
        id=7, states=frozenset({"RUNNING"}), nodes=("n1", "n2"), start=NOW - ran, limit=limit,
        reservation=reservation,
    )  # fmt: skip


def threat(cause: ThreatCause, left: float | None = None, what: str = "n1") -> Threat:
    until = None if left is None else NOW + left
    return Threat(
        target=what,
        cause=cause,
        answer=Response.MOVE,
        reason=Quoted(text="w"),
        since=NOW,
        until=until,
    )


# the sources


def test_a_notice_that_takes_the_machine_moves_and_a_recommendation_saves() -> None:
    gone = Notice(instance="i", kind=NoticeKind.INTERRUPTION, seen=NOW, deadline=NOW + 120)
    found = of_notice("n1", gone)
    assert (found.answer, found.cause, found.until) == (
        Response.MOVE,
        ThreatCause.RECLAIM,
        NOW + 120,
    )
    danger = Notice(instance="i", kind=NoticeKind.REBALANCE, seen=NOW, reason="hot")
    assert (of_notice("n1", danger).answer, str(of_notice("n1", danger).reason)) == (
        Response.SAVE,
        "hot",
    )


def test_a_machine_is_threatened_by_its_age_shortly_before_it_comes_to_it() -> None:
    launched = NOW - 3600
    assert age_threat("n1", launched, None, NOW) is None
    assert age_threat("n1", launched, 3600 + HORIZON + 1, NOW) is None
    found = age_threat("n1", launched, 4200, NOW)
    assert found is not None
    assert found.until == NOW + 600
    assert str(found.reason) == "its machine reaches the pool's maximum age of 01:10:00"
    over = age_threat("n1", launched, 60, NOW)
    assert over is not None
    assert over.until is None, "nobody ends it while it has jobs"


def test_a_maintenance_threatens_each_of_its_nodes_and_other_reservations_none() -> None:
    times = {"start": NOW + 100, "end": NOW + 200}
    maint = Reservation(name="m", nodes=("n1", "n2"), flags=frozenset({"MAINT"}), **times)
    other = Reservation(name="o", nodes=("n3",), flags=frozenset({"DAILY"}), **times)
    begun = Reservation(name="b", nodes=("n4",), flags=frozenset({"MAINT"}), start=NOW - 1,
                        end=NOW + 9)  # fmt: skip
    found = of_reservations((maint, other, begun), NOW)
    assert [(t.target, t.cause, t.until) for t in found] == [
        (node, ThreatCause.MAINTENANCE, NOW + 100) for node in ("n1", "n2")
    ]


@pytest.mark.parametrize(
    ("reason", "left"),
    [
        ("new disk at 2027-01-15T08:30:00Z", 1800.0),
        ("until 2027-01-15 10:00+01:00, J. Doe", 3600.0),
        ("new disk, soon", None),
        ("was bad on 2026-12-24T08:00:00Z", None),
        ("ticket 2027-99-15", None),
        ("for good: 9999-12-31T23:59-05:00", None),  # no screen could show it in UTC
        (f"{OURS}notice:2027-01-15T09:00:00Z", None),
    ],
)
def test_a_drain_threatens_where_its_reason_has_a_date_that_is_to_come(
    reason: str, left: float | None
) -> None:
    assert datetime.fromtimestamp(NOW, UTC).isoformat() == "2027-01-15T08:00:00+00:00"
    node = SlurmNode(name="n1", states=frozenset({"MIXED", "DRAIN"}), reason=reason)
    found = of_node(node, NOW, OURS)
    assert (found and found.until) == (None if left is None else NOW + left)


def test_a_node_that_slurm_has_as_failing_is_left_now() -> None:
    node = SlurmNode(name="n1", states=frozenset({"ALLOCATED", "FAIL"}), reason="ECC errors")
    found = of_node(node, NOW, OURS)
    assert found is not None
    assert (found.cause, found.answer, found.until) == (ThreatCause.HEALTH, Response.MOVE, None)
    assert "ECC errors" in str(found.reason)


def test_a_price_over_the_bid_saves_since_it_rose() -> None:
    prices = ((NOW - 900, 0.2), (NOW - 600, 0.05), (NOW - 300, 0.11), (NOW - 60, 0.12))
    found = of_price("n1", prices, 0.10)
    assert found is not None
    assert (found.answer, found.since) == (Response.SAVE, NOW - 300)
    assert of_price("n1", prices, 0.12) is None
    assert of_price("n1", prices, None) is None
    assert of_price("n1", (), 0.1) is None


@pytest.mark.parametrize(
    ("prices", "since"),
    [
        ([0.2], 0),
        ([0.05, 0.2], 1),
        ([0.2, 0.05, 0.2, 0.3], 2),
        ([0.2, 0.10, 0.11], 2),
        ([0.2, 0.05], None),
        ([0.2, 0.10], None),
        ([0.05], None),
    ],
)
def test_a_price_threatens_while_the_last_one_is_over_the_bid(
    prices: list[float], since: int | None
) -> None:
    found = of_price("n1", tuple((NOW + at, price) for at, price in enumerate(prices)), 0.10)
    assert (found and found.since) == (None if since is None else NOW + since)
    assert (
        found is None or str(found.reason) == f"price {money(prices[-1])} is over the bid of $0.10"
    )


def test_a_time_limit_is_renewed_so_many_times_and_then_the_job_ends() -> None:
    found = [of_limit(job(limit=120), 10.0, 2, renewed, NOW) for renewed in (0, 1, 2)]
    assert [t and (t.answer, t.until) for t in found] == [
        (Response.MOVE, NOW + 120), (Response.MOVE, NOW + 120), (Response.END, NOW + 120),
    ]  # fmt: skip
    assert found[1] is not None
    assert str(found[1].reason) == "its time limit of 00:02:00 ends (2 of 2 times)"
    assert of_limit(job(limit=120), 10.0, 0, 0, NOW) is None, "nobody wants it"
    assert of_limit(job(limit=None), 10.0, 2, 0, NOW) is None, "it has none"
    assert of_limit(job(limit=int(HORIZON) + 1), 10.0, 2, 0, NOW) is None, "not soon"
    assert of_limit(job(limit=2000), 700.0, 2, 0, NOW) is not None, "its saves are slow"


def test_a_job_that_is_preempted_is_moved_by_the_time_that_slurm_gives_it() -> None:
    assert of_preemption(job(), NOW) is None
    found = of_preemption(replace(job(), preempted=NOW + 60), NOW)
    assert found is not None
    assert (found.target, found.cause, found.answer) == (
        "job:7",
        ThreatCause.PREEMPTION,
        Response.MOVE,
    )
    assert (found.since, found.until) == (NOW, NOW + 60)
    assert found.answer_at(job(), 10.0, 5.0) == NOW, "the other job waits for its place"


# when


def test_a_reclaim_is_answered_at_once_and_what_is_planned_as_late_as_a_save_allows() -> None:
    one = job(limit=7200)
    assert threat(ThreatCause.RECLAIM, 100).answer_at(one, 10.0, 5.0) == NOW
    for cause in (ThreatCause.MAINTENANCE, ThreatCause.DRAIN, ThreatCause.PLANNED_END):
        assert threat(cause, 100).answer_at(one, 10.0, 5.0) == NOW + 100 - 10 - 5 - LEAD


def test_a_planned_threat_is_answered_so_early_that_the_image_can_be_verified() -> None:
    one = job(limit=7200)
    drain = threat(ThreatCause.DRAIN, 100)
    assert drain.answer_at(one, 10.0, 5.0, check=20.0) == NOW + 100 - 10 - 20 - 5 - LEAD
    assert threat(ThreatCause.RECLAIM, 100).answer_at(one, 10.0, 5.0, check=20.0) == NOW
    assert due(by_subject([drain]), one, 10.0, 5.0, NOW + 50, 20.0) == (drain,)
    assert due(by_subject([drain]), one, 10.0, 5.0, NOW + 50) == ()


def test_a_job_works_for_half_of_its_limit_before_it_is_saved_for_that() -> None:
    limit = of_limit(job(limit=120), 60.0, 9, 0, NOW)
    assert limit is not None
    assert limit.answer_at(job(limit=120), 10.0, 5.0) == NOW + 120 - 10 - 5 - LEAD
    assert limit.answer_at(job(limit=120), 100.0, 5.0) == NOW + 60


def test_who_ends_before_it_is_not_concerned() -> None:
    assert not threat(ThreatCause.MAINTENANCE, 4000).concerns(job(limit=3600))
    assert threat(ThreatCause.MAINTENANCE, 3000).concerns(job(limit=3600))
    assert threat(ThreatCause.MAINTENANCE, 3000).concerns(job(limit=None))
    assert threat(ThreatCause.DRAIN, 3000).concerns(job(reservation="m"))
    assert threat(ThreatCause.RECLAIM, 4000).concerns(job(limit=3600)), (
        "nothing is certain of a reclaim"
    )


def test_only_the_jobs_of_its_own_reservation_belong_to_a_maintenance() -> None:
    (found,) = of_reservations(
        [
            Reservation(
                name="m8", start=NOW + 1000, end=NOW + 2000, nodes=("n1",),
                flags=frozenset({"MAINT"}),
            )
        ],
        NOW,
    )  # fmt: skip
    belongs = {name: not found.concerns(job(reservation=name)) for name in ("", "m8", "m", "p,m8")}
    assert belongs == {"": False, "m8": True, "m": False, "p,m8": True}


def test_the_time_for_which_a_job_was_suspended_puts_its_end_off() -> None:
    """Slurm stops the clock of its limit for that time."""
    hour = 3600.0
    resumed = replace(job(limit=12 * 3600, ran=13 * hour), limit_ends_at=NOW + 2 * hour)
    assert of_limit(resumed, 60.0, 3, 0, NOW) is None, "it has two hours left"
    later = of_limit(resumed, 60.0, 3, 0, NOW + 1.9 * hour)
    assert later is not None
    assert later.until == NOW + 2 * hour
    assert later.answer_at(resumed, 100.0, 5.0) == NOW + 2 * hour - 100 - 5 - LEAD
    assert later.answer_at(resumed, 9 * hour, 5.0) == NOW - 4 * hour, "it had worked for 6 hours"
    assert threat(ThreatCause.MAINTENANCE, hour).concerns(resumed)
    assert not threat(ThreatCause.MAINTENANCE, 3 * hour).concerns(resumed)


def test_a_suspended_job_may_still_be_there_at_any_time() -> None:
    suspended = replace(job(limit=3600), states=frozenset({"SUSPENDED"}))
    assert threat(ThreatCause.MAINTENANCE, 4000).concerns(suspended)


def test_a_preempted_run_ends_by_that_and_not_by_its_limit() -> None:
    assert of_limit(job(limit=120), 60.0, 9, 0, NOW) is not None
    assert of_limit(replace(job(limit=120), preempted=NOW + 60), 60.0, 9, 0, NOW) is None


def test_of_several_threats_the_earliest_end_comes_first_and_unknown_ones_last() -> None:
    found = by_subject(
        [
            threat(ThreatCause.HEALTH),
            threat(ThreatCause.RECLAIM, 50),
            threat(ThreatCause.RECLAIM, 20, "n2"),
        ]
    )
    assert [t.until for t in found["n1"]] == [NOW + 50, None]
    assert {what: t.until for what, t in moving(found).items()} == {"n1": NOW + 50, "n2": NOW + 20}
    assert [t.until for t in due(found, job(), 5.0, 5.0, NOW)] == [NOW + 20, NOW + 50, None]


def test_a_policy_sees_what_takes_the_machine_as_new_and_nothing_of_what_only_ends() -> None:
    old = threat(ThreatCause.RECLAIM, 50)
    danger = Threat(
        target="n1",
        cause=ThreatCause.REBALANCE,
        answer=Response.SAVE,
        reason=Quoted(text="w"),
        since=NOW - 9,
    )
    end = Threat(
        target="job:7",
        cause=ThreatCause.LIMIT,
        answer=Response.END,
        reason=Quoted(text="w"),
        since=NOW,
    )
    assert [(n.kind, n.seen) for n in notices((old, danger, end), NOW + 30)] == [
        (NoticeKind.INTERRUPTION, NOW + 30), (NoticeKind.REBALANCE, NOW - 9),
    ]  # fmt: skip


@given(
    cause=st.sampled_from(sorted(ThreatCause)),
    left=st.none() | st.floats(-100, 1e5),
    dump=st.floats(0, 1e4),
    limit=st.none() | st.integers(1, 10**6),
)
def test_a_planned_threat_is_never_answered_before_a_save_has_to_begin(
    cause: ThreatCause, left: float | None, dump: float, limit: int | None
) -> None:
    one = threat(cause, left)
    at = one.answer_at(job(limit=limit), dump, 5.0)
    assert at == NOW or at >= NOW + (left or 0) - dump - 5.0 - LEAD


# at the very bounds


def test_what_is_planned_counts_from_a_quarter_of_an_hour_before_it_comes() -> None:
    assert age_threat("n1", NOW - 100, 1000, NOW) is not None
    assert age_threat("n1", NOW - 100, 1001, NOW) is None
    assert of_limit(job(limit=900), 300.0, 2, 0, NOW) is not None
    assert of_limit(job(limit=901), 300.0, 2, 0, NOW) is None
    assert of_limit(job(limit=2100), 700.0, 2, 0, NOW) is not None, "three saves"
    assert of_limit(job(limit=2101), 700.0, 2, 0, NOW) is None


def test_a_planned_end_counts_early_enough_for_a_long_save_and_its_verification() -> None:
    dump = 500.0
    age = 2000.0
    found = age_threat("n1", NOW - age + 3 * dump, age, NOW, dump)
    assert found is not None
    assert found.answer_at(job(), dump, 5.0, dump) > NOW
    assert age_threat("n1", NOW - age + 3 * dump + 1, age, NOW, dump) is None
    assert of_end("n1", "block", NOW + 3 * dump, NOW, dump) is not None
    assert of_end("n1", "block", NOW + 3 * dump + 1, NOW, dump) is None
    assert of_end("n1", "block", NOW + 901, NOW) is None


def test_the_longest_save_of_the_jobs_on_a_node_counts() -> None:
    jobs = [
        replace(job(), id=number, nodes=nodes)
        for number, nodes in ((1, ("n1", "n2")), (2, ("n1",)), (3, ("n3",)), (4, ()))
    ]
    assert longest_saves(jobs, {1: 5.0, 2: 700.0, 5: 9.0}, 60.0) == {
        "n1": 700.0, "n2": 5.0, "n3": 60.0,
    }  # fmt: skip


def test_fifteen_seconds_are_kept_beside_a_save_and_the_slack() -> None:
    assert threat(ThreatCause.DRAIN, 100).answer_at(job(), 10.0, 5.0) == NOW + 70


def test_what_comes_just_now_is_here() -> None:
    over = age_threat("n1", NOW - 60, 60, NOW)
    assert over is not None
    assert over.until is None
    maint = Reservation(name="m", nodes=("n1",), flags=frozenset({"MAINT"}), start=NOW, end=NOW + 9)
    assert of_reservations((maint,), NOW) == []
    drained = SlurmNode(
        name="n1", states=frozenset({"DRAIN"}), reason="new disk at 2027-01-15T08:00:00Z"
    )
    assert of_node(drained, NOW, OURS) is None
    assert of_node(drained, NOW - 1, OURS) is not None


def test_who_ends_just_then_is_not_concerned() -> None:
    assert not threat(ThreatCause.DRAIN, 3600).concerns(job(limit=3600))
    assert threat(ThreatCause.DRAIN, 3599).concerns(job(limit=3600))


def test_what_concerns_nobody_or_comes_later_is_not_due() -> None:
    found = by_subject(
        [threat(ThreatCause.MAINTENANCE, 3000), threat(ThreatCause.DRAIN, 4000, "n2")]
    )
    assert due(found, job(limit=3600), 5.0, 5.0, NOW) == ()
    assert due(found, job(limit=3600), 5.0, 5.0, NOW + 3990) == found["n1"]


@pytest.mark.parametrize(
    ("age", "words"),
    [(59, "00:00:59"), (3661, "01:01:01"), (86_399, "23:59:59"), (90_061, "1-01:01:01")],
)
def test_a_time_is_told_as_slurm_tells_it(age: int, words: str) -> None:
    found = age_threat("n1", NOW - age, age, NOW)
    assert found is not None
    assert str(found.reason).endswith(f" {words}")


def test_a_failing_node_without_a_reason_and_a_notice_without_one_are_told_all_the_same() -> None:
    found = of_node(SlurmNode(name="n1", states=frozenset({"FAILING"})), NOW, OURS)
    assert found is not None
    assert str(found.reason) == "Slurm has its node as failing: no reason is given"
    bare = Notice(instance="i", kind=NoticeKind.REBALANCE, seen=NOW)
    assert str(of_notice("n1", bare).reason) == f"{NoticeKind.REBALANCE} notice"


def test_a_job_whose_limit_was_renewed_often_enough_is_told_so() -> None:
    ends = of_limit(job(limit=120), 10.0, 2, 2, NOW)
    assert ends is not None
    assert (
        str(ends.reason) == "its time limit of 00:02:00 ends, and it was requeued for that 2 times"
    )
    assert ends.target == "job:7"
