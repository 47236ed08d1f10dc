"""Who sees what of the records, by Slurm's PrivateData."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from ckpt_cases import migration_of
from ledger_cases import T0
from status_cases import NOW, busy_ledger, config

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.job_holds import JobHold
from slurm_elastic.model.memory import ChargedRun, UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.pool_order import PoolTerms
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.watch.door.questions import Chain, ChainAsk
from slurm_elastic.watch.door.records import read_chain, read_facts
from slurm_elastic.watch.door.visibility import (
    Viewer,
    day_seen,
    refusal,
    seen_chain,
    seen_facts,
    seen_terms,
)
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.attention import private_note
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.day import DaySpan

ALICE, BOB = 1001, 1002
JOBS = (
    SlurmJob(id=41, states=frozenset({"RUNNING"}), uid=ALICE, nodes=("op1",)),
    SlurmJob(id=42, states=frozenset({"RUNNING"}), uid=BOB, nodes=("pub1",)),
    SlurmJob(id=44, states=frozenset({"RUNNING"}), uid=ALICE, nodes=("pub2",)),
)


BY_RIGHTS = {
    "spent", "payers", "directives", "holds", "machines", "stopped", "open_launches", "checkpoints",
    "private", "obstacles", "consoles", "requeued",
}  # fmt: skip
FOR_ALL = {
    "now", "nodes", "jobs", "slurm_error", "ledger_error", "cool_downs", "breakers",
    "health", "heartbeat", "process_found", "pending", "mark", "end_only", "checkpoints_error",
    "head", "reservations", "partition_states", "max_times", "suspend_exclusions",
    "clock_lead_s",
}  # fmt: skip
"""What is Slurm's (nodes, jobs, reservations ...) is as slurmctld shows it to that user."""


def test_each_fact_is_shown_to_all_or_by_rights() -> None:
    assert set(Facts.__struct_fields__) == BY_RIGHTS | FOR_ALL, "say in seen_facts who may see it"


def test_the_facts_of_a_new_site_reach_users_who_are_not_root(tmp_path: Path) -> None:
    """JSON has no number for infinity, so the user's command could not read the answer."""
    Ledger(tmp_path / "ledger.db").close()
    told = msgspec.json.encode(read_facts(config(tmp_path), NOW))
    assert msgspec.json.encode(msgspec.json.decode(told, type=Facts)) == told


def viewer(uid: int, *hidden: str) -> Viewer:
    return Viewer.of(uid, hidden, JOBS)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    busy_ledger(tmp_path / "ledger.db").close()
    found = read_facts(config(tmp_path), NOW)
    memory = CheckpointFacts(migrations=(migration_of(41, ALICE), migration_of(42, BOB)))
    return msgspec.structs.replace(
        found,
        checkpoints=memory,
        payers={"account:physics": Spent(day=1.0, month=2.0)},
        obstacles=Obstacles(
            job_holds={job: JobHold(at=NOW, cause=Quoted(text="x")) for job in (41, 42)}
        ),
    )


def test_without_private_data_users_see_everything(facts: Facts) -> None:
    assert seen_facts(facts, viewer(ALICE, "cloud", "reservations")) is facts


def test_private_jobs_hide_others_jobs_and_not_the_machines(facts: Facts) -> None:
    seen = seen_facts(facts, viewer(ALICE, "jobs"))
    assert [m.instance.id for m in seen.machines] == [m.instance.id for m in facts.machines]
    assert {job for m in seen.machines for job in m.jobs} <= {41, 44}
    assert {job for launch in seen.open_launches for job in launch.jobs} <= {41, 44}
    assert not any(m.accounts for m in seen.machines)
    assert seen.checkpoints is not None
    assert [r.run.job for r in seen.checkpoints.migrations] == [41]
    assert list(seen.obstacles.job_holds) == [41]
    assert seen.private == ("jobs",)
    assert "PrivateData=jobs" in private_note(seen.private)


def test_private_nodes_leave_the_machines_of_own_jobs(facts: Facts) -> None:
    seen = seen_facts(facts, viewer(BOB, "nodes"))
    assert {m.instance.node for m in seen.machines if not m.has_ended} == {"pub1"}
    assert seen.holds == ()
    assert seen.open_launches == ()
    assert seen_facts(facts, viewer(1003, "nodes")).machines == ()


def test_stopped_machines_are_hidden_like_others(facts: Facts) -> None:
    stopped = facts.machines[0]
    own = msgspec.structs.replace(stopped, jobs=(42,), accounts={"physics": 1})
    facts = msgspec.structs.replace(facts, stopped=(msgspec.structs.replace(own, jobs=(7,)), own))
    assert seen_facts(facts, viewer(BOB, "nodes")).stopped == (own,)
    assert seen_facts(facts, viewer(1003, "nodes")).stopped == ()
    seen = seen_facts(facts, viewer(BOB, "jobs")).stopped
    assert [(machine.jobs, machine.accounts) for machine in seen] == [((), {}), ((42,), {})]


