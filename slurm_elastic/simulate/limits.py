"""Limits that pools have in common, and limits of one market: what they leave at a moment.
How many machines may boot at a time, of one pool or of several.

Machines of such pools are ``CappedMachines``. A limit counts what is up or boots; on-demand
machines count in public clouds only, and dollars per hour at the on-demand price, as the daemon
counts them.
Where a limit is shared, idle machines go when they are due although jobs wait, as Slurm's
SuspendTime has it: another pool may need their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_elastic.policies.release import Order
from slurm_elastic.simulate.boot_slots import Turns
from slurm_elastic.simulate.machines import Machines
from slurm_elastic.simulate.market import NEVER, PLENTY
from slurm_elastic.simulate.scenario import Cap, PoolModel, Scenario

Later = Callable[[int, None], None]
"""Told at which second the queue is to be looked at."""


class Shared:
    """One cap over the machines of its pools."""

    def __init__(self, cap: Cap, members: Sequence[Machines]) -> None:
        self.cap, self.members = cap, members

    def left(self, price: float) -> int:
        """Machines of any market, of that price ($/h on demand)."""
        left, cap = PLENTY, self.cap
        if cap.machines is not None:
            left = cap.machines - sum(machines.up for machines in self.members)
        if cap.dollars is not None and price > 0:
            spent = sum(machines.up * machines.pool.price for machines in self.members)
            left = min(left, int((cap.dollars - spent) / price + 1e-9))
        return left

    def spot_left(self) -> int:
        """Spot machines."""
        if self.cap.spot is None:
            return PLENTY
        return self.cap.spot - sum(machines.spot_live for machines in self.members)

    def on_demand_left(self) -> int:
        """Machines on demand in public clouds."""
        if self.cap.on_demand is None:
            return PLENTY
        public = [machines for machines in self.members if machines.pool.public]
        return self.cap.on_demand - sum(machines.up - machines.spot_live for machines in public)


class CappedMachines(Machines):
    """Machines under caps; call ``under`` before the first second."""

    def __init__(self, pool: PoolModel, order: Order, seed: int) -> None:
        super().__init__(pool, order, seed)
        self.shared: list[Shared] = []
        self._told = -1

    def under(self, shared: Shared, clock: Callable[[], int], later: Later) -> None:
        """One cap more. ``later`` is called where spot machines may be had again."""
        self.shared.append(shared)
        self._clock, self._later = clock, later
        self.yields = self.yields or len(shared.members) > 1

    def room(self) -> int:
        """How many more may be launched now."""
        room = super().room()
        if room <= 0 or not self.shared:
            return room
        spot = 0
        if self.pool.spot is not None:
            spot = self._spot_room(room, self._clock())
        left = spot
        if self.pool.public:
            left += max(min(shared.on_demand_left() for shared in self.shared), 0)
        else:
            left = room
        left = min(room, left, *(shared.left(self.pool.price) for shared in self.shared))
        if left < room and self.pool.spot is not None:
            self._tell()
        return max(left, 0)

    def _spot_room(self, count: int, now: int) -> int:
        found = super()._spot_room(count, now)
        return max(min(found, *(shared.spot_left() for shared in self.shared)), 0)

    def _tell(self) -> None:
        """Whoever waits looks again when the spot market changes."""
        until = self._spot_until
        if until not in (self._told, NEVER):
            self._told = until
            self._later(until, None)


def machines_of(scenario: Scenario, clock: Callable[[], int], later: Later) -> list[Machines]:
    """The machines of a scenario's pools. ``clock``: the time of the simulation."""
    capped = {name for cap in scenario.caps for name in cap.pools}
    found: list[Machines] = []
    by_name: dict[str, CappedMachines] = {}
    for index, pool in enumerate(scenario.pools):
        parts = (pool, scenario.order, scenario.seed + index)
        if pool.name in capped:
            by_name[pool.name] = CappedMachines(*parts)
        found.append(by_name[pool.name] if pool.name in capped else Machines(*parts))
    for cap in scenario.caps:
        shared = Shared(cap, [by_name[name] for name in cap.pools if name in by_name])
        for machines in shared.members:
            by_name[machines.pool.name].under(shared, clock, later)
    _limit_boots(scenario, found)
    return found


def _limit_boots(scenario: Scenario, found: Sequence[Machines]) -> None:
    """Hand out the turns to boot: first the pool's own, then those that it shares."""
    for machines in found:
        if machines.pool.max_booting is not None:
            machines.turns = (Turns(machines.pool.max_booting),)
    for cap in scenario.boot_caps:
        turns = Turns(cap.machines)
        for machines in found:
            if machines.pool.name in cap.pools:
                machines.turns = (*machines.turns, turns)
