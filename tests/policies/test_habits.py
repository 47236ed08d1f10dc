"""Run times are predicted from the earlier jobs that are most similar."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.launch.habits import PRIOR, Habits, RequestedJob

JOB = RequestedJob(size=1, limit=3600, user="ann", account="physics")


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
