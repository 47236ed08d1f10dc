"""A purchase that no job uses is the last one for the jobs that it did not help."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.growth.unused_purchases import (
    IDLE_PROOF_S,
    LOST_BOOT_S,
    NodeUse,
    is_long_idle,
    not_counted,
    still_unhelped,
    unhelped,
    watched,
    watched_job,
    wishes,
)

T = 1_800_000_000.0
BOOTING, IDLE, LONG_IDLE, BUSY, OFF, TAKEN = NodeUse


def job(number: int = 1, **fields: Any) -> SlurmJob:
    values = {"partitions": ("aws",), "reason": "Resources", "limit": 600}
    return SlurmJob(id=number, states=frozenset({"PENDING"}), **(values | fields))


def purchase(*nodes: str, jobs: tuple[SlurmJob, ...] = (job(),)) -> Purchase:
    asked = {one.id: wishes(one, {}) for one in jobs}
    return Purchase(first_node=nodes[0], at=T, open=frozenset(nodes), jobs=asked)


def after(row: Purchase, *looks: dict[str, NodeUse]) -> Purchase:
    for number, use in enumerate(looks):
        row = watched(row, use, T + 5 * number)
    return row


def blamed(row: Purchase, *jobs: SlurmJob, enough: set[int] | None = None) -> list[int]:
    waiting = {one.id: watched_job(one, {}) for one in jobs}
    found = unhelped(row, waiting, lambda _: waiting if enough is None else enough, {}, T)
    return [one.job for one in found]


@pytest.mark.parametrize(
    ("looks", "unused", "is_open"),
    [
        ([OFF, BOOTING, IDLE, OFF], True, False),
        ([BOOTING, IDLE, LONG_IDLE], True, False),
        ([BOOTING, IDLE, BUSY], False, False),
        ([BOOTING, BUSY, OFF], False, False),
        ([OFF, BOOTING, IDLE, IDLE], False, True),
        # It never came up: failed boots have their own breaker.
        ([BOOTING, OFF], False, True),
        ([OFF], False, True),
        # Its cloud took it away before a job could start on it.
        ([BOOTING, IDLE, TAKEN, OFF], False, False),
        ([BOOTING, TAKEN], False, True),
        ([BOOTING, IDLE, LONG_IDLE, TAKEN], True, False),
    ],
)
def test_a_machine_is_unused_if_it_came_up_and_no_job_had_it(
    looks: list[NodeUse], *, unused: bool, is_open: bool
) -> None:
    row = after(purchase("pub1"), *({"pub1": look} for look in looks))
    assert (bool(row.unused), bool(row.open)) == (unused, is_open)
    assert blamed(row, job()) == ([1] if unused else [])


def test_a_machine_that_never_boots_is_waited_for_for_two_minutes() -> None:
    row = purchase("pub1")
    assert watched(row, {"pub1": OFF}, T + LOST_BOOT_S - 1).open
    lost = watched(row, {"pub1": OFF}, T + LOST_BOOT_S)
    assert (lost.open, lost.unused) == (frozenset(), frozenset())


def test_jobs_are_blamed_once_all_machines_are_judged() -> None:
    row = after(purchase("pub1", "pub2"), {"pub1": LONG_IDLE, "pub2": BOOTING})
    assert blamed(row, job()) == []
    assert blamed(watched(row, {"pub2": BUSY}, T), job()) == [1]


@pytest.mark.parametrize(
    "jobs",
    [(), (job(node_count=3),), (job(partitions=("aws", "batch")),), (job(restarts=1),), (job(2),)],
    ids=["gone", "asks for something else", "may start elsewhere", "has started", "another"],
)
def test_only_a_job_that_waits_on_with_the_same_wishes_is_blamed(
    jobs: tuple[SlurmJob, ...],
) -> None:
    assert blamed(after(purchase("pub1"), {"pub1": LONG_IDLE}), *jobs) == []


def test_a_job_that_needs_more_machines_is_not_blamed() -> None:
    row = after(purchase("pub1", jobs=(job(), job(2))), {"pub1": LONG_IDLE})
    assert blamed(row, job(), job(2), enough={2}) == [2]


CHANGES = [
    {"node_count": 2}, {"cpus": 4}, {"node_cpus": 2}, {"node_memory": 9}, {"gres": "gpu:1"},
    {"gres_cpus": "gpu:2"}, {"gres_memory": "gpu:2"},
    {"job_gres": "gpu:1"}, {"features": "big"}, {"partitions": ("aws", "b")},
    {"reservation": "r"}, {"licenses": "l"}, {"limit": 60}, {"required": ("pub1",)},
    {"excluded": ("pub1",)}, {"qos": "high"}, {"account": "arts"}, {"restarts": 1},
    {"reason": "JobHeldUser"}, {"reason": "Dependency"},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_job_counts_again_when_its_wishes_change(change: dict[str, Any]) -> None:
    row = UnhelpedJob(job=1, asks=wishes(job(), {}), since=T, reason="Resources")
    assert still_unhelped(row, watched_job(job(), {}))
    assert not still_unhelped(row, watched_job(job(**change), {}))


def test_the_limit_that_slurm_only_shows_is_no_wish() -> None:
    """It is MaxTime of the partition that Slurm tried last."""
    limits = {"aws": 3600.0, "batch": None}
    shown = [wishes(job(limit=one, partitions=("batch", "aws")), limits) for one in (None, 3600)]
    assert shown[0] == shown[1]
    assert wishes(job(limit=60, partitions=("batch", "aws")), limits) != shown[0]


@pytest.mark.parametrize("behind", ["Priority", "None"])
def test_a_job_behind_others_has_one_chance_more_when_it_comes_first(behind: str) -> None:
    row = UnhelpedJob(job=1, asks=wishes(job(), {}), since=T, reason=behind)
    assert still_unhelped(row, watched_job(job(reason=behind), {}))
    assert not still_unhelped(row, watched_job(job(reason="Resources"), {}))
    assert still_unhelped(replace(row, strikes=2), watched_job(job(reason="Resources"), {}))


USES = st.lists(
    st.dictionaries(st.sampled_from(("pub1", "pub2", "pub3")), st.sampled_from(NodeUse)),
    max_size=8,
)


@given(USES)
def test_a_used_machine_never_counts_as_unused_later(looks: list[dict[str, NodeUse]]) -> None:
    row = purchase("pub1", "pub2", "pub3")
    used: set[str] = set()
    for look in looks:
        before = row
        row = watched(row, look, T)
        used |= {node for node in before.open if look.get(node) is BUSY}
        assert not row.unused & used
        assert before.unused <= row.unused
        assert row.open <= before.open
        assert row.came_up.keys() <= row.open
    assert row.open or not row.came_up


@given(USES, st.integers(0, 7))
def test_what_is_remembered_is_enough_to_go_on(
    looks: list[dict[str, NodeUse]], restart: int
) -> None:
    """A restart between two looks changes nothing: the row is all that the policy knows."""
    row = purchase("pub1", "pub2")
    first = after(row, *looks[:restart])
    copied = Purchase(
        first_node=first.first_node, at=first.at, open=frozenset(sorted(first.open)),
        came_up=first.came_up, unused=first.unused, jobs=dict(first.jobs),
    )  # fmt: skip
    assert after(copied, *looks[restart:]) == after(first, *looks[restart:])


def test_a_pause_that_began_before_the_clock_was_set_back_is_over() -> None:
    row = UnhelpedJob(job=1, asks="", since=T + 5 * 86400.0)
    assert not_counted([row], T) == frozenset()
    assert not_counted([row], row.since) == {1}
    assert not_counted([row], row.until) == frozenset()


@pytest.mark.parametrize(
    ("idle_s", "is_proof"),
    [(0, False), (IDLE_PROOF_S - 1, False), (IDLE_PROOF_S, True), (-30, False), (-7200, True)],
)
def test_a_machine_is_proof_after_a_while_also_if_the_clock_was_set_back(
    idle_s: int, is_proof: bool
) -> None:
    """Two clocks may differ a little, and a step is no reason to wait for its length."""
    assert is_long_idle(1e9, 1e9 + idle_s) is is_proof