@pytest.mark.parametrize("word", ["usage", "accounts"])
def test_private_usage_hides_what_accounts_have_spent(facts: Facts, word: str) -> None:
    seen = seen_facts(facts, viewer(ALICE, word))
    assert (seen.payers, seen.spent) == ({}, {})
    assert len(seen.machines) == len(facts.machines)


def chain(path: Path, subject: str, about: str = "job") -> Chain:
    busy_ledger(path / "ledger.db").close()
    ask = msgspec.convert({"ask": "chain", "about": about, "name": subject}, ChainAsk)
    return read_chain(config(path), ask, NOW)


def test_a_users_own_job_is_told_and_anothers_is_not(tmp_path: Path) -> None:
    own, other = ChainAsk(about="job", name="42"), ChainAsk(about="job", name="41")
    assert refusal(own, viewer(BOB, "jobs")) == ""
    assert "job 41 is not one of your jobs" in refusal(other, viewer(BOB, "jobs"))
    unsubmitted = ChainAsk(about="job", name="0")
    assert refusal(unsubmitted, viewer(BOB, "jobs")) == "", "price asks what stops the pools"
    assert "job 7 is not one of your jobs" in refusal(
        ChainAsk(about="job", name="7"), viewer(BOB, "jobs")
    ), "whether there is one is not told"
    assert refusal(other, viewer(BOB, "nodes")) == ""
    told = seen_chain(chain(tmp_path, "42"), viewer(BOB, "jobs"))
    kinds = [d.kind for d in told.decisions]
    assert kinds == ["ranked", "launched", "requeued", "terminated"]


def test_a_nodes_chain_lacks_what_is_of_others_jobs(tmp_path: Path) -> None:
    whole = chain(tmp_path, "pub1", "node")
    told = seen_chain(whole, viewer(BOB, "jobs"))
    assert [d.kind for d in told.decisions] == ["dropped", "ranked", "launched", "terminated"]
    assert not any("job:44" in d.subjects for d in told.decisions)


def test_a_decision_on_several_jobs_keeps_the_users_own_alone() -> None:
    both = Decision(
        at=T0, correlation="c", kind="ranked", subjects=("pub1", "job:41", "job:42"), cause=Quoted(text="r"),
        detail={"jobs": {"41": "pub1", "42": "pub2"}, "ranked": [["offer", "cheapest"]]},
    )  # fmt: skip
    (told,) = seen_chain(Chain(decisions=(both,)), viewer(BOB, "jobs")).decisions
    assert told.subjects == ("pub1", "job:42")
    assert told.detail == {"ranked": [["offer", "cheapest"]]}


def test_jobs_that_growth_does_not_count_are_shown_by_rights(facts: Facts) -> None:
    rows = tuple(UnhelpedJob(job=n, asks="", since=T0, nodes=("pub1",)) for n in (41, 42))
    obstacles = Obstacles(unhelped=rows)
    found = msgspec.structs.replace(facts, obstacles=obstacles)
    assert seen_facts(found, viewer(BOB)).obstacles.unhelped == rows
    assert seen_facts(found, viewer(BOB, "jobs")).obstacles.unhelped == rows[1:]
    chain = seen_chain(Chain(obstacles=obstacles), viewer(BOB, "jobs", "nodes"))
    (own,) = chain.obstacles.unhelped
    assert (own.job, own.nodes) == (42, ())


def test_private_nodes_are_refused_but_for_those_of_own_jobs() -> None:
    assert refusal(ChainAsk(about="node", name="pub1"), viewer(BOB, "nodes")) == ""
    assert "PrivateData=nodes" in refusal(
        ChainAsk(about="node", name="pub1"), viewer(ALICE, "nodes")
    )


@pytest.mark.parametrize("span", list(DaySpan))
def test_hours_and_days_hide_what_a_day_hides(facts: Facts, span: DaySpan) -> None:
    runs = [
        ChargedRun(job=42, begin=NOW - 60, uid=BOB),
        ChargedRun(job=44, begin=NOW - 60, uid=ALICE),
    ]
    for who, machines, running in (
        (None, 6, 2), (viewer(BOB), 6, 2), (viewer(BOB, "jobs"), 6, 1),
        (viewer(BOB, "jobs", "nodes"), 1, 1),
    ):  # fmt: skip
        day = day_seen(facts.machines, runs, NOW, span, who)
        assert sum(counts[-1] for counts in day.machines.values()) == machines
        assert day.running[-1] == running
        assert day.private == (() if who is None else who.hidden_names)


def test_private_data_hides_why_a_cloud_cannot_sell() -> None:
    table = tuple(
        PoolTerms(pool=name, cloud=name, partition=name, unavailable=cause)
        for name, cause in (("a", Quoted(text="$5 of $5 spent")), ("b", None))
    )
    assert seen_terms(table, viewer(ALICE)) == table
    assert seen_terms(table, viewer(ALICE, "jobs")) == table
    for word in ("usage", "nodes"):
        seen = seen_terms(table, viewer(ALICE, word))
        assert [str(row.unavailable) for row in seen] == ["it cannot sell now", "None"]
        assert seen[1] == table[1]
