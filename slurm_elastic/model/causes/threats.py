"""Threats to a running job or its node (``policies.checkpoint.threat``), and why jobs move."""

from __future__ import annotations

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import counted, money, slurm_duration
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.saves import JobSave, NoticeGiven


class NoticeExplained(Cause, frozen=True, kw_only=True):
    """The ``text`` with which a cloud or a person gives a notice."""

    text: str

    @property
    def words(self) -> str:
        return self.text


class MaximumAgeReached(Cause, frozen=True, kw_only=True):
    """The machine reaches the maximum age of its pool (s)."""

    max_age_s: float

    @property
    def words(self) -> str:
        return f"its machine reaches the pool's maximum age of {slurm_duration(self.max_age_s)}"


class EndsWithReservation(Cause, frozen=True, kw_only=True):
    """The cloud ends the machine together with its ``reservation``."""

    reservation: str

    @property
    def words(self) -> str:
        return f"the cloud ends its machine with reservation {self.reservation}"


class MaintenanceBegins(Cause, frozen=True, kw_only=True):
    """A ``reservation`` of Slurm with the flag MAINT begins."""

    reservation: str

    @property
    def words(self) -> str:
        return f"maintenance {self.reservation} begins"


class NodeFailing(Cause, frozen=True, kw_only=True):
    """Slurm has the node in state FAIL. ``node_reason``: the reason of Slurm's node, "" if none."""

    node_reason: str

    @property
    def words(self) -> str:
        return f"Slurm has its node as failing: {self.node_reason or 'no reason is given'}"


class NodeDrained(Cause, frozen=True, kw_only=True):
    """An administrator has drained the node, with a date in the ``node_reason``."""

    node_reason: str

    @property
    def words(self) -> str:
        return f"its node is drained: {self.node_reason}"


class PriceOverBid(Cause, frozen=True, kw_only=True):
    """The spot price ($/h) is over the bid, so that the cloud may take the machine."""

    price: float
    bid: float

    @property
    def words(self) -> str:
        return f"price {money(self.price)} is over the bid of {money(self.bid)}"


class TimeLimitEnds(Cause, frozen=True, kw_only=True):
    """The job's time limit ends, and the job is requeued because of that for the ``nth`` time, of
    ``times`` at most.
    """

    limit_s: float
    nth: int
    times: int

    @property
    def words(self) -> str:
        limit = slurm_duration(self.limit_s)
        return f"its time limit of {limit} ends ({self.nth} of {self.times} times)"


class TimeLimitLast(Cause, frozen=True, kw_only=True):
    """The job's time limit ends, and the job was ``requeued`` because of that as often as it may
    be.
    """

    limit_s: float
    requeued: int

    @property
    def words(self) -> str:
        limit = slurm_duration(self.limit_s)
        times = counted(self.requeued, "time")
        return f"its time limit of {limit} ends, and it was requeued for that {times}"


class JobPreempted(Cause, frozen=True, kw_only=True):
    """Slurm ends the job for a job of higher priority."""

    @property
    def words(self) -> str:
        return "Slurm gives its place to a job of higher priority"


JobThreat = (
    Quoted
    | NoticeGiven
    | NoticeExplained
    | MaximumAgeReached
    | EndsWithReservation
    | MaintenanceBegins
    | NodeFailing
    | NodeDrained
    | PriceOverBid
    | TimeLimitEnds
    | TimeLimitLast
    | JobPreempted
)
"""The causes of threats."""


class MachineLostUnannounced(Cause, frozen=True, kw_only=True):
    """The job's run ended because the machines of ``nodes`` were lost without a notice."""

    nodes: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"the machine of {compress(self.nodes)} was lost without a notice"


class RunEndedUnannounced(Cause, frozen=True, kw_only=True):
    """The job's run ended without a notice, and its machines are still there."""

    @property
    def words(self) -> str:
        return "its run ended without a notice"


class GoesOnDemand(Cause, frozen=True, kw_only=True):
    """The job moves to a machine that its cloud does not take away."""

    @property
    def words(self) -> str:
        return "it cannot be saved, so it moves to machines that are not taken away"


class EndedBySave(Cause, frozen=True, kw_only=True):
    """The run died of the signal that asked it to save itself."""

    @property
    def words(self) -> str:
        return "the signal to save itself ended it, because its batch script did not catch it"


class ThreatenedSave(Cause, frozen=True, kw_only=True):
    """A ``threat`` moves the job, and its checkpoint policy wants a ``save`` at the same time."""

    threat: JobThreat
    save: Quoted | JobSave

    @property
    def words(self) -> str:
        return f"{self.threat}: {self.save}"


MoveReason = (
    JobThreat
    | JobSave
    | ThreatenedSave
    | MachineLostUnannounced
    | RunEndedUnannounced
    | GoesOnDemand
    | EndedBySave
)
"""Why a job moves or is saved."""
