"""How many machines more, and when an idle one goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    Demand,
    GroupBursts,
    Growth,
    OnDemand,
    Ratio,
    SemiElastic,
    Size,
    Slurm,
    SteadyStream,
    Waiting,
    bounded,
    misfits,
    parse_growth,
)
from slurm_elastic.policies.growth.release import (
    AnyRelease,
    AtOnce,
    Delayed,
    Flagged,
    Idle,
    IdleOrder,
    parse_release,
    rank_key,
    residual,
)
from slurm_elastic.policies.money.bounds import Bounds, Spent, Window

NOW = 100_000
GROWTHS: list[AnyGrowth] = [
    Slurm(),
    OnDemand(),
    SteadyStream(),
    Bursts(),
    GroupBursts(),
    Ratio(),
    SemiElastic(),
]
RELEASES: list[AnyRelease] = [Idle(), AtOnce(), Delayed(), Flagged()]

jobs = st.builds(
    Waiting,
    nodes=st.integers(1, 64),
    limit=st.integers(1, 200_000),
    submit=st.integers(0, NOW),
)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    count = st.integers(0, 100)
    waiting = tuple(draw(st.lists(jobs, max_size=8)))
    return Demand(
        now=NOW,
        queue=waiting,
        fresh=waiting[draw(st.integers(0, 8)) :],
        running=draw(count),
        idle=draw(count),
        busy=draw(count),
        booting=draw(count),
        head_start=draw(st.none() | st.integers(NOW, NOW + 100_000)),
    )


def queue(count: int, limit: int, nodes: int = 1) -> tuple[Waiting, ...]:
    return tuple(Waiting(nodes, limit, NOW - 10) for _ in range(count))


def grown(policy: AnyGrowth, demand: Demand) -> int:
    growth = policy.grow(demand)
    return 0 if growth is None else growth.machines


def test_slurm_boots_nothing_beside_what_jobs_get() -> None:
    assert Slurm().grow(Demand(now=NOW, queue=queue(9, 100))) is None


def asked(jobs: tuple[Waiting, ...], **counts: int) -> Demand:
    """All of them new."""
    return Demand(now=NOW, queue=jobs, fresh=jobs, **counts)


def test_on_demand_boots_a_machine_for_each_node_once() -> None:
    three = queue(3, 100, nodes=2)
    assert grown(OnDemand(), asked(three)) == 6
    assert grown(OnDemand(), asked(three, idle=1, spare=1)) == 5
    assert grown(OnDemand(), asked(three, booting=2, spare=2)) == 4
    assert grown(OnDemand(), asked(three, booting=2)) == 6, "older jobs wait for these"
    assert grown(OnDemand(), Demand(now=NOW, queue=three, booting=6)) == 0


def test_steady_stream_keeps_one_machine_and_adds_one_at_a_time() -> None:
    policy = SteadyStream(waste=180)
    assert grown(policy, Demand(now=NOW)) == 1
    assert grown(policy, Demand(now=NOW, queue=queue(5, 180), busy=1, running=1)) == 0
    assert grown(policy, Demand(now=NOW, queue=queue(6, 180), busy=1, running=1)) == 1
    assert grown(policy, Demand(now=NOW, queue=queue(6, 180), busy=1, running=1, booting=1)) == 0
    assert policy.surplus(Demand(now=NOW, queue=queue(2, 180), busy=3, idle=1)) == 3
    assert policy.surplus(Demand(now=NOW, queue=queue(3, 180), busy=3)) == 0
    assert policy.surplus(Demand(now=NOW, idle=1)) == 0


def test_bursts_of_the_paper_boot_six_machines_for_twenty_jobs() -> None:
    assert grown(Bursts(waste=180), asked(queue(20, 120))) == 6
    assert grown(Bursts(waste=180), asked(queue(1, 60))) == 1
    assert grown(Bursts(waste=180), Demand(now=NOW, queue=queue(20, 120), booting=6)) == 0
    assert grown(Bursts(waste=180), Demand(now=NOW, queue=queue(14, 120), running=6, busy=6)) == 0


def test_a_parallel_job_is_not_left_waiting_for_machines_that_never_come() -> None:
    wide = queue(1, 60, nodes=8)
    for policy in (OnDemand(), SteadyStream(), Bursts(), GroupBursts(), Ratio()):
        assert grown(policy, Demand(now=NOW, queue=wide, idle=3)) == 5
        assert grown(policy, Demand(now=NOW, queue=wide, idle=3, booting=5)) == 0
        assert grown(policy, Demand(now=NOW, queue=wide, idle=7)) == 1


def test_group_bursts_boot_a_group_for_each_job() -> None:
    assert grown(GroupBursts(group=2), asked(queue(2, 3300), busy=10, running=10)) == 4
    assert GroupBursts().group == 2, "of the paper"


def test_ratio_grows_from_none_and_until_as_many_run_as_wait() -> None:
    assert grown(Ratio(slots=2), Demand(now=NOW, queue=queue(9, 60))) == 5
    assert grown(Ratio(slots=2), Demand(now=NOW, queue=queue(9, 60), running=4, busy=2)) == 3
    assert grown(Ratio(slots=2), Demand(now=NOW, queue=queue(4, 60), running=4, busy=2)) == 0
    assert grown(Ratio(), Demand(now=NOW, queue=queue(5, 60), running=4, busy=4)) == 1
    assert grown(Ratio(), Demand(now=NOW, queue=queue(5, 60), busy=4)) == 4, "as if one ran"


def test_semi_elastic_grows_for_a_head_larger_than_all_machines() -> None:
    demand = Demand(now=NOW, queue=queue(1, 60, nodes=8), busy=5, idle=2)
    assert grown(SemiElastic(), demand) == 6


def test_semi_elastic_holds_a_burst_until_the_wait_limit() -> None:
    jobs = (Waiting(4, 7200, NOW - 200),)
    short = Demand(now=NOW, queue=jobs, busy=5, head_start=NOW + 100)
    long = Demand(now=NOW, queue=jobs, busy=5, head_start=NOW + 101)
    assert grown(SemiElastic(wait_limit=300), short) == 0
    assert grown(SemiElastic(wait_limit=300), long) == 4


@pytest.mark.parametrize(("size", "nodes"), [(Size.FIRST, 2), (Size.SUM, 15), (Size.BEST, 14)])
def test_sizes_of_a_burst(size: Size, nodes: int) -> None:
    jobs = (Waiting(2, 600, 0), Waiting(1, 600, 0), Waiting(4, 7200, 0), Waiting(8, 7200, 0))
    assert SemiElastic(size=size).wanted(jobs) == nodes


def test_a_job_of_just_the_short_limit_counts_as_short() -> None:
    jobs = (Waiting(2, 3600, 0), Waiting(4, 3600, 0), Waiting(8, 3601, 0))
    assert SemiElastic(short=3600).wanted(jobs) == 10


@given(st.lists(jobs, min_size=1, max_size=8))
def test_best_size_lies_between_its_two_ends(waiting: list[Waiting]) -> None:
    best = [SemiElastic(short=short).wanted(waiting) for short in (0, 3600, 10**9)]
    assert best[0] == SemiElastic(size=Size.SUM).wanted(waiting)
    assert best[2] == SemiElastic(size=Size.FIRST).wanted(waiting)
    assert min(job.nodes for job in waiting) <= best[1] <= best[0]


@given(st.sampled_from(GROWTHS), demands())
def test_growth_is_positive_has_a_reason_and_needs_a_queue(
    policy: AnyGrowth, demand: Demand
) -> None:
    growth = policy.grow(demand)
    if growth is None:
        return
    assert growth.machines > 0
    assert growth.reason
    assert demand.queue or demand.up == 0


@given(st.sampled_from(GROWTHS), demands())
def test_what_was_asked_for_is_not_asked_for_again(policy: AnyGrowth, demand: Demand) -> None:
    """The next look, with those machines booting, never wants more than the first one."""
    first = grown(policy, demand)
    again = Demand(
        now=demand.now,
        queue=demand.queue,
        running=demand.running,
        idle=demand.idle,
        busy=demand.busy,
        booting=demand.booting + first,
        head_start=demand.head_start,
    )
    assert grown(policy, again) <= (0 if demand.up else first)


@given(demands(), st.integers(1, 500), st.integers(0, 50), st.integers(0, 200))
def test_bounds_only_ever_lower_a_growth(
    demand: Demand, machines: int, booting: int, most: int
) -> None:
    bounds = Bounds(machines=most, booting=booting)
    left = bounded(Growth(machines, "why"), demand, bounds, Spent())
    assert 0 <= left.machines <= machines
    assert left.machines == 0 or demand.booting + left.machines <= booting
    assert left.machines == 0 or demand.up + left.machines <= most
    assert left.reason.startswith("why")


@pytest.mark.parametrize(
    ("bounds", "left", "words"),
    [
        (Bounds(), 10, "why"),
        (Bounds(booting=12, machines=15), 10, "why"),
        (Bounds(booting=11), 9, "why; at most 11 machines boot at a time"),
        (Bounds(booting=1), 0, "why; at most 1 machines boot at a time"),
        (Bounds(machines=14), 9, "why; at most 14 machines"),
        (Bounds(machines=4), 0, "why; at most 4 machines"),
        (Bounds(booting=5, machines=7), 2, "why; at most 7 machines"),
    ],
)
def test_a_growth_goes_up_to_its_bounds_and_says_which_one_holds_it(
    bounds: Bounds, left: int, words: str
) -> None:
    """Five machines are there, two of them boot, and ten more are wanted."""
    demand = Demand(now=NOW, idle=1, busy=2, booting=2)
    assert bounded(Growth(10, "why"), demand, bounds, Spent()) == Growth(left, words)


def test_a_window_of_one_day_is_open_from_its_begin_to_before_its_end() -> None:
    day = Window(8 * 3600, 17 * 3600)
    times = [8 * 3600 - 1, 8 * 3600, 12 * 3600, 17 * 3600 - 1, 17 * 3600]
    assert [day.open(86400 * 9 + at) for at in times] == [False, True, True, True, False]
    night = Window(20 * 3600, 6 * 3600)
    times = [6 * 3600 - 1, 6 * 3600, 20 * 3600 - 1, 20 * 3600, 86400 - 1]
    assert [night.open(86400 * 9 + at) for at in times] == [True, False, False, True, True]
    assert not any(Window(3600, 3600).open(at) for at in (0, 3599, 3600, 3601))


def test_why_a_policy_grows_is_told_with_its_figures() -> None:
    six = queue(6, 180)
    told = [
        (growth.machines, str(growth.reason))
        for policy, demand in (
            (OnDemand(), asked(queue(3, 100, nodes=2))),
            (SteadyStream(), Demand(now=NOW)),
            (SteadyStream(waste=180), Demand(now=NOW, queue=six, busy=1, running=1)),
            (Bursts(waste=180), asked(queue(20, 120))),
            (GroupBursts(group=2), asked(six, running=1)),
            (Ratio(), Demand(now=NOW, queue=six, running=4, busy=1)),
            (OnDemand(), Demand(now=NOW, queue=queue(1, 60, nodes=8), idle=3)),
            (
                SemiElastic(),
                Demand(now=NOW, queue=queue(1, 60, nodes=8), busy=5, idle=1, booting=1),
            ),
            (SemiElastic(), Demand(now=NOW, queue=queue(1, 60, nodes=2), busy=5)),
            (SemiElastic(), Demand(now=NOW, queue=queue(1, 60), busy=1, head_start=NOW + 291)),
        )
        if (growth := policy.grow(demand))
    ]
    assert told == [
        (6, "3 new jobs wait for 6 nodes"),
        (1, "one machine is always kept"),
        (1, "18m of work wait, over 15m"),
        (6, "40m of new work, 6m a machine"),
        (12, "6 new jobs, 2 machines each"),
        (2, "6 jobs wait, 4 run"),
        (5, "nothing runs, and the head needs more"),
        (6, "the head needs 8 nodes, 7 are there"),
        (2, "the head would never start"),
        (1, "the head would have waited 5m 1s, over 5m"),
    ]


@pytest.mark.parametrize(
    ("policy", "demand"),
    [
        (OnDemand(), asked(queue(1, 60, nodes=2), idle=2, spare=2)),
        (GroupBursts(), asked(queue(1, 60), idle=2, spare=2)),
        (SemiElastic(), Demand(now=NOW, queue=queue(1, 60, nodes=2), idle=2)),
        (SemiElastic(), Demand(now=NOW, queue=queue(1, 60, nodes=2), busy=2, head_start=NOW)),
    ],
)
def test_nothing_is_grown_where_all_that_is_needed_is_there(
    policy: AnyGrowth, demand: Demand
) -> None:
    assert policy.grow(demand) is None


def test_a_spent_budget_stops_new_machines_and_says_so() -> None:
    bounds = Bounds(per_day=10.0, per_month=100.0)
    wanted = Growth(3, "why")
    assert bounded(wanted, Demand(now=NOW), bounds, Spent(day=9.99, month=50)).machines == 3
    day = bounded(wanted, Demand(now=NOW), bounds, Spent(day=10.0, month=50))
    month = bounded(wanted, Demand(now=NOW), bounds, Spent(day=1, month=100))
    assert day == Growth(0, "the budget of $10.00 a day is spent")
    assert month == Growth(0, "the budget of $100.00 a month is spent")


def test_windows_may_pass_midnight() -> None:
    night = Window(20 * 3600, 6 * 3600)
    assert [night.open(hour * 3600) for hour in (0, 5, 6, 19, 20, 23)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    bounds = Bounds(windows=(night,))
    noon = Demand(now=86400 * 9 + 12 * 3600)
    assert "outside" in bounded(Growth(1, ""), noon, bounds, Spent()).reason
    either = Bounds(windows=(night, Window(11 * 3600, 13 * 3600)))
    assert bounded(Growth(1, ""), noon, either, Spent()).machines == 1, "one of them is open"


@given(
    st.sampled_from(RELEASES),
    st.integers(0, NOW),
    st.integers(0, NOW),
    st.sampled_from([1, 60, 3600]),
    st.booleans(),
)
def test_a_machine_is_never_due_in_the_past(
    policy: AnyRelease, started: int, since: int, lease: int, public: bool
) -> None:
    since = max(started, since)
    assert policy.due(started, since, NOW, lease, public=public) >= NOW


@given(
    st.sampled_from([policy for policy in RELEASES if policy.stays]),
    st.integers(0, NOW),
    st.integers(0, 10**6),
    st.sampled_from([1, 60, 3600]),
    st.booleans(),
)
def test_what_is_due_stays_due_where_a_policy_says_so(
    policy: AnyRelease, since: int, later: int, lease: int, public: bool
) -> None:
    due = policy.due(since, since, NOW, lease, public=public) + later
    assert policy.due(since, since, due, lease, public=public) == due


@given(st.integers(0, NOW), st.integers(1, 3600))
def test_delayed_releases_within_the_margin_before_the_lease_ends(
    started: int, before_end: int
) -> None:
    due = Delayed(before_end=before_end).due(started, started, NOW, 3600, public=True)
    assert NOW <= due < NOW + 3600
    assert 1 <= residual(started, due, 3600) <= before_end


def test_delayed_on_the_premises_and_by_the_second_goes_by_idle_time() -> None:
    policy = Delayed(on_premises=600)
    assert policy.due(0, NOW, NOW, 3600, public=False) == NOW + 600
    assert policy.due(0, NOW, NOW, 1, public=True) == NOW + 600


def test_a_lease_of_two_seconds_is_one_and_due_times_are_the_first_that_count() -> None:
    policy = Delayed(before_end=180, on_premises=600)
    assert policy.due(NOW, NOW, NOW, 2, public=True) == NOW
    assert policy.due(NOW, NOW, NOW, 3600, public=True) == NOW + 3420
    assert policy.due(NOW - 3420, NOW, NOW, 3600, public=True) == NOW
    assert policy.due(NOW - 3419, NOW, NOW, 3600, public=True) == NOW + 1
    assert Idle(600).due(0, NOW - 599, NOW, 1, public=True) == NOW + 1


def test_orders_of_idle_machines() -> None:
    fresh, old = (NOW - 100, NOW - 5), (NOW - 3500, NOW - 50)
    firsts = {
        order: min((fresh, old), key=lambda m, o=order: rank_key(o, *m, NOW, 3600))
        for order in IdleOrder
        if order not in (IdleOrder.RANDOM, IdleOrder.PACKED)
    }
    assert firsts == {
        IdleOrder.MAX_MARGIN: fresh,
        IdleOrder.MIN_MARGIN: old,
        IdleOrder.MAX_IDLE: old,
        IdleOrder.MIN_IDLE: fresh,
    }


@pytest.mark.parametrize(
    ("growth", "release", "lease", "words"),
    [
        (Bursts(), AtOnce(), 1, "release at once"),
        (GroupBursts(), AtOnce(), 3600, "release at once"),
        (SteadyStream(), Idle(), 1, "keeps one machine"),
        (OnDemand(), Delayed(before_end=180), 120, "before the end of leases of 2m"),
        (Slurm(), Idle(0), 1, "before the job"),
    ],
)
def test_combinations_without_sense_are_named(
    growth: AnyGrowth, release: AnyRelease, lease: int, words: str
) -> None:
    found = misfits(growth, release, lease, boot=60)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    ("growth", "release", "lease", "boot", "min_idle", "makes_sense"),
    [
        (OnDemand(), Delayed(before_end=180), 180, 60, 0, False),
        (OnDemand(), Delayed(before_end=180), 181, 60, 0, True),
        (OnDemand(), Delayed(before_end=180), 1, 60, 0, True),
        (OnDemand(), Delayed(before_end=180), 2, 60, 0, False),
        (Slurm(), Idle(0), 1, 0, 0, True),
        (Slurm(), Idle(1), 1, 60, 0, True),
        (OnDemand(), Idle(0), 1, 60, 0, True),
        (SteadyStream(), Flagged(), 1, 60, 0, True),
        (SteadyStream(), Flagged(), 1, 60, 1, False),
        (SteadyStream(), None, 1, 60, 0, False),
        (Bursts(), None, 1, 60, 3, True),
    ],
)
def test_the_bounds_of_what_makes_sense_together(
    growth: AnyGrowth,
    release: AnyRelease | None,
    lease: int,
    boot: int,
    min_idle: int,
    *,
    makes_sense: bool,
) -> None:
    found = misfits(growth, release, lease, boot=boot, min_idle=min_idle)
    assert len(found) == (0 if makes_sense else 1)


def test_sensible_combinations_are_let_be() -> None:
    assert misfits(SemiElastic(), Delayed(before_end=60), 3600, boot=60) == []
    assert misfits(SteadyStream(), Flagged(), 1) == []
    assert misfits(OnDemand(), AtOnce(), 1) == []
    assert misfits(Slurm(), Idle(seconds=0), 1) == [], "no boot is waited for, unless one is told"


def test_policies_by_their_text() -> None:
    assert parse_growth("bursts(waste=120)") == Bursts(waste=120)
    assert parse_growth("semi_elastic(size=sum)") == SemiElastic(size=Size.SUM)
    assert parse_release("delayed(before_end=60)") == Delayed(before_end=60)


@pytest.mark.parametrize("text", ["burst", "bursts(waste=0)", "semi_elastic(size=most)", "("])
def test_a_text_that_is_no_growth_policy(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_growth(text)
