"""Causes with another cause as a field, and the union of all causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from slurm_elastic.base.units import counted, format_moment, money
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.checkpoints import CheckpointStep
from slurm_elastic.model.causes.copies import Copying
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.departures import DepartureStep
from slurm_elastic.model.causes.growth import GrowthStep
from slurm_elastic.model.causes.hindrances import SavabilityStep
from slurm_elastic.model.causes.holds import NodeHold
from slurm_elastic.model.causes.hypervisors import HostPowerStep
from slurm_elastic.model.causes.image_changes import ImageStep
from slurm_elastic.model.causes.joining import Joining
from slurm_elastic.model.causes.limits import Bound
from slurm_elastic.model.causes.machine_ends import MachineEnd
from slurm_elastic.model.causes.misfits import Misfit, ReservationEnds
from slurm_elastic.model.causes.moves import MoveStep
from slurm_elastic.model.causes.pool_failures import PoolFailure
from slurm_elastic.model.causes.purchases import Purchase
from slurm_elastic.model.causes.refusals import OfferRefusal
from slurm_elastic.model.causes.repairs import NodeIll, Repair
from slurm_elastic.model.causes.requeues import MachinesLost
from slurm_elastic.model.causes.run_starts import RunStartCause
from slurm_elastic.model.causes.stops import SiteStop, StoppedByOrder
from slurm_elastic.model.causes.threats import MoveReason
from slurm_elastic.model.causes.unwanted import Unwanted


class CoolsDown(Cause, frozen=True, kw_only=True):
    """The offer is not used ``until`` a deadline, after an error with this ``code``."""

    until: Deadline
    code: str
    cause: AnyCause

    @property
    def words(self) -> str:
        return f"cooling down {self.until} after {self.code}: {self.cause}"


class PoolPaused(Cause, frozen=True, kw_only=True):
    """Nothing is bought for the ``pool`` ``until`` a deadline."""

    pool: str
    until: Deadline
    cause: AnyCause

    @property
    def words(self) -> str:
        return f"pool {self.pool} is paused {self.until}: {self.cause}"


class PoolTried(Cause, frozen=True, kw_only=True):
    """One machine is bought for the ``pool``, to test whether the pool works again."""

    pool: str
    cause: AnyCause

    @property
    def words(self) -> str:
        return f"pool {self.pool} is tried with one machine, as {self.cause}"


class SpotRefused(Cause, frozen=True, kw_only=True):
    """The ``job`` gets no spot machine. Users of arrays do not know its number, so the sentence
    does not contain it. Decisions name their jobs beside it.
    """

    job: int
    cause: AnyCause

    @property
    def words(self) -> str:
        return f"a job of this request gets no spot machine: {self.cause}"


class RoomShort(Cause, frozen=True, kw_only=True):
    """The offers have room for ``room`` nodes only, fewer than ``wanted``."""

    room: int
    wanted: int
    cause: AnyCause

    @property
    def words(self) -> str:
        return f"{self.room} of {self.wanted} nodes are available now: {self.cause}"


class NeverTogether(Cause, frozen=True, kw_only=True):
    """The ``wanted`` nodes of a job can never run together in the cloud, which has ``max_nodes`` at
    most because of ``bound``. ``consequence``: the consequence for the job, "" if not decided yet.
    """

    cloud: str
    wanted: int
    max_nodes: int
    bound: AnyCause | None
    consequence: str = ""

    @property
    def words(self) -> str:
        return (
            f"its {self.wanted} nodes can never run together in cloud {self.cloud},"
            f" {self.max_nodes} at most: {self.bound or 'it has no offer'}"
            f"{f'; {self.consequence}' if self.consequence else ''}"
        )


class NeverInTime(Cause, frozen=True, kw_only=True):
    """The cloud has too few machines that stay as long as a job may run, because of the ``end`` of
    a reservation. ``consequence``: the consequence for the job, "" if not decided yet.
    """

    cloud: str
    end: ReservationEnds
    consequence: str = ""

    @property
    def words(self) -> str:
        return (
            f"{self.end}. Cloud {self.cloud} has too few other machines"
            f"{f', so {self.consequence}' if self.consequence else ''}"
        )


class NotYetInTime(Cause, frozen=True, kw_only=True):
    """As ``NeverInTime``, but a reservation that begins at ``begins_at`` (Unix time) has machines
    which stay long enough.
    """

    cloud: str
    end: ReservationEnds
    begins_at: float
    consequence: str = ""

    @property
    def words(self) -> str:
        return (
            f"{self.end}. Cloud {self.cloud} has machines for it from"
            f" {format_moment(self.begins_at)}"
            f"{f', so {self.consequence}' if self.consequence else ''}"
        )


class NotYetOnDemand(Cause, frozen=True, kw_only=True):
    """A job gets no spot machine, because Slurm must not requeue it, and because of ``cause`` the
    cloud has no other machine for it now. The cloud is asked again at ``begins_at`` (Unix time).
    ``consequence``: the consequence for the job, "" if not decided yet.
    """

    cloud: str
    cause: AnyCause
    begins_at: float
    consequence: str = ""

    @property
    def words(self) -> str:
        return (
            "the job must not be requeued (--no-requeue), so it gets no spot machine, and cloud"
            f" {self.cloud} has no other machine: {self.cause}. The cloud is asked again at"
            f" {format_moment(self.begins_at)}"
            f"{f', so {self.consequence}' if self.consequence else ''}"
        )


NotYetHere = NotYetInTime | NotYetOnDemand
"""Why a job cannot run in a cloud before some time."""

NeverHere = NeverTogether | NeverInTime
"""Why a job can never run in a cloud, however long it waits."""


class OffersRefused(Struct, frozen=True, kw_only=True):
    """``count`` offers with the same cause. ``first_offer``: the ``Offer.key`` of the first one."""

    first_offer: str
    count: int
    cause: AnyCause

    def __str__(self) -> str:
        whose = self.first_offer if self.count == 1 else f"{self.count} offers"
        return f"{whose}: {self.cause}"


class NoOfferServes(Cause, frozen=True, kw_only=True):
    """No offer serves the request. ``groups``: the largest groups of refused offers with the same
    cause. ``more_offers``: the number of further refused offers, with ``more_causes`` other causes.
    ``bounded``: groups of offers with too little room. ``spare`` > 0: so many nodes are available,
    but the ``lacking`` nodes of the ``pool`` are useful only together.
    """

    groups: tuple[OffersRefused, ...]
    more_offers: int = 0
    more_causes: int = 0
    pool: str = ""
    lacking: int = 0
    spare: int = 0
    bounded: tuple[OffersRefused, ...] = ()

    @property
    def words(self) -> str:
        lines = [*map(str, self.groups), *map(str, self.bounded)]
        if self.more_offers:
            lines.append(f"{self.more_offers} more for {counted(self.more_causes, 'other reason')}")
        if self.spare:
            need = f"wanted: {counted(self.lacking, 'node')} of pool {self.pool}"
            lines.insert(0, f"{need}, available: {self.spare} (a job gets all its nodes or none)")
        return "; ".join(lines)


class ScopeCoolsDown(Struct, frozen=True, kw_only=True):
    """One cool-down. ``scope``: the text of an OfferScope. ``pool``: set if all offers cool down
    for this pool only.
    """

    scope: str
    until: Deadline
    code: str
    cause: AnyCause
    pool: str = ""

    def __str__(self) -> str:
        name = f"pool {self.pool}" if self.pool else self.scope
        return f"{name} cools down {self.until}: {self.cause}"


class ScopesCoolDown(Cause, frozen=True, kw_only=True):
    """The pool or some of its offers cool down, because machines failed."""

    scopes: tuple[ScopeCoolsDown, ...]

    @property
    def words(self) -> str:
        return "; ".join(map(str, self.scopes))


class NodeFailed(Cause, frozen=True, kw_only=True):
    """Slurm took the node of ``machine`` out of service. ``cause``: why."""

    machine: str
    cause: NodeIll | Quoted

    @property
    def words(self) -> str:
        return f"{self.machine}: {self.cause}"


class StoppedMachineUnwanted(Cause, frozen=True, kw_only=True):
    """We will not start the stopped machine again. ``cause``: why."""

    cause: Unwanted | StoppedByOrder

    @property
    def words(self) -> str:
        return f"it was stopped: {self.cause}"


class RequestsRefused(Cause, frozen=True, kw_only=True):
    """Several pools of a request could not serve their nodes, each for another cause."""

    causes: tuple[AnyCause, ...]

    @property
    def words(self) -> str:
        return "; ".join(map(str, self.causes))


class ServesAnother(Cause, frozen=True, kw_only=True):
    """The machine serves another job, because its own job is not served whole."""

    cause: AnyCause

    @property
    def words(self) -> str:
        return f"its job cannot get all its nodes ({self.cause})"


class NodesUnavailable(Cause, frozen=True, kw_only=True):
    """The job is requeued, because no machine is available for its nodes."""

    cause: AnyCause

    @property
    def words(self) -> str:
        return f"no machine is available for its nodes: {self.cause}"


class OrderOver(Cause, frozen=True, kw_only=True):
    """The time of an operator's order (its ``number``) is over. ``order_text``: the order in one
    line.
    """

    number: int
    order_text: str

    @property
    def words(self) -> str:
        return f"its time is over: {self.order_text}"


class JobSetAside(Cause, frozen=True, kw_only=True):
    """The job starts no machine because of a ``limit``. It may start in other ``partitions``, or if
    there are none, when the limit ends.
    """

    limit: AnyCause
    partitions: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        if not self.partitions:
            return f"{self.limit}; it begins then"
        return f"{self.limit}; it may start in {', '.join(self.partitions)}"


class RepetitionFailed(Cause, frozen=True, kw_only=True):
    """A launch or a start was repeated for this ``cause``, and its cloud answered with an
    ``error``.
    """

    cause: AnyCause
    error: str

    @property
    def words(self) -> str:
        return f"{self.cause}: {self.error}"


class TagsNotBelieved(Cause, frozen=True, kw_only=True):
    """A machine was adopted for this ``cause``, but not with all its tags (``contradiction`` of
    another source).
    """

    cause: AnyCause
    contradiction: str

    @property
    def words(self) -> str:
        return f"{self.cause}; its tags are not trusted: {self.contradiction}"


class CloudsReordered(Cause, frozen=True, kw_only=True):
    """A waiting job tries ``cloud`` before ``instead_of``, where it would cost ``instead_cost``
    instead of ``cost`` ($; None: that cloud offers nothing). ``unavailable``: why that cloud cannot
    sell now.
    """

    cloud: str
    cost: float
    instead_of: str
    instead_cost: float | None = None
    unavailable: AnyCause | None = None

    @property
    def words(self) -> str:
        order = f"the job now tries cloud {self.cloud} before {self.instead_of}"
        if self.unavailable is not None:
            return f"{order}: {self.instead_of} cannot sell now: {self.unavailable}"
        instead = money(self.instead_cost or 0.0)
        return f"{order}: it costs about {money(self.cost)} instead of {instead}"


class StartsOver(Cause, frozen=True, kw_only=True):
    """The job is requeued for an operator's order without a saved state. ``number`` and
    ``order_text``: the order and its text in one line. ``obstacle``: why it was not saved, None if
    no checkpoint method is in use.
    """

    number: int
    order_text: str
    obstacle: AnyCause | None = None

    @property
    def words(self) -> str:
        obstacle = self.obstacle or "no checkpoint method is at work on this cluster"
        return f"it starts over ({obstacle}): {self.order_text}"


class ReplacementsMissing(Cause, frozen=True, kw_only=True):
    """``missing`` machines that should start ahead of an operator's order (``number``,
    ``order_text``) cannot start now. ``obstacle``: why.
    """

    missing: int
    obstacle: AnyCause
    number: int
    order_text: str

    @property
    def words(self) -> str:
        count = counted(self.missing, "replacement")
        return f"{count} cannot start now ({self.obstacle}): {self.order_text}"


class StoppedPool(Struct, frozen=True, kw_only=True):
    """Why a pool gets no machines."""

    pool: str
    cause: AnyCause

    def __str__(self) -> str:
        return f"nothing is started in pool {self.pool}: {self.cause}"


class GrowthStopped(Cause, frozen=True, kw_only=True):
    """No machine is started in these pools."""

    pools: tuple[StoppedPool, ...]

    @property
    def words(self) -> str:
        return "; ".join(
            f"nothing is started in pool {row.pool}: {row.cause}" for row in self.pools
        )


Composed = (
    GrowthStopped
    | StartsOver
    | ReplacementsMissing
    | CloudsReordered
    | RepetitionFailed
    | JobSetAside
    | TagsNotBelieved
    | CoolsDown
    | PoolPaused
    | PoolTried
    | SpotRefused
    | RoomShort
    | NeverTogether
    | NeverInTime
    | NotYetInTime
    | NotYetOnDemand
    | MachinesLost
    | NoOfferServes
    | ScopesCoolDown
    | NodeFailed
    | StoppedMachineUnwanted
    | RequestsRefused
    | ServesAnother
    | NodesUnavailable
    | OrderOver
)
"""All causes with another cause as a field."""

if TYPE_CHECKING:
    # mypy compares two unions class by class. With these hundreds of classes the types of the
    # package took it 190 s, with their base 25 s.
    AnyCause = Cause
else:
    AnyCause = (
        Quoted
        | MachineEnd
        | NodeHold
        | PoolFailure
        | OfferRefusal
        | SiteStop
        | Unwanted
        | Misfit
        | Bound
        | Purchase
        | Repair
        | MoveReason
        | RunStartCause
        | SavabilityStep
        | DepartureStep
        | HostPowerStep
        | ImageStep
        | Joining
        | Copying
        | CheckpointStep
        | GrowthStep
        | MoveStep
        | Composed
    )
"""All causes. A test fails if the union lacks a class."""
