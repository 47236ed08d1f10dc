"""Commands about the AdminComments of jobs, in slurmctld and in slurmdbd."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from slurm_elastic.base.errors import SlurmError

T = TypeVar("T")
FEW = 20
"""The number of jobs up to which each job is read by itself. For more jobs squeue would load all
jobs in any case.
"""


class CommentCommands(ABC):
    """The part of ``model.protocols.Slurm`` that deals with AdminComments."""

    @abstractmethod
    def _run(self, *command: str) -> str:
        """The output of the command. SlurmError if it fails."""

    @abstractmethod
    def _table(self, read: Callable[[str], T], *command: str) -> T:
        """The value of ``read(answer)`` of the command."""

    @abstractmethod
    def _label(self, job: int) -> str:
        """The job's id in commands."""

    @abstractmethod
    def _update_job(self, jobs: str, *fields: str) -> None:
        """``scontrol update``."""

    def admin_comments(self, jobs: Collection[int] | None = None) -> Mapping[int, str]:
        """``squeue --Format=JobID,admin_comment``. The field has no other spelling."""
        if jobs is None or len(jobs) > FEW:
            return self._comments("--states=all")
        return {job: text for asked in jobs for job, text in self._comments_of(asked).items()}

    def _comments_of(self, job: int) -> dict[int, str]:
        """The comment of one job, or of all tasks of an array; none if Slurm no longer has it."""
        try:
            return self._comments("--states=all", f"--jobs={job}")
        except SlurmError as error:
            if not error.is_of_unknown_job:
                raise
            return {}

    def _comments(self, *options: str) -> dict[int, str]:
        # Random, so that no comment can contain it.
        mark = f"<{os.urandom(8).hex()}>"
        fields = f"JobID:0{mark},admin_comment:0{mark}"
        read = partial(admin_comments, mark=mark)
        return self._table(read, "squeue", "--all", "--noheader", *options, "--Format", fields)

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
        """Run ``sacctmgr modify job``, because scontrol changes no ended job (22.05, measured)."""
        self._run(
            "sacctmgr", "--immediate", "--quiet", "modify", "job", "where",
            f"cluster={cluster}", f"jobid={self._label(job)}", "set", f"admincomment={text}",
        )  # fmt: skip


def admin_comments(text: str, mark: str) -> dict[int, str]:
    """The AdminComments in squeue's answer by job, "" for a job without one. Each field ends in
    ``mark``. ValueError for another text.
    """
    *fields, rest = text.split(mark)
    if len(fields) % 2 or rest.strip():
        raise ValueError(f"its last record breaks off: {rest[:80]!r}")
    comments = (comment if comment != "(null)" else "" for comment in fields[1::2])
    return dict(zip(map(int, fields[::2]), comments, strict=True))
