"""When Slurm's record proves that a job's number was given to another job."""

from __future__ import annotations

import pytest

from slurm_elastic.model.job_key import JobKey

SEEN = JobKey(number=42, uid=1000, attempt=1, submitted=500.0)


@pytest.mark.parametrize(
    "later",
    [
        SEEN,
        JobKey(number=42, uid=1000, attempt=2, submitted=900.0),
        # slurmctld's clock was set back before the requeue
        JobKey(number=42, uid=1000, attempt=2, submitted=400.0),
        # a person has restored an older state of slurmctld
        JobKey(number=42, uid=1000, attempt=0, submitted=100.0),
        JobKey(number=42, uid=1000),
        JobKey(number=42),
    ],
)
def test_a_requeued_job_is_the_same(later: JobKey) -> None:
    assert later.may_follow(SEEN)


@pytest.mark.parametrize(
    "later",
    [
        JobKey(number=43, uid=1000, attempt=1, submitted=500.0),
        JobKey(number=42, uid=2000, attempt=2, submitted=900.0),
        JobKey(number=42, uid=1000, attempt=0, submitted=900.0),
        JobKey(number=42, uid=1000, attempt=1, submitted=900.0),
    ],
)
def test_a_job_with_its_number_that_was_submitted_later_is_another_one(later: JobKey) -> None:
    assert not later.may_follow(SEEN)


def test_a_job_with_its_number_from_a_clock_that_was_set_back_is_another_one() -> None:
    assert not JobKey(number=42, uid=1000, attempt=1, submitted=100.0).may_follow(SEEN)
