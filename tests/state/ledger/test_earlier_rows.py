"""A journal of schema 17, in which causes were sentences, goes on with machines running."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import NodeFailed
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.machine_ends import OutOfService, SuspendedBySlurm
from slurm_elastic.model.causes.pool_failures import BootsFailed, KeyNotBrought
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, COOL_DOWN, POLICY
from slurm_elastic.policies.launch.exclusions import sickly
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.earlier_rows import EARLIER_ROWS

DATA = Path(__file__).parents[2] / "data"
SOLD_OUT = "aws: InsufficientInstanceCapacity: none left"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of that release: four machines of one launch, another launch open, holds,
    breakers.
    """
    journal = tmp_path / "journal"
    journal.mkdir()
    shutil.copy(DATA / "ledger-schema-17.jsonl", journal / "ledger-000001.jsonl")
    return tmp_path / "ledger.db"


def test_machines_go_on_and_logic_reads_why_the_others_ended(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        machines = {m.instance.id: m for m in ledger.machines.live(ended_since=0.0)}
        (opened,) = ledger.launches.open()
    assert opened.nodes == ("pub5",)
    assert {name: m.cause for name, m in machines.items()} == {
        "i-1": None,
        "i-2": None,
        "i-3": SuspendedBySlurm(),
        "i-4": OutOfService(node_reason="Prolog error"),
    }
    assert str(machines["i-3"].cause_text) == "suspended by Slurm"


def test_breakers_and_holds_work_on_by_their_cause(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        found = {(one.kind, one.scope): one for one in ledger.exclusions.all()}
    paused, counted = found[BREAKER, "pub"], found[BREAKER, "other"]
    assert paused.cause == BootsFailed(
        in_a_row=3, node_reason="Prolog error", remedy="look at the Prolog"
    )
    assert (sickly(paused), sickly(counted)) == (True, False)
    assert counted.cause == BootsFailed()
    assert found[POLICY, "pub4"].cause == GrowthStartsIt()
    assert found[CAPACITY, "pub5"].cause == Quoted(text=SOLD_OUT)
    (cooling,) = (one for kind, one in ((k[0], v) for k, v in found.items()) if kind == COOL_DOWN)
    assert str(cooling.cause) == "gave 1 of 2 machines"


def test_decisions_keep_their_sentences(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        (launched,) = ledger.decisions.about("pub1")
        (key,) = ledger.decisions.about("pub2")
        (failed,) = ledger.decisions.about("pub4")
    assert str(launched.reason) == "the words of those days: it was cheap"
    assert launched.detail == {"a": 1}
    assert key.cause == KeyNotBrought(machine="i-2", error="Connection refused")
    assert failed.cause == NodeFailed(
        machine="i-4",
        cause=Quoted(text="Prolog error: the Prolog failed; do: look at the Prolog"),
    )


def test_it_opens_once_more_after_writes_of_this_release(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.machines.record_ending("aws", ["i-1"], SuspendedBySlurm(), 1_795_002_000.0)
        before = ledger.state()
    path.unlink()  # it is made of the journal, whose first lines are of schema 17
    with closing(Ledger(path)) as ledger:
        assert ledger.state() == before


@pytest.mark.parametrize("table", EARLIER_ROWS)
def test_a_row_of_today_stays(table: str) -> None:
    row = {"kind": "x", "cause" if table != "exclusions" else "because": '{"kind":"quoted"}'}
    assert EARLIER_ROWS[table](row) == row
