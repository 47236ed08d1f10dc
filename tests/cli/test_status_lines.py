"""The lines of sums in ``status``, and the row of the site's own nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from status_cases import NOW, busy_ledger, busy_slurm, config, job, node

from slurm_elastic.cli.operate import status
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.view import StatusView, status_view
from slurm_elastic.watch.view.narrowing import view_of_part

NODES = tuple(busy_slurm().nodes().values())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def text_of(view: StatusView, width: int) -> str:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        render(view, console)
    return captured.get()


def seen(state_dir: Path, slurm: FakeSlurm) -> StatusView:
    made = config(state_dir)
    return status_view(made, status.gather(made, slurm, NOW))


def waiting(number: int, reason: str, **fields: Any) -> SlurmJob:
    return SlurmJob(
        id=number, states=frozenset({"PENDING"}), user="erin", reason=reason,
        **{"submit": NOW - 240, "partitions": ("main",), **fields},
    )  # fmt: skip


def sold_out(names: Sequence[str]) -> list[Exclusion]:
    """The holds of nodes for which the cloud has no machine."""
    return [
        Exclusion(
            kind=CAPACITY, scope=name, pool="general", code="no capacity", since=NOW,
            until=NOW + 60, cause=Quoted(text="sold out"),
        )
        for name in names
    ]  # fmt: skip


def held_by_growth(name: str) -> Exclusion:
    return Exclusion(kind=POLICY, scope=name, pool="general", cause=GrowthStartsIt())


def test_one_line_counts_the_jobs_by_what_they_wait_for(ledger: Ledger, tmp_path: Path) -> None:
    jobs = [
        waiting(60, "Resources", tasks=2),
        waiting(61, "Priority"),
        waiting(62, "PartitionTimeLimit"),
        waiting(63, "JobHeldUser"),
        waiting(64, "Dependency"),
        waiting(65, "QOSMaxJobsPerUserLimit", submit=NOW - 30),
        waiting(66, "BeginTime", start=NOW + 600),
        waiting(67, "Reservation"),
    ]
    slurm = FakeSlurm(nodes=NODES, jobs=[job(41, "alice", "op1"), *jobs])
    text = text_of(seen(tmp_path, slurm), 160)
    (line,) = (x for x in text.splitlines() if x.startswith("Jobs: "))
    assert line.startswith("Jobs: 1 runs, 9 wait, the longest 4m: 3 for free nodes, ")
    for phrase in (
        "1 can never start", "1 held", "1 for other jobs", "1 for the begin time",
        "1 for a limit of the account or QOS", "1 for other reasons",
    ):  # fmt: skip
        assert phrase in " ".join(text.split())


def test_the_jobs_of_a_user_who_sees_no_others_are_called_theirs(
    ledger: Ledger, tmp_path: Path
) -> None:
    facts = replace(status.gather(config(tmp_path), busy_slurm(), NOW), private=("jobs",))
    text = text_of(status_view(config(tmp_path), facts), 80)
    assert "Your jobs: 3 run, 1 boots, 1 waits: 1 for free nodes" in text.splitlines()


def test_the_sites_own_nodes_have_a_row(ledger: Ledger, tmp_path: Path) -> None:
    own = node("static2", "MIXED"), node("static3", "DOWN", reason="disk")
    slurm = FakeSlurm(nodes=[*NODES, *own])
    view = seen(tmp_path, slurm)
    assert view.site_nodes is not None
    assert view.site_nodes.states == {"in use": 1, "idle": 1, "down": 1}
    assert view.site_nodes.nodes == "static[1-3]"
    (row,) = (x.split() for x in text_of(view, 80).splitlines() if x.startswith("site "))
    assert row[:6] == ["site", "3", "nodes", "1", "1", "0"]
    assert "site: 3 own nodes" in text_of(view, 50)
    part = view_of_part(config(tmp_path), status.gather(config(tmp_path), slurm, NOW), "aws", None)
    assert part.site_nodes is None
    assert part.queue == view.queue


def test_nodes_that_slurm_hides_are_not_called_absent(ledger: Ledger, tmp_path: Path) -> None:
    facts = replace(
        status.gather(config(tmp_path), busy_slurm(), NOW), nodes={}, private=("nodes",)
    )
    assert status_view(config(tmp_path), facts).site_nodes is None


@pytest.mark.parametrize("growth", [False, True])
def test_the_line_says_when_only_the_sites_own_nodes_may_start_a_job(
    ledger: Ledger, tmp_path: Path, growth: bool
) -> None:
    """The cloud is sold out: all nodes of its pool are held, perhaps by a growth policy, too."""
    names = [f"pub{number}" for number in range(1, 9)]
    slurm = FakeSlurm(
        nodes=[node(name, "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN") for name in names],
        jobs=[
            waiting(60, "Resources", partitions=("main", "burst")),
            waiting(61, "Resources", partitions=("main",)),
            waiting(62, "Resources", partitions=("burst",)),
            waiting(63, "Resources", partitions=("main", "burst", "onprem")),
        ],
    )
    facts = replace(
        status.gather(config(tmp_path), slurm, NOW),
        holds=[*sold_out(names), *(held_by_growth(name) for name in names if growth)],
    )
    view = status_view(config(tmp_path), facts)
    assert view.queue is not None
    assert view.queue.waits_for == {
        "for own nodes (no machine can start now)": 1,
        "for free nodes": 2,
        "for machines that cannot start now": 1,
    }


def test_a_machine_that_runs_jobs_may_be_free_later(ledger: Ledger, tmp_path: Path) -> None:
    """Only one node of the pool is kept, by an order; the others run jobs."""
    names = [f"pub{number}" for number in range(1, 9)]
    kept = node("pub1", "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN")
    slurm = FakeSlurm(
        nodes=[kept, *(node(name, "MIXED", "CLOUD") for name in names[1:])],
        jobs=[
            waiting(60, "Resources", partitions=("main", "burst")),
            *(job(41, "alice", name) for name in names[1:2]),
        ],
    )
    order = Exclusion(kind=OPERATOR, scope="pub1", pool="general", cause=Quoted(text="drained"))
    facts = replace(status.gather(config(tmp_path), slurm, NOW), holds=[order])
    queue = status_view(config(tmp_path), facts).queue
    assert queue is not None
    assert queue.waits_for == {"for busy nodes (no machine can start now)": 1}


def runs_on(name: str) -> SlurmJob:
    return job(40 + int(name[-1]), "alice", name)


def test_the_line_says_when_one_cloud_is_full_and_the_other_starts_no_machine(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A free node would start the job, but nothing can make one now."""
    names = [f"pub{number}" for number in range(1, 9)]
    lists = ("main", "onprem", "burst")
    for busy, phrase in (
        (("op1", "op2"), "for busy nodes (no machine can start now)"),
        (("op1",), "for free nodes"),
    ):
        states = {name: ("MIXED",) if name in busy else ("IDLE",) for name in ("op1", "op2")}
        slurm = FakeSlurm(
            nodes=[
                *(node(name, "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN") for name in names),
                *(node(name, *of_node) for name, of_node in states.items()),
            ],
            jobs=[waiting(60, "Resources", partitions=lists), *map(runs_on, busy)],
        )
        facts = replace(status.gather(config(tmp_path), slurm, NOW), holds=sold_out(names))
        queue = status_view(config(tmp_path), facts).queue
        assert queue is not None
        assert queue.waits_for == {phrase: 1}


