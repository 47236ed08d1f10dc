"""Where the next run of a moved or lost job began (``ckptman.origins``)."""

from __future__ import annotations

from slurm_elastic.base.units import counted
from slurm_elastic.model.causes.cause import Cause, Quoted


class StartReported(Cause, frozen=True, kw_only=True):
    """The run did not begin from its newest image. ``error``: why, as its launcher reports it."""

    error: str

    @property
    def words(self) -> str:
        return self.error


class StartUnconfirmed(Cause, frozen=True, kw_only=True):
    """The run's launcher has not reported where the run began."""

    @property
    def words(self) -> str:
        return "its launcher has not confirmed it, so look at its output"


StartDoubt = StartReported | StartUnconfirmed
"""Why a run did not begin from its newest image, or why that is not certain."""


class RunStart(Cause, frozen=True, kw_only=True):
    """The run began from save ``number`` (None: from its start). ``repeats_s``: the seconds of work
    that it repeats, 0 if that is little. ``doubt``: why it is not the newest save.
    """

    number: int | None = None
    repeats_s: float = 0.0
    doubt: StartDoubt | None = None

    @property
    def source(self) -> str:
        """The origin for a person."""
        return "its start" if self.number is None else f"save {self.number}"

    @property
    def consequences(self) -> str:
        """The rest of the sentence, after the origin; "" if there is nothing more to say."""
        minutes = round(self.repeats_s / 60)
        cost = f", {counted(minutes, 'minute')} of its work must be done again" if minutes else ""
        return f"{cost}{f': {self.doubt}' if self.doubt else ''}"

    @property
    def words(self) -> str:
        return f"{self.source}{self.consequences}"


NextRunStart = Quoted | RunStart
"""Quoted: from a decision of an earlier release."""
RunStartCause = RunStart | StartReported | StartUnconfirmed
"""All causes of this module."""
