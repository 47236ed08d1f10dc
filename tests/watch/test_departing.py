"""Machines that are taken or sent away say so, and those that nobody can help come first."""

from __future__ import annotations

from pathlib import Path

import pytest
from ckpt_cases import migration_of
from ledger_cases import T0, instance
from msgspec.structs import replace
from status_cases import NOW, config, job, node

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.hindrances import JobHindered, SaveObstacleKind
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.directive import Departure, Directive, ReplacementMachine, Replacements
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.state.ckptstate.facts import (
    Migration,
    MigrationStep,
    RecordedNotice,
    UnsavableRun,
)
from slurm_elastic.state.ledger import Machine
from slurm_elastic.watch.view import Facts, StatusView, status_view
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.rows import AttentionLevel

UNSAVABLE = UnsavableRun(
    job=42, label="42", attempt=0, method="criu", at=NOW,
    cause=JobHindered(obstacle=SaveObstacleKind.FILE_LOCK),
)  # fmt: skip


def seen(directory: Path, at: SlurmNode, **facts: object) -> StatusView:
    """One machine, pub1, with job 42 on it where its node is busy."""
    jobs = (job(42, "alice", "pub1"),) if "ALLOCATED" in at.states else ()
    machine = Machine(instance=instance("i-1", "pub1", launched=T0), pool="general")
    return status_view(
        config(directory),
        Facts(now=NOW, nodes={"pub1": at}, jobs=jobs, machines=(machine,), **facts),  # type: ignore[arg-type]
    )


def warned(
    *moves: Migration, kind: NoticeKind = NoticeKind.INTERRUPTION, left: float | None = 60.0,
    unsavable: tuple[UnsavableRun, ...] = (),
) -> CheckpointFacts:  # fmt: skip
    deadline = None if left is None else NOW + left
    notice = Notice(instance="i-1", kind=kind, seen=NOW - 60, deadline=deadline)
    one = RecordedNotice(key="n1", notice=notice, source="EventBridge")
    return CheckpointFacts(warned=(one,), migrations=moves, unsavable=unsavable)


def move(**fields: object) -> Migration:
    made = migration_of(42, 1001)
    run = replace(made.run, job=42, label="42", nodes=("pub1",))
    return replace(made, run=run, threatened=("pub1",), **fields)


@pytest.mark.parametrize(
    ("told", "follows"),
    [
        (warned(), "is taken away in 1m (interruption)"),
        (warned(left=-5.0), "is taken away now (interruption)"),
        (warned(left=None), "is taken away (interruption)"),
        (warned(kind=NoticeKind.REBALANCE), "may be taken away (rebalance)"),
        (
            warned(move(step=MigrationStep.SAVED)),
            "is taken away in 1m (interruption): job 42 is saved",
        ),
        (
            warned(move(step=MigrationStep.WAITING, at=None, note=Quoted(text="criu refuses it"))),
            "is taken away in 1m (interruption): job 42 CANNOT BE SAVED: criu refuses it",
        ),
        (
            warned(unsavable=(UNSAVABLE,)),
            "is taken away in 1m (interruption): job 42 CANNOT BE SAVED: it holds a lock on a file",
        ),
        (warned(move(step=MigrationStep.BACK)), "is taken away in 1m (interruption)"),
    ],
)
def test_a_machine_that_is_taken_away_needs_attention(
    tmp_path: Path, told: CheckpointFacts, follows: str
) -> None:
    view = seen(tmp_path, node("pub1", "ALLOCATED"), checkpoints=told)
    (machine,) = view.instances
    assert (machine.next, machine.calm) == (follows, False)
    said = [one for one in view.attention if "taken away" in one.text]
    assert [(one.level, one.text) for one in said] == [(AttentionLevel.BAD, f"pub1: {follows}")]


