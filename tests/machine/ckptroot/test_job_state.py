"""The root part reads jobs by squeue, whatever users write into their own texts."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import job_state
from slurm_elastic.machine.ckptroot.job_state import JobState, parse
from slurm_elastic.machine.ckptroot.site import HelperSite

from .squeue_stand_in import answer, write_squeue

MARK = "<0123456789abcdef>"
PLAIN = {
    "JobID": "8", "ArrayJobID": "7", "ArrayTaskID": "1", "State": "RUNNING", "Reason": "None",
    "UserID": "1001", "RestartCnt": "2", "SubmitTime": "1800000000", "PreemptTime": "N/A",
    "NodeList": "n[1-2]", "BatchHost": "n1", "NumNodes": "2",
}  # fmt: skip
SHOWN = JobState(
    state="RUNNING", uid=1001, restarts=2, array_job=7, array_task=1, nodes="n[1-2]",
    batch_host="n1", node_count=2, submitted=1_800_000_000.0,
)  # fmt: skip


def text(*jobs: dict[str, str], mark: str = MARK) -> str:
    """As squeue prints them."""
    records = (mark.join((PLAIN | job).values()) for job in jobs)
    return "".join(f"{record}{job_state.end_mark(mark)}\n" for record in records)


def test_each_field_is_read() -> None:
    assert tuple(PLAIN) == job_state._FIELDS
    assert parse(text({}), MARK, 8) == SHOWN
    alone = {"ArrayJobID": "8", "ArrayTaskID": "N/A"}
    found = parse(text(alone), MARK, 8)
    assert found == replace(SHOWN, array_job=0, array_task=None)
    assert found.label(8) == "8"


@pytest.mark.parametrize("forged", [f"\n{text({})}", text({"UserID": "0"}), f"{MARK[:-1]}", "\n8"])
def test_whatever_stands_in_a_field_only_the_mark_ends_it(forged: str) -> None:
    """Nobody knows the mark of a question before squeue has answered it."""
    other = forged.replace(MARK[1:], "0000000000000000>")
    found = parse(text({"Reason": other}), MARK, 8)
    assert found == SHOWN


@pytest.mark.parametrize(("time", "preempted"), [("N/A", False), ("1800000044", True)])
def test_whether_it_is_preempted(time: str, preempted: bool) -> None:
    found = parse(text({"PreemptTime": time}), MARK, 8)
    assert found is not None
    assert found.preempted is preempted


def test_why_slurm_has_ended_it_is_read_while_its_state_is_hidden() -> None:
    found = parse(text({"State": "COMPLETING", "Reason": "TimeLimit"}), MARK, 8)
    assert found is not None
    assert found.was_cut_off()
    assert not found.ends_with(2), "the head may requeue it"
    assert found.ends(2)


def test_another_task_of_its_array_is_passed_over() -> None:
    found = parse(text({}, {"JobID": "7", "RestartCnt": "5"}), MARK, 7)
    assert found is not None
    assert found.restarts == 5


@pytest.mark.parametrize(
    "answer", ["", "8\n", text({})[:-1], text({})[: -len(MARK) - 1], text({}, mark="<other>")]
)
def test_another_text_is_no_answer(answer: str) -> None:
    assert parse(answer, MARK, 8) is None


def test_a_job_is_named_as_its_users_do() -> None:
    assert JobState("RUNNING", 1, 0).label(12) == "12"
    assert JobState("RUNNING", 1, 0, array_job=9, array_task=0).label(12) == "9_0"


# asking


@pytest.fixture
def site(tmp_path: Path) -> HelperSite:
    return HelperSite(
        cluster="t", directory=tmp_path, key=b"", reader=(0, 0), scontrol=str(tmp_path / "scontrol")
    )


def write(site: HelperSite, script: str) -> None:
    Path(site.program("squeue")).write_text(f"#!/bin/sh\n{script}\n")
    Path(site.program("squeue")).chmod(0o755)


def test_slurmctld_is_asked_for_one_job_by_another_mark_each_time(
    site: HelperSite, tmp_path: Path
) -> None:
    write(site, f'echo "$*" "$PATH" "$LC_ALL" "$HOME" "$SLURM_CONF" >>{tmp_path}/asked')
    assert job_state.ask(site, 7) is None
    object.__setattr__(site, "slurm_conf", "/etc/slurm.conf")
    job_state.ask(site, 7)
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert first.startswith("--all --noheader --states=all --jobs=7 --Format JobID:0<")
    assert first.endswith(" /usr/sbin:/usr/bin:/sbin:/bin C.UTF-8  ")
    assert second.endswith(" /etc/slurm.conf")
    assert first.split("JobID:0")[1].split(",")[0] != second.split("JobID:0")[1].split(",")[0]


def test_the_answer_is_the_jobs_state(site: HelperSite, tmp_path: Path) -> None:
    write_squeue(Path(site.program("squeue")), f"{tmp_path}/of-$job")
    (tmp_path / "of-7").write_text(answer("RUNNING", 1001, 2))
    found = job_state.ask(site, 7)
    assert found is not None
    assert (found.state, found.uid, found.restarts) == ("RUNNING", 1001, 2)
    assert job_state.ask(site, 8) is None


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'Invalid job id specified' >&2; exit 1", JobState(state="GONE", uid=-1, restarts=0)),
        ("echo 'Invalid job id specified'; exit 1", JobState(state="GONE", uid=-1, restarts=0)),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None),
        ("echo 'Invalid job id specified' >&2", None),
        ("echo 7 RUNNING", None),
    ],
)
def test_its_word_is_taken_as_it_is(site: HelperSite, script: str, found: JobState | None) -> None:
    write(site, script)
    assert job_state.ask(site, 7) == found


def test_without_a_squeue_it_does_not_answer(site: HelperSite) -> None:
    assert job_state.ask(site, 7) is None


class Asked:
    """A squeue that hangs, by a clock of its own; ``waits`` are those for its answer."""

    def __init__(self) -> None:
        self.now, self.waits, self.killed = 1000.0, list[float](), False

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.waits.append(timeout)
        self.now += timeout
        raise subprocess.TimeoutExpired("squeue", timeout)

    def kill(self) -> None:
        self.killed = True


def test_one_that_hangs_is_ended_and_looked_after_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: Any = Asked()
    looks: list[float] = []
    monkeypatch.setattr(job_state.time, "monotonic", lambda: asked.now)
    with pytest.raises(subprocess.TimeoutExpired):
        job_state.answer(asked, 2.2, lambda: looks.append(asked.now))
    assert asked.waits == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.2])
    assert looks == [1000.5, 1001.0, 1001.5, 1002.0]
    assert asked.killed


def test_what_ends_the_question_ends_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = Asked()
    monkeypatch.setattr(job_state.time, "monotonic", lambda: asked.now)

    def look() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        job_state.answer(asked, 2.2, look)
    assert (asked.killed, asked.waits) == (True, [0.5])


def test_a_time_that_is_over_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = Asked()
    monkeypatch.setattr(job_state.time, "monotonic", lambda: asked.now)
    with pytest.raises(subprocess.TimeoutExpired):
        job_state.answer(asked, -1.0, lambda: None)
    assert asked.waits == [0.0]
