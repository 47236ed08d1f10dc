"""When to write a checkpoint."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    Daly,
    FirstOf,
    Hour,
    LetEnd,
    Never,
    OnNotice,
    OnRequest,
    Renew,
    Threshold,
    ThresholdStatic,
    daly_interval,
    joint_mtti,
    mean_price,
    observed_mtti,
    parse,
    parse_at_limit,
    price_at,
    save_seconds,
    watches_prices,
    young_interval,
)
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.policy_text import text_of


def daly_wall_time(work: float, interval: float, dump: float, restart: float, mtti: float) -> float:
    """Expected seconds to do ``work`` seconds with a checkpoint after each ``interval`` (Daly)."""
    segment = math.exp((interval + dump) / mtti) - 1
    return mtti * math.exp(restart / mtti) * segment * work / interval


LAUNCH = 1_000_000.0
BID = 0.067
CALM = Situation(job="7", now=LAUNCH, launched=LAUNCH, started=LAUNCH, dump=160.0, bid=BID)
FLAT = ((0.0, 0.01),)


def at(seconds: float, **changes: object) -> Situation:
    return replace(CALM, now=LAUNCH + seconds, **changes)


def notice(seen: float, deadline: float | None) -> Notice:
    end = None if deadline is None else LAUNCH + deadline
    return Notice(instance="i-1", kind=NoticeKind.INTERRUPTION, seen=LAUNCH + seen, deadline=end)


@pytest.mark.parametrize(("hours", "minutes"), [(24, 116.7), (6, 56.7), (0.25, 9.14)])
def test_dalys_interval_for_a_dump_of_five_minutes(hours: float, minutes: float) -> None:
    assert daly_interval(300, hours * 3600) / 60 == pytest.approx(minutes, abs=0.05)


def test_the_interval_of_young() -> None:
    assert young_interval(300, 86400) == pytest.approx(7200)


def test_dalys_interval_is_that_of_his_equation() -> None:
    """sqrt(2 * 300 * 900) * (1 + sqrt(1 / 6) / 3 + 1 / 54) - 300, by hand."""
    assert daly_interval(300, 900) == pytest.approx(548.455, abs=0.01)
    assert daly_interval(800, 400) == 400
    assert daly_interval(799, 400) == pytest.approx(355.6, abs=0.1)


def test_a_dump_longer_than_twice_the_mean_time_leaves_the_mean_time() -> None:
    assert daly_interval(1000, 400) == 400


@pytest.mark.parametrize(
    ("hours", "daly", "hourly"), [(3, 27.9, 33.1), (6, 17.2, 17.9), (24, 7.3, 7.8), (120, 3.0, 5.3)]
)
def test_the_expected_overhead_beside_an_hourly_checkpoint(
    hours: float, daly: float, hourly: float
) -> None:
    mtti, work = hours * 3600, 1e6
    ours = daly_wall_time(work, daly_interval(160, mtti), 160, 746, mtti)
    theirs = daly_wall_time(work, 3600 - 160, 160, 746, mtti)
    assert (ours / work - 1) * 100 == pytest.approx(daly, abs=1.0)
    assert (theirs / work - 1) * 100 == pytest.approx(hourly, abs=1.0)


@given(st.floats(1, 500), st.floats(1100, 1e6), st.floats(0.2, 5))
def test_no_other_interval_is_much_better_than_dalys(
    dump: float, mtti: float, factor: float
) -> None:
    best = daly_interval(dump, mtti)
    expected = daly_wall_time(1e6, best, dump, 60, mtti)
    assert expected <= daly_wall_time(1e6, best * factor, dump, 60, mtti) * 1.001


def test_hour_acts_once_before_each_paid_hour_ends() -> None:
    policy = Hour(margin=200)
    assert policy.decide(at(3399)) is None
    assert policy.wake(at(100)) == LAUNCH + 3400
    action = policy.decide(at(3400))
    assert action is not None
    assert (action.kind, action.subject) == ("checkpoint", "7")
    done = at(3570, last=LAUNCH + 3565)
    assert policy.decide(done) is None
    assert policy.wake(done) == LAUNCH + 7000
    assert policy.decide(at(7000, last=LAUNCH + 3565)) is not None


def test_hour_leaves_a_job_alone_that_began_within_the_margin() -> None:
    assert Hour(margin=200).decide(at(3500, started=LAUNCH + 3450)) is None


def test_a_job_that_began_as_the_margin_opened_waits_for_the_next_lease() -> None:
    begun = at(3400, started=LAUNCH + 3400)
    assert Hour(margin=200).decide(begun) is None
    assert Hour(margin=200).wake(begun) == LAUNCH + 7000
    later = at(3500, started=LAUNCH + 3400)
    assert Hour(margin=200).decide(later) is None
    assert Hour(margin=200).wake(later) == LAUNCH + 7000


def test_a_lease_that_a_save_takes_all_of_is_none() -> None:
    assert Hour(margin=200).wake(at(100, lease=200.0)) == LAUNCH + 3400
    assert Hour(margin=200).wake(at(0, lease=201.0)) == LAUNCH + 1


def test_hour_never_begins_later_than_a_checkpoint_takes() -> None:
    assert Hour(margin=100).wake(at(0)) == LAUNCH + 3600 - 160


@pytest.mark.parametrize("policy", [Hour(), Threshold(), ThresholdStatic()])
def test_the_lease_is_the_clouds_and_no_hour(policy: AnyPolicy) -> None:
    assert policy.wake(at(100, lease=1800.0)) == LAUNCH + 1600
    assert policy.decide(at(1599, lease=1800.0)) is None
    action = policy.decide(at(1600, lease=1800.0))
    assert action is not None
    assert str(action.reason) == "the paid lease of 30m ends in 3m 20s (margin 3m 20s)"
    assert policy.decide(at(3400, lease=86_400.0)) is None
    assert policy.decide(at(86_300, lease=86_400.0)) is not None


def test_where_machines_are_paid_by_the_second_the_policy_says_how_often() -> None:
    assert Hour().wake(at(100, lease=1.0)) == LAUNCH + 3400
    assert Hour(every=7200).wake(at(100, lease=60.0)) == LAUNCH + 7000
    action = Hour(every=7200).decide(at(7000, lease=60.0))
    assert action is not None
    assert str(action.reason).startswith("its time of 2h ends")


def test_work_beside_a_save_counts_from_its_beginning() -> None:
    """A save from 3390 s to 3550 s, and a warning at 3400 s."""
    saved = at(3600, last=LAUNCH + 3550, cost=160.0)
    beside = replace(saved, blocking=False)
    assert (saved.since - LAUNCH, beside.since - LAUNCH) == (3550, 3390)
    warned = {"notices": (notice(3400, 3800),)}
    assert OnNotice().decide(replace(saved, **warned)) is None
    assert OnNotice().decide(replace(beside, **warned)) is not None, (
        "what it did since is not in it"
    )
    policy = Daly(mtti=10, least=1)
    assert policy.interval(beside) == 160, "the next cannot begin before this one is over"


def test_threshold_starts_in_the_middle_of_the_launch_price_and_the_bid() -> None:
    policy = Threshold()
    prices = ((0.0, 0.01), (LAUNCH + 60, 0.05))
    assert policy.threshold(at(60, prices=prices)) == pytest.approx((0.01 + BID) / 2)
    assert policy.decide(at(59, prices=prices)) is None
    assert policy.decide(at(60, prices=prices)) is not None


def test_a_checkpoint_sets_the_threshold_over_the_price_it_was_made_at() -> None:
    prices = ((0.0, 0.01), (LAUNCH + 60, 0.05))
    after = at(300, prices=prices, last=LAUNCH + 250)
    assert Threshold().threshold(after) == pytest.approx((0.05 + BID) / 2)
    assert Threshold().decide(after) is None


def test_the_threshold_follows_the_mean_of_ten_minutes() -> None:
    prices = ((0.0, 0.01), (LAUNCH + 300, 0.03))
    assert Threshold().threshold(at(700, prices=prices)) == pytest.approx((0.02 + BID) / 2)


@pytest.mark.parametrize(
    ("seconds", "wakes"), [(0, 600), (100, 600), (599, 600), (600, 1200), (3000, 3400)]
)
def test_threshold_is_asked_again_each_ten_minutes_and_for_the_lease(
    seconds: float, wakes: float
) -> None:
    assert Threshold().wake(at(seconds, prices=FLAT)) == LAUNCH + wakes


def test_a_save_at_a_point_of_the_grid_sets_the_threshold() -> None:
    prices = ((0.0, 0.01), (LAUNCH + 300, 0.03))
    saved = at(700, prices=prices, last=LAUNCH + 600)
    assert Threshold().threshold(saved) == pytest.approx((0.03 + BID) / 2)


def test_the_first_ten_minutes_go_by_the_price_of_the_launch() -> None:
    prices = ((0.0, 0.01), (LAUNCH - 300, 0.03))
    assert Threshold().threshold(at(599, prices=prices)) == pytest.approx((0.03 + BID) / 2)


def test_threshold_lets_a_price_over_the_bid_pass() -> None:
    prices = ((0.0, 0.01), (LAUNCH + 60, 0.07))
    assert Threshold().decide(at(90, prices=prices)) is None


def test_threshold_without_a_bid_is_hour() -> None:
    prices = ((0.0, 0.01), (LAUNCH + 60, 5.0))
    assert Threshold().decide(at(90, prices=prices, bid=None)) is None
    assert Threshold().wake(at(90, prices=prices, bid=None)) == LAUNCH + 3400


def test_threshold_static_acts_on_a_rise_to_within_a_band_of_the_bid() -> None:
    policy = ThresholdStatic(0.2)
    prices = ((0.0, 0.05), (LAUNCH + 60, 0.06))
    assert policy.decide(at(30, prices=prices)) is None
    assert policy.decide(at(60, prices=prices)) is not None
    assert policy.decide(at(400, prices=prices, last=LAUNCH + 230)) is None


def test_daly_counts_from_the_end_of_the_last_checkpoint() -> None:
    policy = Daly(mtti=6 * 3600)
    interval = daly_interval(160, 6 * 3600)
    assert policy.wake(at(0)) == pytest.approx(LAUNCH + interval)
    assert policy.decide(at(interval - 1)) is None
    assert policy.decide(at(interval + 1)) is not None
    assert policy.decide(at(interval + 1, last=LAUNCH + 100)) is None


def test_daly_acts_at_the_very_end_of_the_interval_of_half_a_minute_at_least() -> None:
    assert Daly(mtti=1).interval(at(0, dump=0.0)) == 30
    assert Daly(mtti=1).decide(at(30, dump=0.0)) is not None
    assert Daly(mtti=1).decide(at(29, dump=0.0)) is None


def test_where_nothing_is_known_six_hours_to_an_interruption_are_taken() -> None:
    assert Daly().interval(at(0)) == daly_interval(160, 21_600)
    assert observed_mtti(0, 0) == 21_600


def test_daly_takes_the_observed_mean_time_to_interruption() -> None:
    assert Daly().interval(at(0, mtti=1800)) < Daly().interval(at(0, mtti=180_000))
    assert Daly(mtti=600).interval(at(0, mtti=180_000)) == Daly().interval(at(0, mtti=600))


def test_what_is_observed_weighs_more_the_more_is_seen() -> None:
    assert observed_mtti(0, 0, prior=100) == 100
    assert observed_mtti(9_900, 9, prior=100) == 1000


def test_the_rates_of_a_jobs_machines_add_up() -> None:
    """Machines lost independently of each other; expected wall times of an hour's work."""
    assert joint_mtti([3600.0]) == 3600
    assert joint_mtti([3600.0] * 16) == pytest.approx(225)
    assert joint_mtti([1000.0, 500.0]) == pytest.approx(1000 / 3)
    for nodes, one, job in ((16, 7934, 5385), (64, 137_187, 9958)):
        mtti = joint_mtti([6 * 3600.0] * nodes)
        for interval, wall in ((Daly().interval(at(0, dump=60.0)), one), (None, job)):
            taken = interval or Daly().interval(at(0, dump=60.0, mtti=mtti))
            assert daly_wall_time(3600, taken, 60, 120, mtti) == pytest.approx(wall, rel=1e-4)


