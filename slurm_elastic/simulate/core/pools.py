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
        return decision

    def books(self) -> PoolMachines:
        """Return the books after the run, as the engine in Python leaves them."""
        machines = PoolMachines(self.pool, self.order_name, self.seed)
        machines.shared, machines.turns, machines.yields = self.shared, self.turns, self.yields
        if machines.shared is not None:
            machines.shared.overlap = self.overlap
        for name in _COUNTS:
            setattr(machines, name, getattr(self, name))
        machines.live_of[:] = self.live_of
        machines.batch_start += _numbers(self, "batch_start")
        machines.batch_live += _numbers(self, "batch_live")
        machines.batch_due += _numbers(self, "batch_due")
        machines.batch_ready.frombytes(self.column("batch_ready").tobytes())
        machines.batch_offer.extend(offers := _numbers(self, "batch_offer"))
        machines.batch_spot.extend([self._on_spot[offer] for offer in offers])
        leases = machines.leases
        leases.batch.frombytes(self.column("lease_batch").tobytes())
        leases.end.frombytes(self.column("lease_end").tobytes())
        leases.count.frombytes(self.column("lease_count").tobytes())
        leases.reclaimed.extend(_numbers(self, "lease_reclaimed"))
        for batch, since, count in self.entries():
            machines.free.put(batch, count, since)
        return machines

    def forget(self) -> None:
        """Drop the columns, which hold this object, so that its memory can be freed."""
        self.__dict__.clear()


def _numbers(pool: CompiledPool, name: str) -> list[int]:
    return array("q", pool.column(name).tobytes()).tolist()
