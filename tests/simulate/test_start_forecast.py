"""Starts ahead: the queue as it is, played forward with what jobs really use of their limits."""

from __future__ import annotations

from slurm_elastic.policies.launch.habits import Habits, RequestedJob
from slurm_elastic.simulate.studies import start_forecast
from slurm_elastic.simulate.studies.start_forecast import Present, RunningJob, quantile

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


def test_more_runs_than_machines_that_are_left_wait_for_their_end() -> None:
    present = Present(machines=1, running=(RunningJob(job=JOB, elapsed=3000),) * 3)
    assert start_forecast.by_limits(present, JOB) == 600
