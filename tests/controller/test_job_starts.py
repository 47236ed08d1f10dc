"""A job that a prolog let go is looked at once Slurm shows it as running, and none is forgotten."""

from __future__ import annotations

from slurm_elastic.controller.job_starts import RUNS_AFTER_S, JobStarts


def test_a_start_is_due_once_slurm_shows_it_and_until_somebody_looks() -> None:
    starts = JobStarts()
    assert not starts.are_due(100.0)
    starts.note(100.0)
    assert not starts.are_due(100.0 + RUNS_AFTER_S - 0.1)
    assert starts.are_due(100.0 + RUNS_AFTER_S)
    starts.look(110.0)
    assert not starts.are_due(200.0)


def test_a_start_right_before_a_look_is_due_after_it() -> None:
    starts = JobStarts()
    starts.note(100.0)
    starts.note(102.0)
    starts.look(103.0)
    assert not starts.are_due(104.0)
    assert starts.are_due(102.0 + RUNS_AFTER_S)


def test_a_look_without_a_start_changes_nothing() -> None:
    starts = JobStarts()
    starts.look(1.0)
    assert not starts.are_due(100.0)
