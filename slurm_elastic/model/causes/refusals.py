"""Why an offer is not used for a while, or gives no machine."""

from __future__ import annotations

from slurm_elastic.base.units import counted
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.hindrances import Hindrance

SHOWN_JOBS = 3
"""At most this many jobs are named in the sentence of a cause."""


class PartlyGiven(Cause, frozen=True, kw_only=True):
    """The offer gave fewer machines than were asked for."""

    given: int
    wanted: int

    @property
    def words(self) -> str:
        return f"gave {self.given} of {self.wanted} machines"


class TakenAway(Cause, frozen=True, kw_only=True):
    """The cloud interrupts a machine of the offer."""

    machine: str

    @property
    def words(self) -> str:
        return f"machine {self.machine} is taken away"


class NotRequeued(Cause, frozen=True, kw_only=True):
    """No spot machine is bought for nodes, because Slurm must not requeue a job of them."""

    @property
    def words(self) -> str:
        return (
            "a job of this request must not be requeued (--no-requeue), so it gets no spot machine"
        )


class NodeOnDemand(Cause, frozen=True, kw_only=True):
    """No spot machine is bought for the last nodes of the ``pool`` (``on_demand_nodes``)."""

    pool: str

    @property
    def words(self) -> str:
        return f"these nodes get no spot machines (on_demand_nodes of pool {self.pool})"


class WaitsOffSpot(Cause, frozen=True, kw_only=True):
    """No spot machine is bought for nodes that a growth policy starts, because Slurm may start the
    waiting ``jobs`` there, which must stay off spot machines.
    """

    jobs: tuple[int, ...]

    @property
    def words(self) -> str:
        names = ", ".join(str(job) for job in self.jobs[:SHOWN_JOBS])
        hidden_jobs = len(self.jobs) - SHOWN_JOBS
        count = f" and {counted(hidden_jobs, 'other')}" if hidden_jobs > 0 else ""
        return (
            "jobs that must stay off spot machines wait, and may start on a machine that growth"
            f" starts now: {names}{count}"
        )


NoSpot = NotRequeued | NodeOnDemand | WaitsOffSpot
"""Why no spot machine is bought for nodes."""


class NotSavable(Cause, frozen=True, kw_only=True):
    """No spot machine is bought for the job, because the job cannot be saved."""

    cause: Quoted | Hindrance

    @property
    def words(self) -> str:
        return f"it cannot be saved: {self.cause}"


class NoOffers(Cause, frozen=True, kw_only=True):
    """The ``cloud`` gave no offers. If ``cloud`` is "", the pool has no offer."""

    cloud: str = ""

    @property
    def words(self) -> str:
        return f"cloud {self.cloud} gave no offers" if self.cloud else "it has no offer"


class CloudSilent(Cause, frozen=True, kw_only=True):
    """The cloud's offers could not be read. ``error``: the error of the cloud, or our own."""

    cloud: str
    error: str

    @property
    def words(self) -> str:
        return self.error


class CloudUnlisted(Cause, frozen=True, kw_only=True):
    """Nothing is bought in the cloud, because its machines could not be listed."""

    cloud: str
    error: str

    @property
    def words(self) -> str:
        return f"its machines could not be listed, so it sells none: {self.error}"


OfferRefusal = (
    PartlyGiven | TakenAway | NoSpot | NotSavable | NoOffers | CloudSilent | CloudUnlisted
)
"""The causes of cool-downs that are defined here. A cloud's error texts are Quoted causes."""
