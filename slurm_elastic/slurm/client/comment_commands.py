"""Commands about the AdminComments of jobs, in slurmctld and in slurmdbd."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from slurm_elastic.base.errors import SlurmError

_JOB = re.compile(r"JobId=(\d+) ")
_FIELD = " AdminComment="
_VALUE = re.compile(
    r"(.*?)\s*(?: (?:SystemComment|Comment|StdErr|StdIn|StdOut|Power|TresPer\w+|MailUser)=.*)?"
)
"""An AdminComment, and the fields that may follow it (22.05 to 26.05)."""
_NO_JOB = "Invalid job id"
FEW = 20
"""So many jobs are read one by one; of more jobs we read all."""


class CommentCommands(ABC):
    """The part of ``model.protocols.Slurm`` that deals with AdminComments."""

    @abstractmethod
    def _run(self, *command: str) -> str:
        """The output of the command. SlurmError if it fails."""

    @abstractmethod
    def _label(self, job: int) -> str:
        """The job's id in commands."""

    @abstractmethod
    def _update_job(self, jobs: str, *fields: str) -> None:
        """``scontrol update``."""

    def admin_comments(self, jobs: Collection[int] | None = None) -> Mapping[int, str]:
        """By ``scontrol show job``, because 22.05's squeue cannot print the field."""
        if jobs is None or len(jobs) > FEW:
            return admin_comments(self._run("scontrol", "--oneliner", "show", "job"))
        return admin_comments("".join(self._shown(job) for job in jobs))

    def _shown(self, job: int) -> str:
        """The records of one job; "" if Slurm no longer has it."""
        try:
            return self._run("scontrol", "--oneliner", "show", "job", str(job))
        except SlurmError as error:
            if _NO_JOB not in error.stderr:
                raise
            return ""

    def set_admin_comment(self, job: int, text: str) -> None:
        """``scontrol update jobid=JOB admincomment=TEXT``."""
        self._update_job(self._label(job), f"admincomment={text}")

    def accounted_comment(self, job: int) -> str:
        """``sacct --format=AdminComment``."""
        return self._run(
            "sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={self._label(job)}",
            "--format=AdminComment",
        ).rstrip("\n")  # fmt: skip

    def set_accounted_comment(self, cluster: str, job: int, text: str) -> None:
        """By ``sacctmgr modify job``: scontrol changes no ended job (22.05, measured)."""
        self._run(
            "sacctmgr", "--immediate", "--quiet", "modify", "job", "where",
            f"cluster={cluster}", f"jobid={self._label(job)}", "set", f"admincomment={text}",
        )  # fmt: skip


def admin_comments(text: str) -> dict[int, str]:
    """The AdminComments in ``scontrol --oneliner show job``, by job; "" for a job without one.

    Users may write anything into names, directories and comments, even line breaks and the names of
    other fields. A job whose record is not certain is left out, because its comment would be
    replaced by a part of it, or by the text of another job.
    """
    found: dict[int, str | None] = {}
    job = None
    for line in text.splitlines():
        match = _JOB.match(line)
        if match is not None:
            job = int(match[1])
            # A second record of a job can only be a line of a user's text.
            found[job] = None if job in found else _comment_in(line)
        elif line.strip() and job is not None:
            found[job] = None  # the line before has a line break in one of its fields
    return {job: comment for job, comment in found.items() if comment is not None}


def _comment_in(record: str) -> str | None:
    """The AdminComment in a record; None if that is not certain."""
    before, *values = record.split(_FIELD)
    if not values:
        return ""
    is_elsewhere = " Comment=" in before or any(f in values[0] for f in (" UserId=", " WorkDir="))
    if len(values) > 1 or is_elsewhere or values[0].count(" Comment=") > 1:
        return None
    match = _VALUE.fullmatch(values[0])
    return match[1] if match else None