@pytest.mark.parametrize(
    ("notice", "follows", "alarms"),
    [
        (warned(kind=NoticeKind.DEPARTURE), "leaves by an operator's order", []),
        (warned(kind=NoticeKind.DEPARTURE, left=None), "leaves by an operator's order", []),
        (
            warned(move(step=MigrationStep.SAVED), kind=NoticeKind.DEPARTURE),
            "leaves by an operator's order: job 42 is saved",
            [],
        ),
        (
            warned(kind=NoticeKind.DEPARTURE, unsavable=(UNSAVABLE,)),
            "leaves by an operator's order: job 42 CANNOT BE SAVED: it holds a lock on a file",
            ["Job 42 cannot be saved by criu: it holds a lock on a file"],
        ),
    ],
)
def test_an_operators_own_drain_is_not_shown_as_the_clouds(
    tmp_path: Path, notice: CheckpointFacts, follows: str, alarms: list[str]
) -> None:
    """The order has its line above the tables. Besides it only lost work needs attention."""
    given = order(aggressive=True)
    at = node("pub1", "ALLOCATED")
    before = seen(tmp_path, at, directives=(given,), checkpoints=CheckpointFacts())
    view = seen(tmp_path, at, directives=(given,), checkpoints=notice)
    (machine,) = view.instances
    assert machine.next == follows
    told = {row.text for row in before.attention}
    assert any("drained by root" in text for text in told)
    assert [row.text for row in view.attention if row.text not in told] == alarms


def test_what_is_down_already_is_told_as_down(tmp_path: Path) -> None:
    view = seen(tmp_path, node("pub1", "DOWN", reason="gone"), checkpoints=warned())
    assert view.instances[0].next == "down: gone"
    assert "pub1: is taken away in 1m (interruption), reported by EventBridge" in {
        one.text for one in view.attention
    }


def order(verb: str = "drain", **fields: object) -> Directive:
    word = Departure(verb=verb, about="pub1", nodes=("pub1",), **fields)  # type: ignore[arg-type]
    return Directive(word=word, who="root", since=NOW, starts=NOW - 5, reason="disk")


@pytest.mark.parametrize(
    ("given", "states", "follows"),
    [
        (order(), "ALLOCATED POWER_DOWN", "leaves after its jobs: drained by root: disk"),
        (order(), "IDLE", "leaves: drained by root: disk"),
        (
            order("replace", unavailable=1),
            "ALLOCATED",
            "leaves in its turn after its jobs: being replaced by root: disk",
        ),
        (
            order("migrate", to="onprem", aggressive=True),
            "ALLOCATED POWER_DOWN",
            "leaves once its jobs are moved: emptied to onprem by root: disk",
        ),
        (replace(order(), starts=NOW + 5), "ALLOCATED", "in use"),
        (order(), "ALLOCATED DRAIN", "in use; drained: ann's"),
    ],
)
def test_a_machine_that_an_operator_sends_away_says_so(
    tmp_path: Path, given: Directive, states: str, follows: str
) -> None:
    at = node("pub1", *states.split(), reason="ann's" if "DRAIN" in states else "")
    (machine,) = seen(tmp_path, at, directives=(given,)).instances
    assert (machine.next, machine.calm) == (follows, True)


@pytest.mark.parametrize(
    ("kept_until", "is_over", "states", "follows"),
    [
        (
            NOW + 1800,
            False,
            "IDLE",
            (
                "kept 30m more unless used, as a replacement: node op1 is emptied to aws, with "
                "replacements by root"
            ),
        ),
        (NOW + 1800, False, "ALLOCATED", "in use"),
        (NOW + 1800, True, "IDLE", "suspends now unless used"),
        (NOW, False, "IDLE", "suspends now unless used"),
    ],
)
def test_a_machine_that_was_started_ahead_says_how_long_it_is_kept(
    tmp_path: Path, kept_until: float, is_over: bool, states: str, follows: str
) -> None:
    machines = (ReplacementMachine(node="pub1", is_over=is_over),)
    word = Departure(
        verb="migrate", about="op1", nodes=("op1",), to="aws", start_replacements=True,
        replacements=Replacements(wanted=2, kept_until=kept_until, machines=machines),
    )  # fmt: skip
    given = Directive(word=word, who="root", since=NOW, starts=NOW - 5)
    view = seen(tmp_path, node("pub1", *states.split()), directives=(given,))
    (machine,) = view.instances
    assert (machine.next, machine.calm) == (follows, True)
    assert view.directives[0].told.endswith("; 1 of 2 replacements started")
