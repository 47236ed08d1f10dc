"""Why an offer is not asked for a while, or gives nothing."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class PartlyGiven(Cause, frozen=True, kw_only=True):
    """The offer gave fewer machines than were asked for."""

    given: int
    wanted: int

    @property
    def words(self) -> str:
        return f"gave {self.given} of {self.wanted} machines"


class TakenAway(Cause, frozen=True, kw_only=True):
    """The cloud takes a machine of the offer away."""

    machine: str

    @property
    def words(self) -> str:
        return f"machine {self.machine} is taken away"


class NotSavable(Cause, frozen=True, kw_only=True):
    """The job cannot be saved, so that no spot machine is bought for it."""

    because: str

    @property
    def words(self) -> str:
        return f"it cannot be saved: {self.because}"


class NoOffers(Cause, frozen=True, kw_only=True):
    """The cloud gave no offers ("": the pool has none)."""

    cloud: str = ""

    @property
    def words(self) -> str:
        return f"cloud {self.cloud} gave no offers" if self.cloud else "it has no offer"


class CloudSilent(Cause, frozen=True, kw_only=True):
    """The cloud could not be asked for its offers; ``error`` is its answer, or ours."""

    cloud: str
    error: str

    @property
    def words(self) -> str:
        return self.error


class CloudUnlisted(Cause, frozen=True, kw_only=True):
    """The cloud's machines could not be listed, so that nothing is bought there."""

    cloud: str
    error: str

    @property
    def words(self) -> str:
        return f"its machines could not be listed, so it sells none: {self.error}"


OfferRefusal = PartlyGiven | TakenAway | NotSavable | NoOffers | CloudSilent | CloudUnlisted
"""The causes of cool-downs that have data of their own; a cloud's own words are quoted."""
