"""The gres of a job's request, in all forms that Slurm and its commands write."""

from __future__ import annotations

import pytest

from slurm_elastic.model.gres import gpu_request, gres_count, gres_requests


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", [("gpu", 1)]),
        ("gpu:2", [("gpu", 2)]),
        ("gpu:a100:2", [("gpu:a100", 2)]),
        ("gpu:3090:1", [("gpu:3090", 1)]),
        ("gpu:3090", [("gpu", 3090)]),
        ("gres:gpu:2080ti", [("gpu:2080ti", 1)]),
        ("gres:gpu:2080ti:2", [("gpu:2080ti", 2)]),
        ("gres/gpu:1g.5gb=2", [("gpu:1g.5gb", 2)]),
        ("gres/gpu=2", [("gpu", 2)]),
        ("gres:bandwidth:2K", [("bandwidth", 2048)]),
        ("gpu:1,tpu:2 gres:shard:3", [("gpu", 1), ("tpu", 2), ("shard", 3)]),
        ("none gres:none cpu:4 mem=3", []),
        ("gpu:a:b:c", []),
        ("", []),
    ],
)
def test_each_gres_has_its_name_and_count(text: str, expected: list[tuple[str, int]]) -> None:
    assert list(gres_requests(text)) == expected


def test_a_name_without_a_type_counts_every_type() -> None:
    counts = {"gpu:3090": 2, "gpu:a100": 1, "gpus": 5}
    assert (gres_count(counts, "gpu"), gres_count(counts, "gpu:3090")) == (3, 2)


def test_options_about_gpus_are_gres() -> None:
    assert gpu_request("2") == "gpu:2"
    assert gpu_request("t4:1,3090:2") == "gpu:t4:1,gpu:3090:2"
    assert gpu_request("") == ""
