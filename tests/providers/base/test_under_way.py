"""Which launches are under way."""

from __future__ import annotations

import pytest

from slurm_elastic.providers.base.under_way import LaunchesUnderWay


def test_a_launch_is_under_way_until_its_block_ends_also_by_an_error() -> None:
    launches = LaunchesUnderWay()
    with launches.hold("g1"), launches.hold("g2"):
        assert launches.now() == {"g1", "g2"}
    with pytest.raises(ZeroDivisionError), launches.hold("g3"):
        raise ZeroDivisionError
    assert launches.now() == frozenset()
