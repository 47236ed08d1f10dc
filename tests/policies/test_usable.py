"""Which nodes and licences a waiting job may get."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.model.slurm import Reservation, SlurmJob
from slurm_elastic.policies.growth.usable import (
    avoided_nodes,
    exceeds_max_time,
    is_within,
    licensed_tasks,
    reserved_nodes,
)

HOUR = 3600


def job(number: int = 1, **fields: Any) -> SlurmJob:
    return SlurmJob(id=number, states=frozenset({"PENDING"}), **fields)


def reservation(**fields: Any) -> Reservation:
    values: dict[str, Any] = {"name": "fut", "start": 1000.0, "end": 2000.0, "nodes": ("pub1",)}
    return Reservation(**(values | fields))


@pytest.mark.parametrize(
    ("begin", "end", "fields", "own", "avoided"),
    [
        (0, 1000, {}, "", set()),
        (0, 1001, {}, "", {"pub1"}),
        (1999, 9000, {}, "", {"pub1"}),
        (2000, 9000, {}, "", set()),
        (0, 9000, {}, "fut", set()),
        (0, 9000, {}, "other,fut", set()),
        (0, 9000, {}, "other", {"pub1"}),
        (0, 9000, {"is_partial": True}, "", set()),
    ],
)
def test_a_reservation_keeps_its_nodes_from_jobs_that_would_run_into_it(
    begin: int, end: int, fields: dict[str, Any], own: str, avoided: set[str]
) -> None:
    rows = [row for row in [reservation(**fields)] if is_within(row, begin, end)]
    found = avoided_nodes(job(reservation=own), ("x9",), rows)
    assert found == {"x9"} | avoided


def test_a_job_in_a_reservation_has_no_other_nodes() -> None:
    rows = [reservation(), reservation(name="licences", nodes=())]
    assert reserved_nodes(job(reservation="fut"), rows) == {"pub1"}
    assert reserved_nodes(job(reservation="licences"), rows) is None
    assert reserved_nodes(job(), rows) is None


@pytest.mark.parametrize(
    ("limit", "partitions", "is_fixed", "exceeds"),
    [
        (HOUR, ("aws",), False, False),
        (HOUR + 60, ("aws",), False, True),
        (None, ("aws",), False, True),
        # As Slurm shows a job without a limit of its own that it tried in batch last.
        (None, ("batch", "aws"), False, False),
        (8 * HOUR, ("batch", "long", "aws"), False, False),
        (7 * HOUR, ("batch", "long", "aws"), False, True),
        # As the first task that started in batch has left it to the others.
        (None, ("batch", "aws"), True, True),
        (8 * HOUR, ("long", "aws"), True, True),
        (None, ("aws", "batch"), True, True),
    ],
)
def test_a_limit_over_the_partitions_is_told_from_one_that_slurm_only_shows(
    limit: int | None, partitions: tuple[str, ...], *, is_fixed: bool, exceeds: bool
) -> None:
    most = {"aws": HOUR, "long": 8 * HOUR, "batch": None}
    one = job(limit=limit, partitions=partitions)
    assert exceeds_max_time(one, "aws", most, is_fixed=is_fixed) is exceeds
    assert not exceeds_max_time(one, "batch", most, is_fixed=is_fixed)
    assert not exceeds_max_time(one, "unknown", most, is_fixed=is_fixed)


@pytest.mark.parametrize(
    ("reason", "exceeds"),
    [
        ("Resources", False), ("Priority", False), ("None", True), ("", True),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs", False),
    ],
)  # fmt: skip
def test_a_limit_that_slurm_admits_in_the_only_partition_is_not_over_it(
    reason: str, *, exceeds: bool
) -> None:
    """As by a QOS with the flag PartitionTimeLimit, or after root has raised the limit."""
    one = job(limit=2 * HOUR, partitions=("aws",), reason=reason)
    assert exceeds_max_time(one, "aws", {"aws": HOUR}, is_fixed=False) is exceeds


@pytest.mark.parametrize(("min_limit", "exceeds"), [(0, True), (HOUR, False), (HOUR + 60, True)])
def test_a_limit_that_backfill_may_lower_to_the_partitions_is_not_over_it(
    min_limit: int, *, exceeds: bool
) -> None:
    one = job(limit=2 * HOUR, min_limit=min_limit, partitions=("aws",))
    assert exceeds_max_time(one, "aws", {"aws": HOUR}, is_fixed=False) is exceeds


@pytest.mark.parametrize(
    ("text", "tasks", "count", "left"),
    [
        ("", 3, 3, {"matlab": 5, "ansys": 1}),
        ("matlab", 3, 3, {"matlab": 2, "ansys": 1}),
        ("matlab:2", 3, 2, {"matlab": 1, "ansys": 1}),
        ("matlab:2,ansys", 3, 1, {"matlab": 3, "ansys": 0}),
        ("matlab:6", 1, 0, {"matlab": 5, "ansys": 1}),
        ("ansys:2|matlab:5", 1, 1, {"matlab": 0, "ansys": 1}),
        ("unknown:9", 1, 1, {"matlab": 5, "ansys": 1}),
    ],
)
def test_as_many_tasks_as_there_are_licences(
    text: str, tasks: int, count: int, left: dict[str, int]
) -> None:
    assert licensed_tasks(text, tasks, {"matlab": 5, "ansys": 1}) == (count, left)


@given(
    st.lists(st.tuples(st.sampled_from(("a", "a:2", "b:3,a", "a|b:2", "c")), st.integers(1, 9))),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_licences_are_never_given_twice(jobs: list[tuple[str, int]], a: int, b: int) -> None:
    free: Any = {"a": a, "b": b}
    for text, tasks in jobs:
        count, left = licensed_tasks(text, tasks, free)
        assert 0 <= count <= tasks
        assert all(0 <= left[name] <= free[name] for name in free)
        free = left
