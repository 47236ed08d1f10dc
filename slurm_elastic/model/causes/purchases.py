"""The purchases for nodes that Slurm waits for."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import counted, money
from slurm_elastic.model.causes.cause import Cause


class BestOffer(Cause, frozen=True, kw_only=True):
    """The best offer for ``nodes`` nodes of a pool. ``offer``: its ``Offer.key``, "" if none
    serves.
    """

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
    """The machines of a launch. ``offers``: the number of offers that the cloud chose among."""

    machines: tuple[MachinesOfKind, ...]
    offers: int = 1

    @property
    def words(self) -> str:
        is_mixed = len(self.machines) > 1
        texts = [f"{kind} ({kind.count})" if is_mixed else str(kind) for kind in self.machines]
        among = f", chosen by the cloud among {self.offers} offers" if self.offers > 1 else ""
        return "; ".join(texts) + among


class MachineStarted(Cause, frozen=True, kw_only=True):
    """A stopped machine is started instead of a purchase. ``price``: $/h."""

    machine: str
    instance_type: str
    zone: str
    price: float

    @property
    def words(self) -> str:
        return (
            f"{self.machine}, which was stopped: {self.instance_type} in {self.zone}, "
            f"{money(self.price)}/h"
        )


class StartRefused(Cause, frozen=True, kw_only=True):
    """The cloud refused to start the stopped ``machine``, with an ``error``."""

    machine: str
    error: str

    @property
    def words(self) -> str:
        return f"{self.machine}: {self.error}"


class NeverUsed(Cause, frozen=True, kw_only=True):
    """The machines of ``nodes``, which a growth policy started for the jobs, came up and no job
    used them.
    """

    nodes: tuple[str, ...]

    @property
    def words(self) -> str:
        came_up = f"{compress(self.nodes)} came up and no job used it"
        return f"{came_up}; for a time growth does not count the jobs that it was started for"


Purchase = BestOffer | MachinesBought | MachineStarted | StartRefused | NeverUsed
"""All causes about purchases."""
