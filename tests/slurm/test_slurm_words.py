"""Slurm's words of four releases have a row each, and the rows say what growth may count."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words import job_states
from slurm_elastic.model.slurm_words.pending_reasons import REASONS, UNKNOWN, reason_of, row_of
from slurm_elastic.model.slurm_words.rows import Outlook
from slurm_elastic.policies.launch.waiting import is_counted, sentence

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
    ("reason", "outlook", "counted"),
    [
        ("Priority", Outlook.STARTS, True), ("Resources", Outlook.STARTS, True),
        ("ReqNodeNotAvail, UnavailableNodes:pub[1-5]", Outlook.STARTS, True),
        ("ReqNodeNotAvail, Reserved for maintenance", Outlook.STARTS, True),
        (DRAINED, Outlook.STARTS, True),
        ("Licenses", Outlook.STARTS, False), ("QOSMaxCpuPerUserLimit", Outlook.STARTS, False),
        ("AssocGrpCpuLimit", Outlook.STARTS, False), ("QOSGrpNodeLimit", Outlook.STARTS, False),
        ("Job is at or exceeds QOS x's group wall limit of 1 with 2", Outlook.STARTS, False),
        ("AssocMaxCpuPerJobLimit", Outlook.NEVER, False), ("QOSMinGRES", Outlook.NEVER, False),
        ("PartitionTimeLimit", Outlook.NEVER, False), ("BadConstraints", Outlook.NEVER, False),
        ("PartitionInactive", Outlook.STARTS, False), ("NonZeroExitCode", Outlook.STARTS, False),
        ("MaxPoweredUpNodes", Outlook.STARTS, False),
    ],
)  # fmt: skip
def test_what_becomes_of_a_job(reason: str, outlook: Outlook, counted: bool) -> None:
    job = pending(reason)
    assert job.wait_reason.row.outlook is outlook
    assert is_counted(job, 0.0) is counted


def test_an_administrators_hold_keeps_the_words_of_the_failed_launch() -> None:
    assert reason_of("JobHeldAdmin", "launch failed requeued held").is_by_admin


def test_a_job_that_can_never_start_has_an_advice() -> None:
    lacking = [r.pattern for r in REASONS if r.outlook is not Outlook.STARTS and not r.advice]
    assert lacking == []
