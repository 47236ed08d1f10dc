"""Which partitions' jobs may use a cloud (``allow.partitions``)."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.launch.open_partitions import is_open, not_open


@pytest.mark.parametrize(
    ("allowed", "partition", "is_named", "expected"),
    [
        ((), "cpu", False, True),
        ((), "cpu", True, False),
        (("gpu",), "gpu", True, True),
        (("gpu",), "cpu", False, False),
        (("gpu", "cpu"), "cpu", False, True),
        # Slurm compares names of partitions with their case.
        (("gpu",), "GPU", True, False),
        (("default",), "cpu", False, True),
        (("default",), "gpu", True, False),
        (("default", "gpu"), "gpu", True, True),
    ],
)
def test_a_cloud_is_open_to_the_partitions_that_it_lists(
    allowed: tuple[str, ...], partition: str, is_named: bool, expected: bool
) -> None:
    assert is_open(allowed, partition, is_named=is_named, is_default=not is_named) is expected
    default = "other" if is_named else partition
    assert (not_open([partition], allowed, default) == "") is expected


def test_a_job_may_name_the_default_partition_if_its_word_is_listed() -> None:
    for allowed, expected in (((), False), (("gpu",), False), (("default",), True)):
        assert is_open(allowed, "cpu", is_named=True, is_default=True) is expected


def test_the_sentence_has_the_name_of_the_default_partition() -> None:
    assert not_open(["gpu"], ["default", "big"], "cpu") == (
        "the job names partition gpu; only jobs that name partition cpu or big"
    )
    # The default partition is not known, so the job may be for it.
    assert not_open(["gpu"], ["default"], "") == ""
