"""The benchmark of notices: the jobs with a notice are moved, and no others."""

from __future__ import annotations

from benchmarks import notice


def test_the_jobs_with_a_notice_come_back_from_their_images() -> None:
    at_once, *others = notice.many(10)
    assert at_once.case == "10 notices at once"
    assert min(row.ours for row in (at_once, *others)) > 0


def test_periodic_saves_run_meanwhile() -> None:
    (row,) = notice.while_others_are_saved(10)
    assert row.case == "10 notices while 32 jobs are saved for 20 s each"
    assert row.ours > 0
