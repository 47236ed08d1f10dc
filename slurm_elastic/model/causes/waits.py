"""Why a requeued job may wait for long, and what would help."""

from __future__ import annotations

from slurm_elastic.base.units import brief
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.slurm_words.pending_reasons import reason_of


class HoldReturns(Cause, frozen=True, kw_only=True):
    """Slurm holds the job again each time that its hold is released."""

    @property
    def words(self) -> str:
        return "Slurm holds it again after each release"


class BeginsLater(Cause, frozen=True, kw_only=True):
    """The job has a begin time, in ``left_s``."""

    left_s: float

    @property
    def words(self) -> str:
        return f"it may not begin for {brief(self.left_s)}"


class CommandHelps(Cause, frozen=True, kw_only=True):
    """Somebody must act before the job starts: ``reason`` and ``description`` are Slurm's, ``job``
    is the job's label.
    """

    reason: str
    description: str
    job: str

    @property
    def words(self) -> str:
        reason = reason_of(self.reason, self.description)
        return f"{reason.row.meaning}; do: {reason.advice(self.job)}"


WaitHint = Quoted | HoldReturns | BeginsLater | CommandHelps
"""What would help a waiting job. Quoted: from a decision of an earlier release."""
