"""The limits that leave too little room for machines."""

from __future__ import annotations

from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.model.causes.cause import Cause
from slurm_elastic.model.directive import scope_in_words


class FewFree(Cause, frozen=True, kw_only=True):
    """The cloud has only ``free`` machines available. ``cloud_message``: the provider's text about
    that.
    """

    cloud: str
    free: int
    cloud_message: str = ""

    @property
    def words(self) -> str:
        suffix = f": {self.cloud_message}" if self.cloud_message else ""
        return f"{self.cloud} has {self.free} free{suffix}"


class NodesLimited(Cause, frozen=True, kw_only=True):
    """The limit of machines of a ``scope`` ("": the cluster) is reached. If ``market`` is set, it
    is the limit for this market.
    """

    scope: str
    limit: int
    used: int
    market: str = ""

    @property
    def words(self) -> str:
        market = f" on {self.market}" if self.market else ""
        scope = scope_in_words(self.scope)
        limit = counted(self.limit, "node")
        return f"{scope}{market} is limited to {limit}, {self.used} are in use"


class DollarsLimited(Cause, frozen=True, kw_only=True):
    """The spending cap ``limit`` ($/h) of a ``scope`` ("": the cluster) has no room for the offer,
    which costs up to ``price`` ($/h).
    """

    scope: str
    limit: float
    spent: float
    price: float

    @property
    def words(self) -> str:
        return (
            f"{scope_in_words(self.scope)} may spend {money(self.limit)}/h, spends"
            f" {money(self.spent)}/h and this costs up to {money(self.price)}/h"
        )


class BootsLimited(Cause, frozen=True, kw_only=True):
    """At most ``limit`` machines of a ``scope`` may boot at a time."""

    scope: str
    limit: int

    @property
    def words(self) -> str:
        return f"{scope_in_words(self.scope)} boots {self.limit} at a time"


class StartsLimited(Cause, frozen=True, kw_only=True):
    """The cloud's API limits the number of machine starts per second."""

    cloud: str

    @property
    def words(self) -> str:
        return f"the API of cloud {self.cloud} starts only so many machines a second"


BootCap = BootsLimited | StartsLimited
"""The limits because of which machines wait for their turn to boot."""


class WaitsForTurn(Cause, frozen=True, kw_only=True):
    """The node waits for its turn to boot."""

    cap: BootCap

    @property
    def words(self) -> str:
        return f"for its turn: {self.cap}"


class TurnMissed(Cause, frozen=True, kw_only=True):
    """The node waited for its turn to boot until the rest of ResumeTimeout was too short."""

    waited_s: float
    timeout_s: float
    cap: BootCap

    @property
    def words(self) -> str:
        return (
            f"its turn to boot did not come in {brief(self.waited_s)}: {self.cap}, and the rest of"
            f" ResumeTimeout ({brief(self.timeout_s)}) is too short"
        )


class RequestTooLate(Cause, frozen=True, kw_only=True):
    """Refused launches, or a wait for the cloud, took so long that the rest of ResumeTimeout is too
    short for a boot.
    """

    waited_s: float
    timeout_s: float

    @property
    def words(self) -> str:
        return (
            f"no machine could be launched within {brief(self.waited_s)}, and the rest of"
            f" ResumeTimeout ({brief(self.timeout_s)}) is too short"
        )


class ReservationUsed(Cause, frozen=True, kw_only=True):
    """Machines use the reservation already: ``machines`` of ``count``, or ``spent`` of the savings
    plan's ``commit`` ($/h).
    """

    reservation: str
    machines: int
    count: int
    commit: float
    spent: float

    @property
    def words(self) -> str:
        if self.commit:
            used = f"{money(self.spent)}/h of {money(self.commit)}/h are in use"
        else:
            used = f"{self.machines} of {self.count} machines are in use"
        return f"reservation {self.reservation}: {used}"


Bound = (
    FewFree
    | ReservationUsed
    | NodesLimited
    | DollarsLimited
    | BootCap
    | WaitsForTurn
    | TurnMissed
    | RequestTooLate
)
"""All limits that leave too little room or time."""