def test_a_notice_is_answered_once_and_only_if_a_checkpoint_fits() -> None:
    policy = OnNotice(slack=5)
    fits, short = notice(10, 200), notice(10, 120)
    assert policy.decide(at(20, notices=(fits,))) is not None
    assert policy.decide(at(20, notices=(short,))) is None
    assert policy.decide(at(20, notices=(fits,), dump=300)) is None
    assert policy.decide(at(190, notices=(fits,), last=LAUNCH + 185)) is None
    assert policy.decide(at(20, notices=(notice(10, None),))) is not None
    assert policy.wake(at(20, notices=(fits,))) == LAUNCH + 20
    assert policy.wake(at(20)) == math.inf


def test_a_notice_that_is_heard_of_just_now_is_answered_with_the_time_that_is_left() -> None:
    action = OnNotice().decide(at(20, notices=(notice(20, 200),)))
    assert action is not None
    assert str(action.reason) == "interruption notice, 3m left"
    assert OnNotice().decide(at(30, last=LAUNCH + 20, notices=(notice(20, None),))) is not None
    assert OnNotice().decide(at(30, last=LAUNCH + 21, notices=(notice(20, None),))) is None


def test_five_seconds_are_kept_free_before_a_deadline() -> None:
    for deadline, fits in ((125, True), (124.9, False)):
        answer = OnNotice().decide(at(20, dump=100.0, notices=(notice(10, deadline),)))
        assert (answer is not None) is fits


