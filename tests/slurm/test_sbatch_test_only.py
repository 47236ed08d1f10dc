"""The output of sbatch for a job that is only tested."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.slurm.client.commands.sbatch_test_only import (
    count,
    mebibytes,
    seconds,
    understood,
)

SAID = """\
sbatch: defined options
sbatch: -------------------- --------------------
sbatch: comment             : key: value
sbatch: nodes               : 2-4
sbatch: time                : 1-02:03:04
sbatch: verbose             : 1
sbatch: -------------------- --------------------
sbatch: end of defined options
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30", 1800), ("1:30", 90), ("1:30:00", 5400), ("2-12", 216_000), ("1-02:03", 93_780),
        ("1-02:03:04", 93_784), ("UNLIMITED", None), ("INFINITE", None), ("", None),
    ],
)  # fmt: skip
def test_time_limits_have_sbatchs_forms(text: str, found: int | None) -> None:
    assert seconds(text) == found


def test_sizes_and_ranges() -> None:
    assert [mebibytes(text) for text in ("4G", "512M", "100", "2048K", "", "?")] == [
        4096, 512, 100, 2, 0, 0,
    ]  # fmt: skip
    assert [count(text) for text in ("3", "2-4", "", "8K")] == [3, 2, 1, 8]


def test_options_and_the_start_are_read() -> None:
    text = "sbatch: Job 7 to start at 2026-11-21T12:00:00 using 2 processors on nodes st1 in p\n"
    found = understood(SAID + text)
    assert found.options["comment"] == "key: value"
    assert found.options["nodes"] == "2-4"
    assert found.start is not None
    assert not found.refused


def test_a_job_that_no_node_can_have_still_has_options() -> None:
    found = understood(SAID + "allocation failure: Requested node configuration is not available\n")
    assert found.start is None
    assert found.refused == "Requested node configuration is not available"
    assert found.options["time"] == "1-02:03:04"


def test_a_start_that_slurmctld_does_not_know_is_none() -> None:
    text = "sbatch: Job 7 to start at Unknown using 2 processors on nodes st1 in partition p\n"
    found = understood(SAID + text)
    assert (found.start, found.refused) == (None, "")


def test_an_option_that_is_none_is_told() -> None:
    with pytest.raises(SlurmElasticError, match=r"rejects this: .*unrecognized"):
        understood("sbatch: unrecognized option '--x'\nTry \"sbatch --help\"\n")
