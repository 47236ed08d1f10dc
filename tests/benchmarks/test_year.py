"""The benchmark of a year runs, and prunes as the daemon does."""

from __future__ import annotations

import pytest

from benchmarks import year

pytestmark = pytest.mark.release

SMALL = [
    "--days", "34", "--nodes", "200", "--machines", "100", "--jobs", "960", "--offers", "8",
    "--runs", "1",
]  # fmt: skip


def test_a_small_year_is_pruned_and_read():
    rows = {row.case: row for row in year.main(SMALL).rows}
    assert rows["days of decisions at the end"].ok
    assert rows["rows of machines at the end"].ours == 34 * 240
    assert rows["rows of runs at the end"].ours == 34 * 960
    assert rows["status, beside the first month"].ours > 0
    assert rows["a round, beside the first month"].ours > 0
