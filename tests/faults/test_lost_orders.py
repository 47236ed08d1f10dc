"""Clouds without a token: an order whose answer is lost, whose machines lists lack for a minute,
and a daemon that is killed meanwhile. No node ever has two machines, and no job waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.testing.bench import TIMINGS, Bench, open_bench
from slurm_elastic.testing.matrix import HIDE_S, explained, nothing_left
from tests.faults.beds import all_beds
from tests.faults.cells import BY_LOOKUP

AFTER = "internal, after the effect"
LOST_ANSWERS = ("reset after", "time-out", "wrong data", AFTER)
NEVER = "reset before"


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[[Path], Any]]]:
    with all_beds(tmp_path_factory.mktemp("clouds")) as made:
        yield made


@pytest.fixture(params=[BY_LOOKUP[0], pytest.param(BY_LOOKUP[1], marks=pytest.mark.release)])
def bench(
    request: pytest.FixtureRequest, beds: dict[str, Callable[[Path], Any]]
) -> Iterator[Bench]:
    with open_bench(beds[request.param]) as made:
        yield made


def submitted(bench: Bench, fault: str) -> None:
    """A job for all nodes, and the answer to the launch is lost."""
    assert bench.cloud.hide(HIDE_S)
    if fault == AFTER:
        bench.bed.fail_after()
    else:
        assert bench.bed.strike(fault, "launch")
    before = bench.bed.standing()
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.until(lambda: bench.bed.standing() != before, "the order")


def served(bench: Bench) -> None:
    """One machine each, none other was ever made, and the job runs long before ResumeTimeout."""
    took = bench.until(lambda: bench.running() and bench.settled(), "a machine for each node")
    assert bench.bed.made() == len(bench.bed.alive()) == len(bench.nodes)
    explained(bench)
    assert took <= TIMINGS.resume_timeout / 2
    nothing_left(bench)


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
@pytest.mark.parametrize("fault", LOST_ANSWERS)
def test_what_may_have_been_started_is_not_started_again(
    bench: Bench, fault: str, killed: bool
) -> None:
    submitted(bench, fault)
    if killed:
        bench.restart()
    served(bench)


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_an_order_that_never_arrived_is_repeated_when_that_must_have_shown(
    bench: Bench, killed: bool
) -> None:
    submitted(bench, NEVER)
    if killed:
        bench.restart()
    began = bench.now
    made_at = began + bench.until(lambda: bench.bed.made() == len(bench.nodes), "the second order")
    assert made_at - began >= HIDE_S - 15
    served(bench)


def test_a_daemon_that_is_killed_again_and_again_waits_and_starts_nothing_twice(
    bench: Bench,
) -> None:
    submitted(bench, "reset after")
    for _ in range(4):
        bench.restart()
        bench.advance(25)
    assert bench.bed.made() == len(bench.nodes)
    served(bench)
