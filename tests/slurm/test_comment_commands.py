"""AdminComments out of scontrol's text, into which users may write nearly anything."""

from __future__ import annotations

import pytest

from slurm_elastic.slurm.client.comment_commands import admin_comments


def record(job: int, admin: str = "", comment: str = "", name: str = "job") -> str:
    """As 22.05 prints one, with fewer fields."""
    fields = f"JobId={job} JobName={name} UserId=ann(1000) WorkDir=/home/ann "
    fields += f"AdminComment={admin}  " if admin else ""
    fields += f"Comment={comment}  " if comment else ""
    return f"{fields}StdErr=/home/ann/slurm-{job}.out StdIn=/dev/null Power= \n"


def test_the_comment_of_each_job_is_read() -> None:
    text = (
        record(1) + record(2, "their text, a=b [x]") + record(3, "", "theirs") + record(4, "a", "b")
    )
    assert admin_comments(text) == {1: "", 2: "their text, a=b [x]", 3: "", 4: "a"}
    assert admin_comments("No jobs in the system\n") == {}
    interactive = "JobId=9 JobName=sh UserId=a(1) WorkDir=/ AdminComment=two words Power= \n"
    assert admin_comments(interactive) == {9: "two words"}


@pytest.mark.parametrize(
    "text",
    [
        record(7, "real", "x AdminComment=false"),
        record(7, "", "x AdminComment=false"),
        record(7, "real", name="x AdminComment=false"),
        record(7, "", name="x AdminComment=false"),
        record(7, "real", "x Comment=y"),
        record(7, "two\nlines"),
    ],
)
def test_a_record_that_is_not_certain_is_left_out(text: str) -> None:
    assert admin_comments(record(6, "a") + text + record(8, "b")) == {6: "a", 8: "b"}


def test_a_line_break_of_one_user_does_not_reach_another_job() -> None:
    forged = record(7, "", "x\nJobId=8 UserId=b(2) WorkDir=/ AdminComment=false  StdErr=")
    assert admin_comments(record(6) + forged + record(8, "real")) == {6: "", 7: ""}