def test_the_first_policy_that_acts_gives_the_reason() -> None:
    policy = FirstOf((OnNotice(), Daly(mtti=3600)))
    warned = at(5000, notices=(notice(4990, 5400),))
    action = policy.decide(warned)
    assert action is not None
    assert "notice" in str(action.reason)
    assert policy.wake(at(0)) == Daly(mtti=3600).wake(at(0))


def test_policies_by_their_text() -> None:
    assert parse("none") == Never()
    assert parse("hour(margin=180)") == Hour(margin=180)
    assert parse("threshold_static(0.3)") == ThresholdStatic(band=0.3)
    assert parse("first_of(on_notice, daly(mtti=7200))") == FirstOf((OnNotice(), Daly(mtti=7200)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hours", "did you mean hour?"),
        ("hour(", "cannot be read"),
        ("hour(minutes=3)", "minutes"),
        ("daly(order=3)", "order is 3"),
        ("first_of()", "at least one policy"),
        ("1 + 1", "is no policy"),
        ("__import__('os')", "there is no '__import__'"),
    ],
)
def test_a_text_that_is_no_policy(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse(text)


def test_the_rule_for_the_end_of_time_limits_by_its_text() -> None:
    assert parse_at_limit("none") == LetEnd()
    assert parse_at_limit("on_request(times=5)") == OnRequest(times=5)
    assert parse_at_limit("requeue") == Renew(times=10)
    with pytest.raises(ValueError, match="did you mean requeue"):
        parse_at_limit("requeues")


@pytest.mark.parametrize(
    ("last", "seconds"),
    [([], 60.0), ([8.0], 10.0), ([4.0, 8.0, 4.0, 100.0], 10.0), ([4.0, 4.0, 8.0], 10.0)],
)
def test_the_next_save_may_take_a_quarter_more_than_the_longest_of_the_last_three(
    last: list[float], seconds: float
) -> None:
    assert save_seconds(last, 60.0) == seconds


@pytest.mark.parametrize(
    ("text", "watches"),
    [
        ("threshold", True),
        ("threshold_static(0.3)", True),
        ("first_of(daly, first_of(on_notice, threshold))", True),
        ("first_of(daly, on_notice)", False),
        ("hour", False),
        ("none", False),
    ],
)
def test_only_thresholds_are_asked_when_a_price_changes(text: str, *, watches: bool) -> None:
    assert watches_prices(parse(text)) is watches


@pytest.mark.parametrize(
    ("when", "price"), [(50.0, 1.0), (100.0, 1.0), (199.0, 1.0), (200.0, 3.0), (999.0, 3.0)]
)
def test_a_price_holds_until_the_next(when: float, price: float) -> None:
    prices = ((100.0, 1.0), (200.0, 3.0))
    assert price_at(prices, when) == price
    assert price_at((), when) is None


@pytest.mark.parametrize(
    ("begin", "end", "mean"),
    [
        (100.0, 200.0, 1.0),
        (150.0, 250.0, 2.0),
        (0.0, 400.0, 2.0),
        (200.0, 300.0, 3.0),
        (150.0, 150.0, 1.0),
    ],
)
def test_a_mean_price_is_weighed_by_time(begin: float, end: float, mean: float) -> None:
    assert mean_price(((100.0, 1.0), (200.0, 3.0)), begin, end) == pytest.approx(mean)
    assert mean_price((), begin, end) is None


POLICIES: list[AnyPolicy] = [
    Never(),
    Hour(),
    Threshold(),
    ThresholdStatic(),
    Daly(),
    OnNotice(),
    FirstOf((OnNotice(), Daly())),
]
prices = st.lists(
    st.tuples(st.floats(LAUNCH - 2000, LAUNCH + 20_000), st.floats(0.001, 0.1)), max_size=6
).map(lambda points: tuple(sorted(points)))


@given(
    st.sampled_from(POLICIES),
    st.floats(0, 15_000),
    st.floats(0, 1),
    prices,
    st.none() | st.floats(0, 1),
)
def test_no_policy_acts_before_it_said_unless_prices_change(
    policy: AnyPolicy,
    asked: float,
    later: float,
    points: tuple[tuple[float, float], ...],
    last: float | None,
) -> None:
    before = at(asked, prices=points, last=None if last is None else LAUNCH + asked * last)
    wake = min(policy.wake(before), LAUNCH + 30_000)
    if policy.decide(before) is not None:
        assert wake <= before.now or price_at(points, before.now) is not None
        return
    change = min((when for when, _ in points if when > before.now), default=math.inf)
    then = before.now + (min(wake, change) - before.now) * later * 0.999
    assert policy.decide(replace(before, now=then)) is None


@given(prices, st.floats(-1000, 9000), st.floats(1, 9000))
def test_a_mean_price_lies_among_the_prices(
    points: tuple[tuple[float, float], ...], begin: float, length: float
) -> None:
    mean = mean_price(points, LAUNCH + begin, LAUNCH + begin + length)
    if not points:
        assert mean is None
        return
    values = [price for _, price in points]
    assert mean is not None
    assert min(values) - 1e-12 <= mean <= max(values) + 1e-12


@pytest.mark.parametrize(
    "words",
    ["none", "daly", "first_of(on_notice, daly)", "first_of(on_notice, hour(margin=100.0))"],
)
def test_the_text_of_a_policy_is_read_again_as_the_same(words: str) -> None:
    assert text_of(parse(words)) == words
    assert parse(text_of(parse(words))) == parse(words)
