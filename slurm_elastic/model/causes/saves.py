"""Why a job is saved (``policies.checkpoint``, ``ckptman.saves``)."""

from __future__ import annotations

from slurm_elastic.base.units import brief, money
from slurm_elastic.model.causes.cause import Cause


class LeaseEnds(Cause, frozen=True, kw_only=True):
    """The machine's time of ``time_s`` seconds ends in ``left_s``, within the policy's
    ``margin_s``. ``is_paid``: the cloud charges this time as a whole.
    """

    time_s: float
    left_s: float
    margin_s: float
    is_paid: bool

    @property
    def words(self) -> str:
        time = "the paid lease" if self.is_paid else "its time"
        return (
            f"{time} of {brief(self.time_s)} ends in {brief(self.left_s)} "
            f"(margin {brief(self.margin_s)})"
        )


class PriceOverThreshold(Cause, frozen=True, kw_only=True):
    """The spot price ($/h) is over the policy's threshold."""

    price: float
    threshold: float

    @property
    def words(self) -> str:
        return f"price {money(self.price)} is over the threshold {money(self.threshold)}"


class PriceRose(Cause, frozen=True, kw_only=True):
    """The spot price ($/h) rose over ``edge``, the lower end of the policy's band below the bid."""

    price: float
    edge: float

    @property
    def words(self) -> str:
        return f"price {money(self.price)} rose over {money(self.edge)}"


class IntervalOver(Cause, frozen=True, kw_only=True):
    """The job has worked for ``interval_s`` since its last checkpoint."""

    interval_s: float

    @property
    def words(self) -> str:
        return f"{brief(self.interval_s)} of work since the last checkpoint"


class NoticeGiven(Cause, frozen=True, kw_only=True):
    """The cloud or a person gave a ``notice`` (``NoticeKind``). ``left_s``: seconds until its
    deadline, None if it has none.
    """

    notice: str
    left_s: float | None = None

    @property
    def words(self) -> str:
        remaining = "" if self.left_s is None else f", {brief(self.left_s)} left"
        return f"{self.notice} notice{remaining}"


class OwnReason(Cause, frozen=True, kw_only=True):
    """The reason of a checkpoint policy of another package, in its own words."""

    text: str

    @property
    def words(self) -> str:
        return self.text


class FirstSave(Cause, frozen=True, kw_only=True):
    """It is not known yet whether the job can be saved."""

    @property
    def words(self) -> str:
        return "a first save shows whether it can be saved"


class ProbedSave(Cause, frozen=True, kw_only=True):
    """The launcher of the job reports an obstacle, or the last saves failed."""

    @property
    def words(self) -> str:
        return "a save that shows whether it can still be saved"


class SaveOrdered(Cause, frozen=True, kw_only=True):
    """A person asked for the save: the user ``who`` ("": the order does not name the user)."""

    who: str

    @property
    def words(self) -> str:
        return f"{self.who or 'an operator'} asked for it"


JobSave = (
    LeaseEnds
    | PriceOverThreshold
    | PriceRose
    | IntervalOver
    | NoticeGiven
    | OwnReason
    | FirstSave
    | ProbedSave
    | SaveOrdered
)
"""All reasons why jobs are saved."""
