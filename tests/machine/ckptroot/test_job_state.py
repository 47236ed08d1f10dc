"""The root part reads ``scontrol show job`` right, whatever users write into their own texts."""

from __future__ import annotations

import pytest

from slurm_elastic.machine.ckptroot.caller import JobState, _job_state

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
    found = _job_state(LINE.format(name=name, comment=comment), 8)
    assert found == JobState(state="RUNNING", uid=1001, restarts=2, array_job=7, array_task=1)


@pytest.mark.parametrize(("time", "preempted"), [("None", False), ("2026-11-21T22:37:49", True)])
def test_whether_it_is_preempted(time: str, preempted: bool) -> None:
    line = LINE.replace(
        " Network", f" PreemptEligibleTime=2026-11-21T22:37:44 PreemptTime={time} Network"
    )
    found = _job_state(line.format(name="x", comment="x PreemptTime=now"), 8)
    assert found is not None
    assert found.preempted is preempted


@pytest.mark.parametrize("name", ["x ArrayJobId=42 ArrayTaskId=7", "x JobName=y ArrayTaskId=7"])
def test_a_name_makes_no_job_a_task_of_anothers_array(name: str) -> None:
    alone = LINE.replace(" ArrayJobId=7 ArrayTaskId=1", "").format(name=name, comment=name)
    found = _job_state(alone, 8)
    assert found == JobState(state="RUNNING", uid=1001, restarts=2)
    assert found.label(8) == "8"


def test_a_name_does_not_change_which_task_it_is() -> None:
    found = _job_state(LINE.format(name="x ArrayJobId=42 ArrayTaskId=9", comment=""), 8)
    assert found is not None
    assert found.label(8) == "7_1"


@pytest.mark.parametrize("field", ["name", "comment"])
def test_what_imitates_the_end_of_the_fixed_fields_is_not_believed(field: str) -> None:
    texts = {"name": "job", "comment": ""} | {field: f"{FALSE} BatchFlag=1 Command=x"}
    assert _job_state(LINE.format(**texts), 8) is None


def test_another_task_of_its_array_is_passed_over() -> None:
    text = LINE.format(name="job", comment="")
    both = text.replace("JobId=8", "JobId=7").replace("Restarts=2", "Restarts=5") + "\n" + text
    found = _job_state(both, 8)
    assert found is not None
    assert found.restarts == 2
