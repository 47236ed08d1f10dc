"""A job with a deadline on a spot market."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.policies.checkpoint.deadline import (
    ChoiceReason,
    DeadlineChoice,
    Race,
    Where,
    choose,
    greedy,
    pay,
    uniform,
)
from slurm_elastic.policies.checkpoint.market_spells import Past, Spells
from slurm_elastic.simulate.studies.deadline import Finish, pasts_by_tick, race

Expected = tuple[Where, ChoiceReason] | tuple[Where, ChoiceReason, float]
"""The fields of a choice."""
AT_EASE = Race(
    now=100, begin=0, deadline=1000, work=500, left=400, restart=10, look=5,
    where=Where.WAITING, spot=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (Where.WAITING, ChoiceReason.NO_SPOT_PATIENT)),
        ({"now": 560}, (Where.ON_DEMAND, ChoiceReason.NO_SPOT_SOON)),
        ({"price": 1.0, "spot": True}, (Where.ON_DEMAND, ChoiceReason.NO_CHEAPER)),
        (
            {"spot": True, "where": Where.ON_DEMAND, "up": 49.0},
            (Where.ON_DEMAND, ChoiceReason.SPOT_TOO_SHORT, 49),
        ),
        (
            {"spot": True, "where": Where.ON_DEMAND, "up": 50.0},
            (Where.SPOT, ChoiceReason.SPOT_FREE),
        ),
        ({"spot": True, "up": 0.0}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"spot": True}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"spot": True, "where": Where.SPOT}, (Where.SPOT, ChoiceReason.SPOT_GOES_ON)),
        ({"spot": True, "where": Where.ON_DEMAND}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"where": Where.ON_DEMAND}, (Where.ON_DEMAND, ChoiceReason.NO_SPOT)),
        ({"now": 585}, (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 15)),
        (
            {"now": 566, "spot": True, "where": Where.ON_DEMAND},
            (Where.ON_DEMAND, ChoiceReason.SPOT_TOO_LATE, 34),
        ),
        (
            {"now": 565, "spot": True, "where": Where.ON_DEMAND},
            (Where.SPOT, ChoiceReason.SPOT_FREE),
        ),
        ({"now": 575, "spot": True}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"now": 576, "spot": True}, (Where.ON_DEMAND, ChoiceReason.SPOT_TOO_LATE, 24)),
        ({"now": 585, "spot": True, "where": Where.SPOT}, (Where.SPOT, ChoiceReason.SPOT_GOES_ON)),
        (
            {"now": 586, "spot": True, "where": Where.SPOT},
            (Where.ON_DEMAND, ChoiceReason.SPOT_TOO_LATE, 14),
        ),
    ],
)
def test_the_choice(change: dict[str, object], expected: Expected) -> None:
    assert choose(replace(AT_EASE, **change)) == DeadlineChoice(*expected)


@pytest.mark.parametrize(
    ("price", "up", "where"),
    [
        (0.0, 49.0, Where.ON_DEMAND),
        (0.0, 50.0, Where.SPOT),
        (0.75, 59.0, Where.ON_DEMAND),
        (0.75, 60.0, Where.SPOT),
    ],
)
def test_seven_restarts_earn_the_way_and_more_where_spot_machines_save_little(
    price: float, up: float, where: Where
) -> None:
    """Nothing is known of the market: a spell goes on for its age and two restarts."""
    paying = replace(AT_EASE, spot=True, where=Where.ON_DEMAND, price=price)
    assert choose(replace(paying, up=up)).where is where


@pytest.mark.parametrize(
    ("lasted", "up", "where"),
    [
        (1000, 0.0, Where.SPOT),
        (20, 0.0, Where.ON_DEMAND),
        (20, 49.0, Where.ON_DEMAND),
        (20, 50.0, Where.SPOT),
    ],
)
def test_spot_machines_that_stayed_before_are_trusted_sooner(
    lasted: float, up: float, where: Where
) -> None:
    past = Past(ups=Spells.of([lasted] * 20))
    paying = replace(AT_EASE, spot=True, where=Where.ON_DEMAND, past=past)
    assert choose(replace(paying, up=up)).where is where


@pytest.mark.parametrize(
    ("change", "down", "where"),
    [
        ({"now": 200}, 900.0, Where.WAITING),
        ({"now": 201}, 900.0, Where.ON_DEMAND),
        ({}, 141.0, Where.WAITING),
        ({}, 142.0, Where.ON_DEMAND),
        ({"restart": 1}, 159.0, Where.WAITING),
        ({"restart": 1}, 160.0, Where.ON_DEMAND),
        ({"past": Past(downs=Spells.of([1000] * 20))}, 0.0, Where.ON_DEMAND),
        ({"past": Past(downs=Spells.of([160] * 20))}, 100.0, Where.WAITING),
        ({"past": Past(downs=Spells.of([10] * 20))}, 142.0, Where.ON_DEMAND),
        ({"past": Past(ups=Spells.of([1000] * 20))}, 0.0, Where.WAITING),
    ],
)
def test_a_job_behind_its_line_waits_out_short_outages_and_pays_in_long_ones(
    change: dict[str, object], down: float, where: Where
) -> None:
    """At 300 s there are 107.5 s of slack above the reserve."""
    behind = replace(AT_EASE, now=300, down=down)
    assert choose(replace(behind, **change)).where is where


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"now": 200}, (Where.WAITING, ChoiceReason.NO_SPOT_AHEAD)),
        ({"now": 201}, (Where.ON_DEMAND, ChoiceReason.NO_SPOT_BEHIND)),
        ({"now": 300, "spot": True}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"now": 570, "spot": True}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"now": 571, "spot": True}, (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 29)),
        (
            {"now": 570, "spot": True, "starting": 1.0},
            (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 29),
        ),
        ({"now": 585, "spot": True, "where": Where.SPOT}, (Where.SPOT, ChoiceReason.SPOT_GOES_ON)),
        (
            {"now": 586, "spot": True, "where": Where.SPOT},
            (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 14),
        ),
        ({"now": 585, "where": Where.SPOT}, (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 15)),
        ({"where": Where.SPOT}, (Where.WAITING, ChoiceReason.NO_SPOT_AHEAD)),
        ({"where": Where.ON_DEMAND}, (Where.ON_DEMAND, ChoiceReason.NO_SPOT)),
        (
            {"now": 180, "spot": True, "where": Where.ON_DEMAND},
            (Where.SPOT, ChoiceReason.SPOT_FREE_AND_AHEAD),
        ),
        (
            {"now": 181, "spot": True, "where": Where.ON_DEMAND},
            (Where.ON_DEMAND, ChoiceReason.BEHIND),
        ),
    ],
)
def test_uniform_progress_stays_by_its_line(change: dict[str, object], expected: Expected) -> None:
    assert uniform(replace(AT_EASE, **change)) == DeadlineChoice(*expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (Where.WAITING, ChoiceReason.NO_SPOT_PATIENT)),
        ({"spot": True}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"now": 575}, (Where.WAITING, ChoiceReason.NO_SPOT_PATIENT)),
        ({"now": 575, "spot": True}, (Where.SPOT, ChoiceReason.SPOT_FREE)),
        ({"now": 576, "spot": True}, (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 24)),
        ({"now": 575, "starting": 10.0}, (Where.WAITING, ChoiceReason.NO_SPOT_PATIENT)),
        ({"now": 576, "where": Where.ON_DEMAND}, (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 24)),
    ],
)
def test_greedy_pays_only_once_there_is_just_time_left(
    change: dict[str, object], expected: Expected
) -> None:
    assert greedy(replace(AT_EASE, **change)) == DeadlineChoice(*expected)


@pytest.mark.parametrize("spot", [True, False])
def test_who_only_pays_rides_no_spot_machine(*, spot: bool) -> None:
    assert pay(replace(AT_EASE, spot=spot)).where is Where.ON_DEMAND


@given(
    st.lists(st.booleans(), min_size=1, max_size=80),
    st.floats(60, 5000),
    st.floats(0, 3000),
    st.floats(0, 200),
    st.floats(1, 100),
)
def test_no_job_is_ever_late(
    available: list[bool], work: float, spare: float, restart: float, look: float
) -> None:
    deadline = work + 2 * restart + look + spare
    found = race(available, look, work=work, deadline=deadline, restart=restart, choose=choose)
    assert found.end <= deadline * (1 + 1e-9)
    assert found.spot + found.on_demand == pytest.approx(work)


def test_with_spot_machines_all_the_time_none_is_paid_for() -> None:
    found = race([True], 60, work=3600, deadline=7200, restart=100, choose=choose)
    assert (found.on_demand, found.restarts, found.end) == (0, 1, 3700)


def test_without_spot_machines_the_job_waits_in_between_and_is_in_time() -> None:
    found = race([False], 60, work=3600, deadline=7200, restart=100, choose=choose)
    assert found.spot == 0
    assert found.restarts == 1


@given(
    st.lists(st.booleans(), min_size=1, max_size=80),
    st.floats(60, 5000),
    st.floats(0, 3000),
    st.floats(0, 200),
    st.floats(1, 100),
    st.floats(0, 1.5),
    st.sampled_from([choose, uniform]),
    st.lists(st.booleans(), max_size=40),
)
def test_no_price_makes_a_job_late(
    available: list[bool],
    work: float,
    spare: float,
    restart: float,
    look: float,
    price: float,
    policy: Callable[[Race], DeadlineChoice],
    before: list[bool],
) -> None:
    deadline = work + 2 * restart + 2 * look + spare
    found = race(
        available, look, work=work, deadline=deadline, restart=restart, choose=policy, price=price,
        past=pasts_by_tick(before, look)[-1],
    )  # fmt: skip
    assert found.end <= deadline * (1 + 1e-9)


def test_spot_that_comes_and_goes_is_left_alone_where_it_would_not_earn_its_restarts() -> None:
    """Ten minutes on, ten off: a restart of twelve minutes costs more than each gives."""
    flapping = [True, False] * 400
    known = {"work": 48 * 3600.0, "deadline": 60 * 3600.0, "restart": 720.0}
    ours = race(flapping, 600, choose=choose, price=0.7, **known)
    printed = race(flapping, 600, choose=uniform, price=0.7, **known)

    def cost(found: Finish) -> float:
        return found.paid[Where.SPOT] * 0.7 + found.paid[Where.ON_DEMAND]

    assert cost(ours) < cost(printed)
    assert ours.restarts < printed.restarts


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (580, (Where.ON_DEMAND, ChoiceReason.NO_SPOT_SOON)),
        (581, (Where.ON_DEMAND, ChoiceReason.SLACK_USED, 19)),
    ],
)
def test_a_restart_and_two_looks_are_never_waited_away(now: float, expected: Expected) -> None:
    assert choose(replace(AT_EASE, now=now)) == DeadlineChoice(*expected)


@pytest.mark.parametrize(
    ("restart", "left", "where"),
    [
        (0, 725, Where.WAITING),
        (0, 726, Where.ON_DEMAND),
        (10, 711, Where.WAITING),
        (10, 712, Where.ON_DEMAND),
    ],
)
def test_a_share_of_the_slack_is_never_waited_for(
    restart: float, left: float, where: Where
) -> None:
    """The policy keeps 275 s of the straight line's 500 s of slack."""
    assert choose(replace(AT_EASE, now=0, left=left, restart=restart)).where is where


@pytest.mark.parametrize(
    ("up", "where"),
    [(4799.0, Where.ON_DEMAND), (4800.0, Where.SPOT)],
)
def test_two_hours_of_spot_machines_are_enough_where_restarts_are_long(
    up: float, where: Where
) -> None:
    long = replace(AT_EASE, deadline=100_000, restart=1200, spot=True, where=Where.ON_DEMAND)
    assert choose(replace(long, up=up)).where is where


@pytest.mark.parametrize("policy", [choose, uniform, greedy])
@pytest.mark.parametrize("now", [100, 200, 201, 400, 420, 575, 576])
@pytest.mark.parametrize("where", list(Where))
@pytest.mark.parametrize("spot", [True, False])
def test_nothing_goes_by_the_time_at_which_the_job_began(
    policy: Callable[[Race], DeadlineChoice], now: float, where: Where, *, spot: bool
) -> None:
    early = replace(AT_EASE, now=now, where=where, spot=spot)
    late = replace(early, now=now + 5000, begin=5000, deadline=6000)
    assert policy(late) == policy(early)
