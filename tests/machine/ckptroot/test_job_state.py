"""The root part reads ``scontrol show job`` right, whatever users write into their own texts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import job_state
from slurm_elastic.machine.ckptroot.job_state import JobState, parse
from slurm_elastic.machine.ckptroot.site import HelperSite

LINE = (
    "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName={name} UserId=ann(1001) GroupId=ann(1001)"
    " MCS_label=N/A Priority=4294901755 Nice=0 Account=(null) QOS=normal JobState=RUNNING"
    " Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0"
    " RunTime=00:00:09 TimeLimit=UNLIMITED Network=(null) Command=/home/ann/{name}"
    " WorkDir=/home/ann Comment={comment} StdErr=/home/ann/{name}.out Power="
)
"""In the order of 22.05 (slurm_sprint_job_info)."""
FALSE = "x JobState=COMPLETED Restarts=9 UserId=bob(1002) JobId=9"


@pytest.mark.parametrize(
    ("name", "comment"), [("job", "ckpt=criu"), (FALSE, ""), ("job", FALSE), (FALSE, FALSE)]
)
def test_a_users_own_texts_stand_for_no_field(name: str, comment: str) -> None:
    found = parse(LINE.format(name=name, comment=comment), 8)
    assert found == JobState(state="RUNNING", uid=1001, restarts=2, array_job=7, array_task=1)


@pytest.mark.parametrize(("time", "preempted"), [("None", False), ("2026-11-21T22:37:49", True)])
def test_whether_it_is_preempted(time: str, preempted: bool) -> None:
    line = LINE.replace(
        " Network", f" PreemptEligibleTime=2026-11-21T22:37:44 PreemptTime={time} Network"
    )
    found = parse(line.format(name="x", comment="x PreemptTime=now"), 8)
    assert found is not None
    assert found.preempted is preempted


def test_why_slurm_has_ended_it_is_read_while_its_state_is_hidden() -> None:
    line = LINE.replace("=RUNNING Reason=None", "=COMPLETING Reason=TimeLimit")
    found = parse(line.format(name="x Reason=None", comment="x Reason=None"), 8)
    assert found is not None
    assert found.was_cut_off()
    assert not found.ends_with(2), "the head may requeue it"
    assert found.ends(2)


@pytest.mark.parametrize("name", ["x ArrayJobId=42 ArrayTaskId=7", "x JobName=y ArrayTaskId=7"])
def test_a_name_makes_no_job_a_task_of_anothers_array(name: str) -> None:
    alone = LINE.replace(" ArrayJobId=7 ArrayTaskId=1", "").format(name=name, comment=name)
    found = parse(alone, 8)
    assert found == JobState(state="RUNNING", uid=1001, restarts=2)
    assert found.label(8) == "8"


def test_a_name_does_not_change_which_task_it_is() -> None:
    found = parse(LINE.format(name="x ArrayJobId=42 ArrayTaskId=9", comment=""), 8)
    assert found is not None
    assert found.label(8) == "7_1"


@pytest.mark.parametrize("field", ["name", "comment"])
def test_what_imitates_the_end_of_the_fixed_fields_is_not_believed(field: str) -> None:
    texts = {"name": "job", "comment": ""} | {field: f"{FALSE} BatchFlag=1 Command=x"}
    assert parse(LINE.format(**texts), 8) is None


def test_another_task_of_its_array_is_passed_over() -> None:
    text = LINE.format(name="job", comment="")
    both = text + "\n" + text.replace("JobId=8", "JobId=7").replace("Restarts=2", "Restarts=5")
    found = parse(both, 7)
    assert found is not None
    assert found.restarts == 5


@pytest.mark.parametrize("array", ["", " ArrayJobId=7 ArrayTaskId=1"])
@pytest.mark.parametrize("end", ["\n", "\nJobId=9 JobName=y"])
def test_a_name_with_a_line_feed_is_no_record(array: str, end: str) -> None:
    line = LINE.replace(" ArrayJobId=7 ArrayTaskId=1", array)
    assert parse(line.format(name=f"{FALSE} BatchFlag=1{end}", comment=""), 8) is None


def test_other_characters_that_end_lines_end_no_record() -> None:
    found = parse(LINE.format(name=f"x\v\u2028\x1c{FALSE}", comment=""), 8)
    assert found == JobState(state="RUNNING", uid=1001, restarts=2, array_job=7, array_task=1)


def test_a_job_is_named_as_its_users_do() -> None:
    assert JobState("RUNNING", 1, 0).label(12) == "12"
    assert JobState("RUNNING", 1, 0, array_job=9, array_task=0).label(12) == "9_0"


# asking


SHORT = "JobId=7 UserId=ann(1001) JobState=RUNNING Restarts=2 BatchFlag=1"


@pytest.fixture
def site(tmp_path: Path) -> HelperSite:
    return HelperSite(
        cluster="t", directory=tmp_path, key=b"", reader=(0, 0), scontrol=str(tmp_path / "scontrol")
    )


def answer(site: HelperSite, script: str) -> None:
    Path(site.scontrol).write_text(f"#!/bin/sh\n{script}\n")
    Path(site.scontrol).chmod(0o755)


def test_slurmctld_is_asked_for_one_job_in_one_line(site: HelperSite, tmp_path: Path) -> None:
    answer(
        site, f'echo "$*" "$PATH" "$LC_ALL" "$HOME" "$SLURM_CONF" >{tmp_path}/asked; echo "{SHORT}"'
    )
    assert job_state.ask(site, 7) == JobState(state="RUNNING", uid=1001, restarts=2)
    asked = (tmp_path / "asked").read_text()
    assert asked == "-o show job 7 /usr/sbin:/usr/bin:/sbin:/bin C.UTF-8  \n"
    object.__setattr__(site, "slurm_conf", "/etc/slurm.conf")
    job_state.ask(site, 7)
    assert (tmp_path / "asked").read_text().endswith(" /etc/slurm.conf\n")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'Invalid job id specified' >&2; exit 1", JobState(state="GONE", uid=-1, restarts=0)),
        ("echo 'Invalid job id specified'; exit 1", JobState(state="GONE", uid=-1, restarts=0)),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None),
        ("echo 'Invalid job id specified' >&2", None),
        ("echo JobId=8 JobState=RUNNING BatchFlag=1", None),
        ("echo JobId=7 BatchFlag=1", JobState(state="", uid=-1, restarts=0)),
        ("echo JobId=7 Restarts= ArrayJobId= BatchFlag=1", JobState(state="", uid=-1, restarts=0)),
    ],
)
def test_its_word_is_taken_as_it_is(site: HelperSite, script: str, found: JobState | None) -> None:
    answer(site, script)
    assert job_state.ask(site, 7) == found


def test_without_a_scontrol_it_does_not_answer(site: HelperSite) -> None:
    assert job_state.ask(site, 7) is None


class Asked:
    """A scontrol that hangs, by a clock of its own; ``waits`` are those for its answer."""

    def __init__(self) -> None:
        self.now, self.waits, self.killed = 1000.0, list[float](), False

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.waits.append(timeout)
        self.now += timeout
        raise subprocess.TimeoutExpired("scontrol", timeout)

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


def test_what_ends_the_question_ends_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
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
