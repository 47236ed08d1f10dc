"""One run on machines that may be taken away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    Daly,
    FirstOf,
    Hour,
    Never,
    OnNotice,
    Threshold,
    ThresholdStatic,
)
from slurm_elastic.simulate.bills.billing import Curve
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.checkpointed_run import Checkpoints, Trip, ride

HOURLY = Checkpoints(policy=Hour(margin=200), dump=160, restart=74, look=30)


def test_27_hours_make_27_checkpoints_of_160_seconds() -> None:
    work = 27 * (3600 - 160) - 10
    found = ride(HOURLY, Trip(job=1, start=0, work=work, launched=0))
    assert (found.checkpoints, found.done) == (27, True)
    assert found.end == 27 * 3600 - 10
    assert found.dumping == 27 * 160


def test_what_was_saved_before_the_interruption_is_kept() -> None:
    found = ride(HOURLY, Trip(job=1, start=0, work=90_000, launched=0, until=5000))
    assert (found.end, found.saved, found.done) == (5000, 3420, False)


def test_a_checkpoint_cut_off_saves_nothing() -> None:
    found = ride(HOURLY, Trip(job=1, start=0, work=90_000, launched=0, until=3500))
    assert (found.saved, found.checkpoints, found.dumping) == (0, 0, 80)


def test_a_checkpoint_beside_the_work_costs_no_time() -> None:
    how = Checkpoints(policy=Hour(), dump=160, look=30, blocking=False)
    found = ride(how, Trip(job=1, start=0, work=7000, launched=0))
    assert (found.end, found.checkpoints) == (7000, 1)


def test_work_that_is_done_during_a_checkpoint_beside_it_is_done() -> None:
    how = Checkpoints(policy=Daly(mtti=100, least=30), dump=60, look=30, blocking=False)
    trip = Trip(job=1, start=0, work=100, launched=0)
    for until in (None, 100, 120):
        found = ride(how, replace(trip, until=until))
        assert (found.end, found.saved, found.checkpoints, found.done) == (100, 0, 0, True)
    cut = ride(how, replace(trip, until=99))
    assert (cut.end, cut.saved, cut.done) == (99, 0, False)


def test_a_rising_price_is_noticed_at_the_next_look() -> None:
    market = SpotMarket(Curve([0, 1000], [0.01, 0.06]), bid=0.067)
    how = Checkpoints(policy=Threshold(), dump=160, look=30)
    trip = Trip(job=1, start=0, work=9000, launched=0, until=1190, market=market)
    assert ride(how, trip).saved == 1020


def test_a_notice_saves_all_but_the_dump() -> None:
    how = Checkpoints(policy=OnNotice(), dump=60, look=5)
    notice = Notice(instance="i", kind=NoticeKind.INTERRUPTION, seen=880.0, deadline=1000.0)
    trip = Trip(job=1, start=0, work=9000, launched=0, until=1000, notices=(notice,))
    assert ride(how, trip).saved == 880


POLICIES: list[AnyPolicy] = [
    Never(),
    Hour(),
    Threshold(),
    ThresholdStatic(),
    Daly(mtti=900.0),
    FirstOf((OnNotice(), Daly())),
]


@given(
    st.sampled_from(POLICIES),
    st.integers(1, 20_000),
    st.none() | st.integers(1, 20_000),
    st.booleans(),
    st.integers(1, 400),
    st.integers(1, 60),
)
def test_time_is_work_or_dumping_and_nothing_is_saved_that_was_not_done(
    policy: AnyPolicy, work: int, until: int | None, blocking: bool, dump: int, look: int
) -> None:
    how = Checkpoints(policy=policy, dump=dump, look=look, blocking=blocking)
    market = SpotMarket(Curve([0, 500, 4000, 9000], [0.01, 0.05, 0.02, 0.06]), bid=0.067)
    trip = Trip(job=1, start=0, work=work, launched=0, until=until, market=market)
    found = ride(how, trip)
    assert 0 <= found.saved <= work
    assert until is None or found.end <= until
    assert found.done or found.end == until
    if blocking:
        assert found.saved + found.dumping <= found.end
        assert not found.done or found.end == work + found.dumping
    assert found.checkpoints * dump <= found.dumping
