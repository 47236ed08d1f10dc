"""The section ``reservations`` of a cloud: what the site has reserved there."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.config.basics.numbers import Count, Dollars, Moment, PerHour, Share
from slurm_elastic.model.reserved import Held, ReservationKind


class Reservation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacity that is paid in advance, or promised, from ``from`` until ``to``."""

    name: str
    """Change it when it means something else to people; end its machines first, because their tags
    have this name.
    """
    kind: ReservationKind = ReservationKind.INSTANCES
    """Change it when the contract is a savings plan, or a launch has to name it by an id."""
    begins_at: Moment = field(name="from")
    """Change it when the contract begins at another time."""
    ends_at: Moment = field(name="to")
    """Change it when the contract ends at another time."""
    type: str | None = None
    """Change it when the contract is for another instance type."""
    zone: str | None = None
    """Change it when the contract is for one zone; without the key it is for all zones."""
    count: Count | None = None
    """Change it when the contract is for more or fewer machines."""
    upfront: Annotated[float, Meta(ge=0)] = 0.0
    """Change it when you pay dollars at the start, for all machines together."""
    price: PerHour = 0.0
    """Change it when a machine-hour costs something besides the upfront payment."""
    always: bool = True
    """Change it when the price is due only while a machine runs (`false`)."""
    id: str | None = None
    """Change it when the cloud gives a capacity reservation or block another id."""
    commit: Dollars | None = None
    """Change it when the savings plan promises other dollars per hour."""
    families: dict[str, Share] = field(default_factory=dict)
    """Change it when the savings plan covers other families, or takes another share off their
    on-demand prices.
    """

    def held(self, cloud: str) -> Held:
        """The reservation in the form of the domain model."""
        return Held(
            cloud=cloud,
            name=self.name,
            kind=self.kind,
            begins_at=self.begins_at,
            ends_at=self.ends_at,
            instance_type=self.type or "",
            zone=self.zone or "",
            count=self.count or 0,
            upfront=self.upfront,
            price=self.price,
            always=self.always,
            id=self.id or "",
            commit=self.commit or 0.0,
            families=self.families,
        )
