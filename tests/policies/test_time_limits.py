"""The time limit that Slurm gives a job without one."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.launch.time_limits import default_limits, exceeding

HOUR = 3600.0
BOTH = ("batch", "aws")


@pytest.mark.parametrize(
    ("defaults", "most", "limits", "left_out"),
    [
        ({"batch": 600.0, "aws": HOUR}, {}, {"batch": 600.0, "aws": 600.0}, ()),
        ({"batch": 2 * HOUR}, {"aws": HOUR}, {"batch": 2 * HOUR, "aws": 2 * HOUR}, ("aws",)),
        ({"batch": None}, {"aws": HOUR}, {"batch": None, "aws": None}, ("aws",)),
        ({"aws": 600.0}, {"batch": None, "aws": HOUR}, {"batch": None, "aws": 600.0}, ()),
        ({}, {"batch": None, "aws": HOUR}, {"batch": None, "aws": HOUR}, ("aws",)),
        ({}, {"batch": HOUR, "aws": None}, {"batch": HOUR, "aws": None}, ()),
    ],
)
def test_the_first_partitions_default_holds_everywhere_else_each_gives_its_own(
    defaults: dict[str, float | None],
    most: dict[str, float | None],
    limits: dict[str, float | None],
    left_out: tuple[str, ...],
) -> None:
    assert default_limits(BOTH, defaults, most) == limits
    assert exceeding(BOTH, defaults, most) == left_out


def test_a_job_without_partitions_gets_no_limit_of_one() -> None:
    assert default_limits((), {"batch": 1.0}, {}) == {}
    assert exceeding((), {}, {}) == ()
