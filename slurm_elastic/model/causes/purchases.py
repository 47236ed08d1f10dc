"""What is bought for nodes that Slurm waits for."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.base.units import counted, money
from slurm_elastic.model.causes.cause import Cause


class BestOffer(Cause, frozen=True, kw_only=True):
    """The best ``offer`` for so many nodes of a pool, by its key; "" if none serves."""

    nodes: int
    pool: str
    offer: str

    @property
    def words(self) -> str:
        nodes = counted(self.nodes, "node")
        return f"best offer for {nodes} of pool {self.pool}: {self.offer or 'none'}"


class MachinesOfKind(Struct, frozen=True, kw_only=True):
    """``count`` machines of one type, zone, market and price ($/h)."""

    instance_type: str
    zone: str
    market: str
    price: float
    count: int

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.zone}, {self.market}, {money(self.price)}/h"


class MachinesBought(Cause, frozen=True, kw_only=True):
    """The machines of a launch, for which the cloud could choose among so many ``offers``."""

    machines: tuple[MachinesOfKind, ...]
    offers: int = 1

    @property
    def words(self) -> str:
        is_mixed = len(self.machines) > 1
        parts = [f"{one} ({one.count})" if is_mixed else str(one) for one in self.machines]
        among = f", chosen by the cloud among {self.offers} offers" if self.offers > 1 else ""
        return "; ".join(parts) + among


Purchase = BestOffer | MachinesBought
"""All causes of what is bought."""
