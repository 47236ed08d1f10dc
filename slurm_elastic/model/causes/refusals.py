"""Why an offer is not asked for a while."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class PartlyGiven(Cause, frozen=True, kw_only=True):
    """The offer gave fewer machines than were asked for."""

    given: int
    wanted: int

    @property
    def sentence(self) -> str:
        return f"gave {self.given} of {self.wanted} machines"


class TakenAway(Cause, frozen=True, kw_only=True):
    """The cloud takes a machine of the offer away."""

    machine: str

    @property
    def sentence(self) -> str:
        return f"machine {self.machine} is taken away"


class NotSavable(Cause, frozen=True, kw_only=True):
    """The job cannot be saved, so that no spot machine is bought for it."""

    because: str

    @property
    def sentence(self) -> str:
        return f"it cannot be saved: {self.because}"


OfferRefusal = PartlyGiven | TakenAway | NotSavable
"""All causes of cool-downs that have data of their own; a cloud's own words are quoted."""
