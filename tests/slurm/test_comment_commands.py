"""AdminComments out of squeue's text, in which everything may stand."""

from __future__ import annotations

import pytest

from slurm_elastic.slurm.client.commands.comment_commands import admin_comments

MARK = "<0123>"


def answer(*records: tuple[int, str]) -> str:
    return "".join(f"{job}{MARK}{text}{MARK}\n" for job, text in records)


def test_the_comment_of_each_job_is_read_as_it_is() -> None:
    odd = "two\nlines Comment=x  AdminComment=y\n8<0124>"
    text = answer((7, "(null)"), (8, odd), (9, "theirs [slurm-elastic: z]"))
    assert admin_comments(text, MARK) == {7: "", 8: odd, 9: "theirs [slurm-elastic: z]"}
    assert admin_comments("", MARK) == {}


@pytest.mark.parametrize(
    "text",
    [
        f"7{MARK}\n",  # a squeue without that field
        f"7{MARK}broken of",
        f"x{MARK}a{MARK}\n",
    ],
)
def test_an_answer_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"breaks off|invalid literal"):
        admin_comments(text, MARK)
