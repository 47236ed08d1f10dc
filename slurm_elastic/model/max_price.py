"""The highest price that a pool pays for a machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

Price = Annotated[float, Meta(gt=0)]
PartOfPrice = Annotated[float, Meta(gt=0, le=1)]


class MaxPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest price of spot machines alone. ``types`` goes before the other keys."""

    spot: Price | None = None
    """Change it when spot machines should cost at most so many $/h, and on-demand machines more."""
    of_on_demand: PartOfPrice | None = None
    """Change it when spot is worth its interruptions only below a part of the on-demand price."""
    types: dict[str, Price] = field(default_factory=dict)
    """Change it when the pool's instance types are worth different prices ($/h)."""

    def of_type(self, instance_type: str, on_demand_price: float | None) -> float | None:
        """The highest price ($/h) of a spot machine of that type. None: no bound.
        ``on_demand_price``: None if it is not known.
        """
        price = self.types.get(instance_type, self.spot)
        if price is not None or self.of_on_demand is None or on_demand_price is None:
            return price
        return self.of_on_demand * on_demand_price
