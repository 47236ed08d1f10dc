"""Starts ahead: the queue as it is, played forward with what jobs really use of their limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.simulate import start_forecast
from slurm_elastic.simulate.habits import PRIOR, Habits, RequestedJob
from slurm_elastic.simulate.start_forecast import Present, RunningJob, quantile

JOB = RequestedJob(size=1, limit=3600, user="ann", account="physics")


def test_a_job_starts_at_once_where_machines_are_free() -> None:
    present = Present(machines=4, running=(RunningJob(job=JOB, elapsed=60),))
    assert set(start_forecast.starts(present, JOB, Habits())) == {0}
    assert start_forecast.by_limits(present, JOB) == 0


def test_a_job_that_never_fits_has_no_start() -> None:
    big = RequestedJob(size=5, limit=60)
    assert start_forecast.starts(Present(machines=4), big, Habits()) == ()
    assert start_forecast.by_limits(Present(machines=4), big) is None


def test_limits_say_the_last_moment_and_habits_the_likely_one() -> None:
    habits = Habits()
    for run in range(360, 720, 10):
        habits.add(JOB, run)
    present = Present(machines=1, running=(RunningJob(job=JOB, elapsed=300),))
    found = start_forecast.starts(present, JOB, habits)
    assert start_forecast.by_limits(present, JOB) == 3300
    assert 60 <= quantile(found, 0.1) < quantile(found, 0.5) < quantile(found, 0.9) <= 420


def test_the_same_question_has_the_same_answer() -> None:
    present = Present(
        machines=2, running=(RunningJob(job=JOB, elapsed=5),) * 2, waiting=(JOB, JOB, JOB)
    )
    assert start_forecast.starts(present, JOB, Habits(), 3) == start_forecast.starts(
        present, JOB, Habits(), 3
    )


def test_one_kind_of_job_is_known_by_its_own_runs() -> None:
    habits = Habits()
    for _ in range(30):
        habits.add(RequestedJob(size=1, limit=3600, user="bob"), 3600)
    habits.add(JOB, 360)
    habits.add(JOB, 360)
    assert habits.remaining(JOB, 0, 0.5) == 360
    assert habits.remaining(RequestedJob(size=9, limit=60, user="eve"), 0, 0.1) == 60, (
        "as all others"
    )
    assert Habits().remaining(JOB, 0, 0.5) == int(PRIOR[10] * 3600), "nothing is known"


def test_what_ended_later_counts_too() -> None:
    habits = Habits()
    for run in (3600, 3600, 360, 36):
        habits.add(JOB, run)
    assert [habits.remaining(JOB, 0, place) for place in (0.0, 0.3, 0.9)] == [36, 360, 3600]
    habits.add(JOB, 1)
    assert habits.remaining(JOB, 0, 0.0) == 1


@given(
    runs=st.lists(st.integers(1, 5000), max_size=40),
    elapsed=st.integers(0, 5000),
    place=st.floats(0, 0.999),
)
def test_what_runs_goes_on_for_a_moment_at_least_and_never_beyond_its_limit(
    runs: list[int], elapsed: int, place: float
) -> None:
    habits = Habits()
    for run in runs:
        habits.add(JOB, run)
    left = habits.remaining(JOB, elapsed, place)
    assert 1 <= left <= max(JOB.limit - elapsed, 1)


def test_more_runs_than_machines_that_are_left_wait_for_their_end() -> None:
    present = Present(machines=1, running=(RunningJob(job=JOB, elapsed=3000),) * 3)
    assert start_forecast.by_limits(present, JOB) == 600
