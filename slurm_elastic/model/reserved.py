"""Capacity of a public cloud that the site has paid for, or promised to pay for, in advance.

Units: money in US dollars, prices in dollars per hour, points in time as Unix time.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

BLOCK_LEAD_S = 1800.0
"""EC2 begins to end the machines of a capacity block this long before the block's end (EC2 user
guide, "Work with Capacity Blocks": thirty minutes).
"""


class ReservationKind(StrEnum):
    """How the cloud knows which machines a reservation covers.

    The first and last cover any matching machine on the bill, so a launch needs no id. A launch
    must name the other two, and a machine that does not name them is not covered.
    """

    INSTANCES = "reserved-instances"
    CAPACITY = "capacity-reservation"
    BLOCK = "capacity-block"
    SAVINGS = "savings-plan"


TARGETED = frozenset({ReservationKind.CAPACITY, ReservationKind.BLOCK})
"""The kinds whose id a launch must name."""


class Held(Struct, frozen=True, kw_only=True):
    """One reservation of a cloud, from ``begins_at`` until ``ends_at``.

    ``count`` machines of ``instance_type`` in ``zone`` ("": any zone) cost ``upfront`` dollars in
    all and ``price`` per machine-hour, which is due at all times (``always``), or only while a
    machine runs. A savings plan has no count: it costs ``commit`` per hour at all times, and covers
    machines of ``families`` (by family, the share that it takes off the on-demand price).
    """

    cloud: str
    name: str
    kind: ReservationKind
    begins_at: float
    ends_at: float
    instance_type: str = ""
    zone: str = ""
    count: int = 0
    upfront: float = 0.0
    price: float = 0.0
    always: bool = True
    id: str = ""
    commit: float = 0.0
    families: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The scope of its machines in ``Usage``: ``reservation:CLOUD/NAME``."""
        return f"reservation:{self.cloud}/{self.name}"

    @property
    def is_savings_plan(self) -> bool:
        """Whether the reservation is counted in dollars instead of machines."""
        return self.kind is ReservationKind.SAVINGS

    @property
    def machines_end_at(self) -> float | None:
        """When the cloud ends the reservation's machines; None if they may run on at another
        price.
        """
        return self.ends_at - BLOCK_LEAD_S if self.kind is ReservationKind.BLOCK else None

    @property
    def hours(self) -> float:
        """The length of its term in hours."""
        return (self.ends_at - self.begins_at) / 3600

    @property
    def fixed_per_hour(self) -> float:
        """The price of one hour of the whole reservation, used or not."""
        if self.is_savings_plan:
            return self.commit
        return self.upfront / self.hours + (self.count * self.price if self.always else 0.0)

    @property
    def marginal_price(self) -> float:
        """What one more machine-hour adds to the bill."""
        return 0.0 if self.always else self.price

    def machine_price(self, on_demand_price: float, instance_type: str) -> float:
        """The true price of a machine-hour that the reservation covers: the machine's share of the
        fixed price, and the price of use.
        """
        if self.is_savings_plan:
            return on_demand_price * (1 - self.families.get(family_of(instance_type), 0.0))
        return self.fixed_per_hour / self.count + self.marginal_price

    def covers_type(self, instance_type: str, zone: str) -> bool:
        """Whether the reservation is for machines of this type in this zone."""
        if self.is_savings_plan:
            return family_of(instance_type) in self.families
        return instance_type == self.instance_type and self.zone in ("", zone)

    def is_active(self, now: float) -> bool:
        """Whether a machine may be started on the reservation now."""
        ends_at = self.ends_at if self.machines_end_at is None else self.machines_end_at
        return self.begins_at <= now < ends_at

    def is_paid(self, now: float) -> bool:
        """Whether the reservation's price is due now."""
        return self.begins_at <= now < self.ends_at


def family_of(instance_type: str) -> str:
    """The family of an instance type: the part before the dot, such as c6i of c6i.large."""
    return instance_type.partition(".")[0]
