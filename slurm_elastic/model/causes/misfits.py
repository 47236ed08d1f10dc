"""Why an offer does not fit a pool."""

from __future__ import annotations

from slurm_elastic.base.units import brief, format_moment, money
from slurm_elastic.model.causes.cause import Cause


class OfCloud(Cause, frozen=True, kw_only=True):
    """The offer is of another cloud than the pool."""

    cloud: str
    pool_cloud: str

    @property
    def words(self) -> str:
        return f"is of cloud {self.cloud}, the pool is of {self.pool_cloud}"


class MarketNotUsed(Cause, frozen=True, kw_only=True):
    """The pool does not use the offer's market."""

    market: str

    @property
    def words(self) -> str:
        return f"the pool does not use the {self.market} market"


class TypeNotUsed(Cause, frozen=True, kw_only=True):
    """The pool does not use the offer's instance type."""

    instance_type: str

    @property
    def words(self) -> str:
        return f"{self.instance_type} is not among the pool's instance types"


class ZoneNotUsed(Cause, frozen=True, kw_only=True):
    """The pool does not use the offer's zone."""

    zone: str

    @property
    def words(self) -> str:
        return f"zone {self.zone} is not among the pool's zones"


class TooSmall(Cause, frozen=True, kw_only=True):
    """The machine has less of a ``resource`` (``cpus``, ``MiB``, a gres) than the pool's nodes
    need.
    """

    resource: str
    has: int
    needed: int

    @property
    def words(self) -> str:
        unit = " MiB" if self.resource == "MiB" else ""
        return f"has {self.has} {self.resource}, the pool's nodes need {self.needed}{unit}"


class PriceMistyped(Cause, frozen=True, kw_only=True):
    """The configured on-demand price ``typed`` ($/h) of a type is below the cloud's own price
    ``asked``. ``reference``: the source of the cloud's price.
    """

    cloud: str
    instance_type: str
    typed: float
    asked: float
    reference: str

    @property
    def words(self) -> str:
        return (
            f"clouds[{self.cloud}].types[{self.instance_type}].price of the configuration is"
            f" {money(self.typed)}/h, but the cloud itself asks {money(self.asked)}/h"
            f" ({self.reference}): no machine of this type is started before the right price is"
            " there"
        )


class TooDear(Cause, frozen=True, kw_only=True):
    """The offer costs more than the pool's maximum price ($/h)."""

    price: float
    maximum: float

    @property
    def words(self) -> str:
        return f"costs {money(self.price)}/h, the pool pays at most {money(self.maximum)}/h"


class SpotNotCheaper(Cause, frozen=True, kw_only=True):
    """The spot price is not below the on-demand price ($/h)."""

    price: float
    on_demand: float

    @property
    def words(self) -> str:
        dear = money(self.on_demand)
        return f"spot at {money(self.price)}/h is not cheaper than on-demand at {dear}/h"


class ReservationNotRunning(Cause, frozen=True, kw_only=True):
    """The reservation takes machines only between ``begins_at`` and ``ends_at`` (Unix time)."""

    reservation: str
    begins_at: float
    ends_at: float

    @property
    def words(self) -> str:
        span = f"from {format_moment(self.begins_at)} until {format_moment(self.ends_at)}"
        return f"reservation {self.reservation} takes machines {span}"


class ReservationEnds(Cause, frozen=True, kw_only=True):
    """The cloud ends the machines of the reservation at ``ends_at`` (Unix time), but the jobs may
    run for ``needs_s`` seconds (None: they have no time limit) and cannot be saved.
    """

    reservation: str
    ends_at: float
    needs_s: float | None

    @property
    def words(self) -> str:
        end = f"reservation {self.reservation} ends its machines at {format_moment(self.ends_at)}"
        if self.needs_s == 0:
            return f"{end}, too soon for a boot"
        span = "without a time limit" if self.needs_s is None else f"of up to {brief(self.needs_s)}"
        return f"{end}, too soon for a job {span} that cannot be saved"


Misfit = (
    OfCloud
    | MarketNotUsed
    | TypeNotUsed
    | ZoneNotUsed
    | TooSmall
    | PriceMistyped
    | TooDear
    | SpotNotCheaper
    | ReservationNotRunning
    | ReservationEnds
)
"""All reasons why an offer does not fit a pool."""