def test_nodes_that_a_growth_policy_starts_on_demand_are_free(
    ledger: Ledger, tmp_path: Path
) -> None:
    slurm = FakeSlurm(
        nodes=[node("pub1", "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN")],
        jobs=[waiting(62, "Resources", partitions=("burst",))],
    )
    facts = replace(
        status.gather(config(tmp_path), slurm, NOW), holds=[held_by_growth("pub1")],
        obstacles=Obstacles(held={"general": str(GrowthStartsIt())}),
    )  # fmt: skip
    view = status_view(config(tmp_path), facts)
    assert view.queue is not None
    assert view.queue.waits_for == {"for free nodes": 1}
    assert view.queue.jobs[0].why == ""


def test_jobs_whose_nodes_boot_are_not_counted_as_running(ledger: Ledger, tmp_path: Path) -> None:
    boots = replace(job(42, "alice", "pub1"), states=frozenset({"RUNNING", "CONFIGURING"}))
    slurm = FakeSlurm(nodes=NODES, jobs=[job(41, "alice", "op1"), boots])
    assert "Jobs: 1 runs, 1 boots, none waits" in text_of(seen(tmp_path, slurm), 80)


@pytest.mark.parametrize(
    ("limit", "words"), [(None, "Machines: 5;"), (0, "Machines: 5 of at most 0;")]
)
def test_a_cap_of_zero_is_shown_as_a_cap(
    tmp_path: Path, ledger: Ledger, limit: int | None, words: str
) -> None:
    view = seen(tmp_path, busy_slurm())
    assert view.site is not None
    capped = replace(view, site=replace(view.site, machines=5, limit=limit))
    assert words in text_of(capped, 120)
