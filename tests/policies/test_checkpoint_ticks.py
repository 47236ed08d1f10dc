"""The checkpoint policies as they are driven: asked at ticks that come as they come, over prices and
notices that move, with saves that take their time.
"""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    Daly,
    FirstOf,
    Hour,
    OnNotice,
    Threshold,
    ThresholdStatic,
    mean_price,
    price_at,
)
from slurm_elastic.policies.checkpoint.situation import Situation

LAUNCH = 1_000_000.0
BID = 0.067
SPAN = 20_000.0
Points = tuple[tuple[float, float], ...]


class Drive(Struct, frozen=True):
    """The course of a run: ``ticks`` are the seconds from each look to the next."""

    ticks: tuple[float, ...]
    prices: Points
    notices: tuple[Notice, ...]
    dump: float
    started: float
    lease: float
    blocking: bool


class Save(Struct, frozen=True):
    """A decision to save, and the situation in which it was made."""

    situation: Situation
    reason: str


class Run(Struct):
    """The saves and the looks of one drive."""

    saves: list[Save] = field(default_factory=list)
    looks: list[Situation] = field(default_factory=list)


def drive(policy: AnyPolicy, how: Drive) -> Run:
    """As a service does it: the job is not asked about while it is being saved."""
    run, now, last = Run(), LAUNCH + how.started, None
    situation = Situation(
        job="7", now=now, launched=LAUNCH, started=now, dump=how.dump, bid=BID,
        lease=how.lease, blocking=how.blocking, cost=how.dump,
    )  # fmt: skip
    for tick in how.ticks:
        now += tick
        situation = replace(
            situation, now=now, last=last,
            prices=tuple(p for p in how.prices if p[0] <= now),
            notices=tuple(n for n in how.notices if n.seen <= now),
        )  # fmt: skip
        run.looks.append(situation)
        action = policy.decide(situation)
        if action is not None:
            run.saves.append(Save(situation, str(action.reason)))
            now = last = now + how.dump
    return run


@st.composite
def notices(draw: st.DrawFn) -> tuple[Notice, ...]:
    found = []
    for seen in draw(st.lists(st.floats(0, SPAN), max_size=4)):
        left = draw(st.none() | st.floats(0, 600))
        kind = draw(st.sampled_from(NoticeKind))
        deadline = None if left is None else LAUNCH + seen + left
        found.append(Notice(instance="i", kind=kind, seen=LAUNCH + seen, deadline=deadline))
    return tuple(found)


prices = st.lists(
    st.tuples(st.floats(LAUNCH - 700, LAUNCH + SPAN), st.floats(0.005, 0.08)), max_size=8
).map(lambda points: tuple(sorted(points)))
drives = st.builds(
    Drive,
    ticks=st.lists(st.floats(1, 900), min_size=5, max_size=60).map(tuple),
    prices=prices,
    notices=notices(),
    dump=st.floats(1, 400),
    started=st.floats(0, 5000),
    lease=st.sampled_from([1.0, 60.0, 3600.0, 1800.0, 86_400.0]),
    blocking=st.booleans(),
)


def paid(how: Drive, margin: float) -> float:
    """The seconds that count as one: the lease, where it holds a save."""
    return how.lease if how.lease > max(margin, how.dump) else 3600.0


@given(drives, st.sampled_from([0.0, 200.0, 700.0]))
def test_hour_saves_at_most_once_in_each_lease_and_before_its_end(
    how: Drive, margin: float
) -> None:
    length = paid(how, margin)
    saves = [s.situation for s in drive(Hour(margin), how).saves]
    leases = [math.floor((s.now - LAUNCH) / length) for s in saves]
    assert len(leases) == len(set(leases))
    for situation, lease in zip(saves, leases, strict=True):
        left = (lease + 1) * length - (situation.now - LAUNCH)
        assert 0 < left <= min(max(margin, how.dump), length) + 1e-6


@given(drives)
def test_hour_saves_in_each_lease_that_a_look_finds_at_its_end(how: Drive) -> None:
    run, length = drive(Hour(200), how), paid(how, 200)
    saved = {math.floor((s.situation.now - LAUNCH) / length) for s in run.saves}
    for look in run.looks:
        lease = math.floor((look.now - LAUNCH) / length)
        opens = (lease + 1) * length - max(200, how.dump)
        if look.now - LAUNCH >= opens > look.since - LAUNCH:
            assert lease in saved


@given(drives)
def test_the_thresholds_state_is_that_of_the_paper(how: Drive) -> None:
    """(launch price + bid) / 2; every 600 s from the launch on (mean of these + bid) / 2; at once
    after a checkpoint (price + bid) / 2. Kept here tick by tick, there computed anew.
    """
    policy = Threshold()
    for look in drive(policy, how).looks:
        if not look.prices:
            assert policy.threshold(look) is None
            continue
        events = [(LAUNCH, price_at(look.prices, LAUNCH))]
        at = LAUNCH + 600
        while at <= look.now:
            events.append((at, mean_price(look.prices, at - 600, at)))
            at += 600
        if look.last is not None:
            # One at the very moment of a point of the grid comes after it.
            events = [e for e in events if e[0] <= look.last] + [
                (look.last, price_at(look.prices, look.last)),
                *(e for e in events if e[0] > look.last),
            ]
        base = events[-1][1]
        found = policy.threshold(look)
        assert base is not None
        assert found is not None
        assert math.isclose(found, (base + BID) / 2, rel_tol=1e-9)


@given(drives)
def test_threshold_saves_as_hour_or_for_a_price_between_threshold_and_bid(how: Drive) -> None:
    for save in drive(Threshold(), how).saves:
        situation = save.situation
        if Hour(200).decide(situation) is not None:
            continue
        price, limit = price_at(situation.prices, situation.now), Threshold().threshold(situation)
        assert price is not None
        assert limit is not None
        assert limit < price <= BID


FIRST = FirstOf((OnNotice(slack=5), Hour(), Threshold(), ThresholdStatic(), Daly(mtti=3600)))


@given(drives)
def test_the_first_of_several_acts_when_any_does_and_for_its_reason(how: Drive) -> None:
    run = drive(FIRST, how)
    saved = {s.situation.now: s.reason for s in run.saves}
    for look in run.looks:
        said = [str(a.reason) for p in FIRST.policies if (a := p.decide(look)) is not None]
        assert saved.get(look.now) == (said[0] if said else None)


@given(drives, st.floats(0, 60))
def test_no_notice_is_answered_after_its_deadline_and_each_only_once(
    how: Drive, slack: float
) -> None:
    run = drive(OnNotice(slack), how)
    for number, save in enumerate(run.saves):
        situation = save.situation
        fits = [
            n for n in situation.notices
            if n.deadline is None or situation.now + how.dump + slack <= n.deadline
        ]  # fmt: skip
        assert fits
        if number:
            before = run.saves[number - 1].situation
            begun = before.now + (how.dump if how.blocking else 0.0)
            assert any(n.seen >= begun - 1e-6 for n in fits), (
                "a save answers what was known by then"
            )


@given(drives)
def test_two_saves_of_daly_are_an_interval_of_work_apart(how: Drive) -> None:
    policy = Daly(mtti=3600)
    saves = [s.situation for s in drive(policy, how).saves]
    for before, after in itertools.pairwise(saves):
        began = before.now + (how.dump if how.blocking else 0.0)
        assert after.now - began >= policy.interval(after) - 1e-6
        assert after.now >= before.now + how.dump, "one is over before the next begins"
