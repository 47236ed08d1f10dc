"""The section ``discounts`` of a cloud: how the site's bill differs from the published prices."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

from slurm_elastic.config.basics.numbers import PerHour, Share
from slurm_elastic.model.cluster import Market


class Discount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contract's part of a price. All entries that fit a machine count: discounts one after the
    other, then the sum of the fees.
    """

    discount: Share = 0.0
    """Change it when the contract takes another share off the published prices (0.2: 20 %)."""
    fee: PerHour = 0.0
    """Change it when a licence or support costs other $/h for each machine."""
    types: tuple[str, ...] = ()
    """Change it when the entry is for some types only; patterns such as `c6i.*` work."""
    markets: tuple[Market, ...] = ()
    """Change it when the entry is for spot machines or for on-demand machines only."""

    def fits(self, instance_type: str, market: Market) -> bool:
        """Whether the entry counts for machines of this type on this market. A machine on a
        reservation is an on-demand machine for the cloud.
        """
        sold_as = Market.SPOT if market is Market.SPOT else Market.ON_DEMAND
        is_of_type = not self.types or any(fnmatchcase(instance_type, t) for t in self.types)
        return is_of_type and (not self.markets or sold_as in self.markets)
