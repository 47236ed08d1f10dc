"""Whose a launch is: only where all of its jobs agree, and with words that clouds take."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.launch.owner import agreed

BOTH = ("account", "user")
ANN, BOB = {"account": "physics", "user": "ann"}, {"account": "physics", "user": "bob"}


@pytest.mark.parametrize(
    ("jobs", "owners", "found"),
    [
        ((1, 2), {1: ANN, 2: ANN}, ANN),
        ((1, 2), {1: ANN, 2: BOB}, {"account": "physics"}),
        ((1, 2), {1: ANN}, {}),
        ((), {1: ANN}, {}),
        ((1,), {1: {"user": "ann"}}, {"user": "ann"}),
        ((1,), {1: {"account": "a" * 65, "user": "DOM\\ann"}}, {}),
        ((1,), {1: {"account": "x\ny", "user": "-rf"}}, {}),
        ((1,), {1: {"user": "ann@uni.example"}}, {"user": "ann@uni.example"}),
    ],
)
def test_all_jobs_agree_or_there_is_no_tag(
    jobs: tuple[int, ...], owners: dict[int, dict[str, str]], found: dict[str, str]
) -> None:
    assert agreed(jobs, owners, BOTH) == found


def test_only_what_the_site_wants_is_told() -> None:
    assert agreed((1,), {1: ANN}, ("account",)) == {"account": "physics"}
    assert agreed((1,), {1: ANN}, ()) == {}
