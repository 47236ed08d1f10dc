"""Slurm's words of four releases have a row each, and the rows say what growth may count."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words import job_states, node_states, partition_states
from slurm_elastic.model.slurm_words.pending_reasons import REASONS, UNKNOWN, reason_of, row_of
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.waiting import is_counted, sentence
from slurm_elastic.policies.waits import wait

PACKAGE = Path(slurm_elastic.__file__).parent
WORDS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "slurm-words.json").read_text()
)
DRAINED = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)
RELEASES = pytest.mark.parametrize("release", WORDS)


def pending(reason: str, description: str = "", **fields: object) -> SlurmJob:
    states = frozenset({"PENDING"})
    return SlurmJob(id=7, states=states, reason=reason, description=description, **fields)  # type: ignore[arg-type]


@RELEASES
def test_every_reason_has_one_row(release: str) -> None:
    words = (*WORDS[release]["job_reasons"], *WORDS[release]["state_desc_texts"])
    rows = {w: [r for r in REASONS if re.fullmatch(r.pattern, w)] for w in words}
    assert {word: len(found) for word, found in rows.items() if len(found) != 1} == {}


def test_no_row_is_for_a_word_that_slurm_does_not_have() -> None:
    words = {w for r in WORDS.values() for w in (*r["job_reasons"], *r["state_desc_texts"])}
    assert [r.pattern for r in REASONS if not any(re.fullmatch(r.pattern, w) for w in words)] == []


@RELEASES
def test_every_state_and_flag_of_a_job_has_one_row(release: str) -> None:
    words = {*WORDS[release]["job_states"], *WORDS[release]["job_flags"]}
    rows = [row.name for row in job_states.JOB_STATES]
    assert words - set(rows) - job_states.INTERNAL == set()
    assert len(rows) == len(set(rows))


@RELEASES
def test_every_state_and_flag_of_a_node_has_one_row(release: str) -> None:
    words = {*WORDS[release]["node_base_states"], *WORDS[release]["node_flags"]}
    rows = [row.name for row in node_states.NODE_STATES]
    assert words <= set(rows)
    assert len(rows) == len(set(rows))
    assert {word for word in words if node_states.row_of(word) is None} == set()


@RELEASES
def test_every_state_of_a_partition_has_a_row(release: str) -> None:
    rows = {row.name for row in partition_states.PARTITION_STATES}
    assert rows == set(WORDS[release]["partition_states"])


def test_only_the_tables_name_reasons_and_texts_of_slurm() -> None:
    """In the syntax trees: another list of reasons would not know the words of all releases."""
    words = {w for r in WORDS.values() for w in (*r["job_reasons"], *r["state_desc_texts"])}
    # Words that mean something else elsewhere, too.
    words -= {"None", "Priority", "Resources", "Reservation", "Dependency", "Prolog", "Licenses",
              "TimeLimit"}  # fmt: skip
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "slurm_words" not in path.parts and not path.name.startswith("fake"):
            tree = ast.parse(path.read_text())
            literals = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
            found += [f"{path.name}: {word}" for word in literals if word in words]
    assert found == []


def test_a_word_of_a_later_release_is_counted_and_shown() -> None:
    assert row_of("MoonPhase") is UNKNOWN
    assert sentence(pending("MoonPhase")) == "MoonPhase: see squeue(1), JOB REASON CODES"
    assert is_counted(pending("MoonPhase"), 0.0)


@pytest.mark.parametrize(
    ("reason", "description"),
    [
        # 22.05 prints the text in the reason's place; later releases have both (measured).
        ("job requeued in held state", ""), ("JobHeldUser", "job requeued in held state"),
        ("launch failed requeued held", ""), ("JobHeldUser", "launch failed requeued held"),
        ("job requeued in special exit state", ""), ("JobHeldUser", ""), ("JobHeldAdmin", ""),
        ("launch_failed_requeued_held", ""), ("user env retrieval failed requeued held", ""),
        ("launch failure limit exceeded requeued held", ""), ("JobHoldMaxRequeue", ""),
        ("Reservation maint was deleted", ""), ("ReservationDeleted", ""),
        ("BurstBufferOperation", "Burst buffer pre_run error"),
    ],
)  # fmt: skip
def test_no_held_job_is_counted_whatever_slurm_calls_its_hold(
    reason: str, description: str
) -> None:
    job = pending(reason, description, eligible=1050.0, restarts=1)
    assert job.is_held
    assert not is_counted(job, 1000.0)
    assert not job.is_requeue_hold(1000.0), "no time ends it"
    assert job.wait_reason.advice("7_1").endswith("scontrol release 7_1")


@pytest.mark.parametrize(
    ("reason", "fate", "counted"),
    [
        ("Priority", Fate.STARTS, True), ("Resources", Fate.STARTS, True),
        ("ReqNodeNotAvail, UnavailableNodes:pub[1-5]", Fate.STARTS, True),
        ("ReqNodeNotAvail, Reserved for maintenance", Fate.STARTS, True),
        (DRAINED, Fate.STARTS, True),
        ("Licenses", Fate.STARTS, False), ("QOSMaxCpuPerUserLimit", Fate.STARTS, False),
        ("AssocGrpCpuLimit", Fate.STARTS, False), ("QOSGrpNodeLimit", Fate.STARTS, False),
        ("Job is at or exceeds QOS x's group wall limit of 1 with 2", Fate.STARTS, False),
        ("AssocMaxCpuPerJobLimit", Fate.NEVER, False), ("QOSMinGRES", Fate.NEVER, False),
        ("PartitionTimeLimit", Fate.NEVER, False), ("BadConstraints", Fate.NEVER, False),
        ("PartitionInactive", Fate.STARTS, False), ("NonZeroExitCode", Fate.STARTS, False),
        ("MaxPoweredUpNodes", Fate.STARTS, False),
    ],
)  # fmt: skip
def test_what_becomes_of_a_job(reason: str, fate: Fate, counted: bool) -> None:
    job = pending(reason)
    assert job.wait_reason.row.fate is fate
    assert is_counted(job, 0.0) is counted


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        ("BadConstraints", True), ("Constraints", True), ("PartitionConfig", True),
        ("PartitionNodeLimit", True), ("PartitionTimeLimit", True), ("PartitionInactive", True),
        ("AccountNotAllowed", False), ("QOSMinGRES", False), ("MaxPoweredUpNodes", False),
    ],
)  # fmt: skip
def test_the_reason_of_one_partition_proves_nothing_about_the_others(
    reason: str, counted: bool
) -> None:
    job = pending(reason, partitions=("main", "burst"))
    assert is_counted(job, 0.0) is counted
    assert ("another may start it" in sentence(job)) is (counted or reason == "AccountNotAllowed")


def test_a_job_over_the_limit_counts_if_backfill_may_lower_its_limit() -> None:
    job = pending("PartitionTimeLimit", partitions=("burst",), limit=7200, min_limit=1800)
    assert is_counted(job, 0.0)
    assert "--time-min" in sentence(job)


def test_an_administrators_hold_keeps_the_words_of_the_failed_launch() -> None:
    assert reason_of("JobHeldAdmin", "launch failed requeued held").is_by_admin


def test_a_job_that_can_never_start_has_an_advice() -> None:
    lacking = [r.pattern for r in REASONS if r.fate is not Fate.STARTS and not r.advice]
    assert lacking == []


COMMAND_WORD = re.compile(r"&&|-[A-Za-z]|[a-z]+=\S*|\{job\}|[a-z]+")
PROSE = frozenset({"with", "then", "and", "or", "less", "more", "fewer"})


def test_a_remedy_is_a_command_that_can_be_typed_or_a_sentence() -> None:
    """A remedy that begins as a command and goes on as prose is an error when it is pasted."""
    remedies = {row.advice for row in REASONS if row.advice} | set(wait._MISFITS.values())
    programs = ("scontrol", "scancel", "sinfo", "squeue", "sacctmgr")
    wrong = {
        remedy
        for remedy in remedies
        if remedy.startswith(programs)
        and not all(COMMAND_WORD.fullmatch(w) and w not in PROSE for w in remedy.split())
    }
    assert wrong == set()
