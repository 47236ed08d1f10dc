"""The machines of a pool whose state is in C (``pool.h``), as Python policies see them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.simulate.core import _core
from slurm_elastic.simulate.core.modelled import ORDERS
from slurm_elastic.simulate.machines import MachineFacts, PoolMachines
from slurm_elastic.simulate.scenario import PoolModel
from slurm_elastic.simulate.shared_machines import SharedMachines

_COUNTS = (
    "idle", "busy", "booting", "held", "launched", "released", "launches", "releases", "reclaimed",
    "busy_area", "up_area", "spot_area", "spot_live", "draining", "promised",
)  # fmt: skip


class CompiledPool(_core.Pool, MachineFacts):
    """Answers all questions that ``PoolMachines`` answers. Only C changes machines.

    ``free``: answers ``entries`` only. ``leases``: its columns only. ``shared``: only whether
    machines are shared.
    """

    shared: SharedMachines | None = None
    yields = False

    def __init__(self, pool: PoolModel, order: IdleOrder, seed: int) -> None:
        # Python's rules only read these columns, as they read lists and arrays.
        self._live = array("q", [0]) * len(pool.sold)
        self._describe(pool, order, cast("list[int]", self._live))
        self.ending = None
        self.order_name, self.seed = order, seed
        self.free = self
        self.batch_start = cast("list[int]", self.column("batch_start"))
        self.batch_ready = self.column("batch_ready")
        self.batch_live = cast("list[int]", self.column("batch_live"))
        self.batch_offer = cast("array[int]", self.column("batch_offer"))
        names = ("batch", "end", "count", "reclaimed")
        self.leases = SimpleNamespace(**{name: self.column(f"lease_{name}") for name in names})

    def join(self, number: int, needs: Sequence[int]) -> _core.Decision:
        """Give the rules of the pool to C. Returns where Purchases stores its decision."""
        pool, decision = self.pool, _core.Decision()
        decision.until = -1
        self.number, self.machines, self.standing = number, pool.machines, pool.standing
        self.lease, self.grid, self.after = self._lease, self._grid, self._after
        self.order, self.sinces = ORDERS.index(self.order_name), int(self._sinces)
        self.flagged, self.pays_boots = int(self._flagged), int(self._pays_boots)
        self.must_yield, self.has_turns = int(self.yields), int(bool(self.turns))
        self.max_booting = -1 if pool.max_booting is None else pool.max_booting
        self.is_public, self.spot_offers = int(pool.public), len(self.spots)
        self.sharing, self.by_user = int(self.shared is not None), int(pool.by_user)
        self.connect(
            self._live, array("q", map(int, self._on_spot)), array("q", needs), decision,
            pool.procs, pool.memory, pool.gpus,
        )  # fmt: skip
        falls = array("q", self.falls)
        self.falls = cast("list[int]", falls)
        self._same_from, self._same_to = array("q", bytes(8 * len(falls))), array("q", falls)
        alone = array("q", [int(len(sharers) == 1) for sharers in self._sharing])
        self.watch_losses(falls, self._same_from, self._same_to, alone)
        return decision

    def next_losses(self, now: int) -> list[tuple[int, int]]:
        """Return (second, offer) of each unplanned loss of spot machines."""
        losses = [(self.watch(now, offer), offer) for offer in self.spots]
        for offer in self.spots:
            self._same_from[offer], self._same_to[offer] = self._same_fall[offer]
        return [(when, offer) for when, offer in losses if when is not None]

    def books(self) -> PoolMachines:
        """Return the books after the run, as the engine in Python leaves them. The state in C is
        gone then.
        """
        machines = PoolMachines(self.pool, self.order_name, self.seed)
        machines.shared, machines.turns, machines.yields = self.shared, self.turns, self.yields
        if machines.shared is not None:
            machines.shared.overlap = self.overlap
        for name in _COUNTS:
            setattr(machines, name, getattr(self, name))
        machines.live_of[:] = self.live_of
        leases = machines.leases
        machines.batch_start += self._moved("batch_start")
        machines.batch_live += self._moved("batch_live")
        machines.batch_ready.extend(self._moved("batch_ready"))
        offers = self._moved("batch_offer")
        machines.batch_offer.extend(iter(offers))
        machines.batch_spot.extend(map(self._on_spot.__getitem__, offers))
        leases.batch.extend(self._moved("lease_batch"))
        leases.end.extend(self._moved("lease_end"))
        leases.count.extend(self._moved("lease_count"))
        leases.reclaimed.extend(iter(self._moved("lease_reclaimed")))
        for batch, since, count in self.entries():
            machines.free.put(batch, count, since)
        return machines

    def _moved(self, name: str) -> array[int]:
        """Return a column, whose memory in C is freed."""
        column = self.column(name)
        moved = array("q", column.tobytes())
        column.drop()
        return moved

    def forget(self) -> None:
        """Drop the columns, which hold this object, so that its memory can be freed."""
        self.__dict__.clear()
