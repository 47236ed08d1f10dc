"""The last 24 hours as series."""

from __future__ import annotations

import random

import pytest
from ledger_cases import instance
from msgspec.structs import replace

from slurm_elastic.model_ledger import Machine, Run
from slurm_elastic.model_slurm import SlurmJob
from slurm_elastic.view.day import SPAN, STEP, day_view, still_waiting

NOW = 1_800_000_000.0


def machine(launched: float, ended: float | None = None, **more: object) -> Machine:
    one = replace(instance("i-1", launched=launched), price=0.5)
    return Machine(instance=one, pool="p", ended=ended, **more)  # type: ignore[arg-type]


def test_the_last_point_is_now_and_the_first_a_day_ago() -> None:
    day = day_view([machine(NOW - 2 * SPAN)], [], NOW)
    assert (day.begin, day.begin + (day.points - 1) * day.step) == (NOW - SPAN, NOW)
    assert day.machines == {"spot": [1] * day.points}
    assert day.dollars == {"spot": [0.5] * day.points}
    assert day_view([], [], NOW).machines == {}


def test_a_machine_boots_until_it_registers_or_leaves() -> None:
    day = day_view(
        [machine(NOW - 1000, registered=NOW - 400), machine(NOW - 1000, suspending=NOW - 700),
         machine(NOW - 500), machine(NOW - 900, NOW - 600, registered=NOW - 800)], [], NOW
    )  # fmt: skip
    assert day.booting[-5:] == [0, 3, 1, 1, 1]
    assert day.machines["spot"][-5:] == [0, 3, 2, 3, 3]


@pytest.mark.parametrize("seed", range(5))
def test_each_point_is_what_a_count_at_that_moment_says(seed: int) -> None:
    chance = random.Random(seed)
    spans = []
    for _ in range(30):
        begin = NOW - chance.uniform(0, 1.2 * SPAN)
        end = None if chance.random() < 0.3 else begin + chance.uniform(0, NOW - begin)
        spans.append((begin, end))
    day = day_view([], [Run(job=n, begin=b, end=e) for n, (b, e) in enumerate(spans)], NOW)
    for i, count in enumerate(day.running):
        at = day.begin + i * STEP
        assert count == sum(b <= at and (e is None or at < e) for b, e in spans)


def test_jobs_wait_from_their_submission_on() -> None:
    waiting = frozenset({"PENDING"})
    jobs = [
        SlurmJob(id=1, states=waiting, submit=NOW - 400, tasks=3),
        SlurmJob(id=2, states=waiting, submit=NOW - 9 * SPAN),
        SlurmJob(id=3, states=frozenset({"RUNNING"}), submit=NOW - 400),
    ]
    assert still_waiting(jobs, NOW)[-3:] == [1, 4, 4]
