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
    ],
)
def test_a_cloud_is_open_to_the_partitions_that_it_lists(
    allowed: tuple[str, ...], partition: str, is_named: bool, expected: bool
) -> None:
    assert is_open(allowed, partition, is_named=is_named) is expected
    default = "other" if is_named else partition
    assert (not_open([partition], allowed, default) == "") is expected
