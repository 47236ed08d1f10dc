"""Remembers the jobs that Slurm refuses to change, so that it is not asked again at every tick."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict

BACKOFF = Backoff(2.0, 300.0)
"""Seconds until a refused change is tried again. It starts short, because a job that waits for the
change does not run.
"""


class _PutOffChange(Struct, frozen=True):
    """The last ``pause`` (s), and ``until`` when (monotonic) Slurm is not asked again."""

    pause: float
    until: float


class JobRefusals:
    """Refused changes of one kind, by job. The loop and the crew's threads share them. They are in
    memory only, so a restarted service asks at once.
    """

    def __init__(self) -> None:
        self._changes: SharedDict[int, _PutOffChange] = SharedDict()
        self._reports = ReportOnce[int]()

    def may_ask(self, job: int, now: float) -> bool:
        """Whether Slurm may be asked to change the job now (monotonic)."""
        change = self._changes.get(job)
        return change is None or now >= change.until

    def put_off(self, job: int, reason: str, now: float) -> bool:
        """Put the change off, each time for longer. Return whether this reason is new."""
        last_change = self._changes.get(job)
        pause = BACKOFF.longer(0.0 if last_change is None else last_change.pause)
        self._changes[job] = _PutOffChange(pause=pause, until=now + pause)
        return self._reports.is_news(job, reason)

    def clear(self, job: int) -> None:
        """Note that Slurm has taken the change."""
        self._changes.pop(job)
        self._reports.clear(job)

    def keep(self, jobs: Collection[int]) -> None:
        """Forget all other jobs."""
        self._changes.keep(jobs)
        self._reports.forget_unless(jobs.__contains__)
