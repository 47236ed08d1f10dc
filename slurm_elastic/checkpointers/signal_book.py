"""The file of one job that method ``signal`` keeps: the pending save and the last two saves."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.checkpointers.save_signs import is_end_of_script
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.job_key import JobKey


class Save(Struct, frozen=True, kw_only=True):
    """A save, requested at ``asked`` (Unix time), whose sign is awaited until ``until``. ``mark``:
    the state of the sign before it. ``submitted``: the SubmitTime of the run (Unix time).
    """

    attempt: int
    submitted: float = 0.0
    asked: float
    until: float = 0.0
    stop: bool
    sign: str
    mark: str

    def is_awaited(self, run: JobRun, now: float, *, stop: bool) -> bool:
        """Whether this save was requested from that run in the same way, and may still come."""
        # A sign that comes after the time-out is no answer to the next request: the state behind
        # that sign may be hours old by the time of the next request. Exception: a script that has
        # ended has done nothing since.
        is_in_time = now < self.until or is_end_of_script(self.sign)
        is_of_run = (self.attempt, self.submitted) == (run.attempt, run.submitted)
        return is_of_run and self.stop == stop and is_in_time


class Book(Struct, frozen=True, kw_only=True):
    """The contents of one job's file. ``directory``: the job's working directory. ``key``: the
    identity of the job in the last run that was asked for a save. ``dies``: whether our signal ends
    the job's batch script, None if that was not checked yet. ``is_relayed``: whether the script
    has a relay. Both hold for all runs of the job, because they have the same script.
    """

    uid: int
    directory: str
    pending: Save | None = None
    images: tuple[Image, ...] = ()
    signs: dict[int, str] = {}
    number: int = 0
    dies: bool | None = None
    is_relayed: bool = False
    key: JobKey | None = None

    def is_of(self, run: JobRun) -> bool:
        """Whether this was written for the job of this run, and not for an earlier job with its
        number.
        """
        if (self.uid, self.directory) != (run.uid, run.directory or self.directory):
            return False
        return self.key is None or run.key.may_follow(self.key)
