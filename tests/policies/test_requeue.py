"""A requeued job starts at once where slurmd cannot take it for killed, else a moment later."""

from __future__ import annotations

import pytest

from slurm_elastic.policies.repair.requeue import SETTLING, may_hurry

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("nodes", "gone", "waited", "may"),
    [
        (("pub1",), ("pub1",), 0.0, True),
        (("pub1", "pub2"), ("pub1", "pub2", "pub3"), 0.0, True),
        (("pub1", "pub2"), ("pub1",), 0.0, False),
        (("pub1", "pub2"), ("pub1",), SETTLING - 0.01, False),
        (("pub1", "pub2"), ("pub1",), SETTLING, True),
        (("pub1",), (), 0.0, False),
        ((), ("pub1",), 0.0, False),
        ((), (), SETTLING, True),
    ],
)
def test_only_a_job_that_may_get_a_node_again_waits(
    nodes: tuple[str, ...], gone: tuple[str, ...], waited: float, may: bool
) -> None:
    assert may_hurry(nodes, gone, NOW - waited, NOW) is may


def test_two_seconds_are_enough() -> None:
    assert may_hurry((), (), NOW - 2.0, NOW)
    assert not may_hurry((), (), NOW - 1.9, NOW)


def test_what_it_waits_is_longer_than_a_second_of_slurms_clock() -> None:
    """Both times are whole seconds: the later one has to be a full second on in any case."""
    assert SETTLING > 1.0
