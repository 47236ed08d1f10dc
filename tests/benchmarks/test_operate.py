"""The benchmark of the operators' screens runs, and its Slurm is believed."""

from __future__ import annotations

import pytest

from benchmarks import operate

pytestmark = pytest.mark.release

SMALL = ["--nodes", "300", "--machines", "200", "--runs", "1", "--jobs", "2000"]


def test_a_small_cluster_is_shown_and_explained():
    rows = {row.case: row for row in operate.main(SMALL).rows}
    assert rows["status: lines"].ok
    assert rows["explain n1: lines"].ok
    assert rows["status --all: lines"].ours > 200
    assert rows["a scrape: series"].ok
    painted = [row for case, row in rows.items() if case.startswith("the page: ")]
    assert len(painted) == 2 or "no chromium" in painted[0].case
    assert rows["a scrape: processor time"].ours > 0
    assert rows["cost --by job --format csv: lines"].ours >= 200
    assert rows["status: processor time"].ours > 0
    assert rows["2000 waiting jobs: looks, of a core"].ok
    for form in ("text", "JSON"):
        assert rows[f"2000 jobs as {form}: memory with two queues"].ok
    assert rows["2000 jobs as JSON: part of json.loads' memory"].ours > 0
