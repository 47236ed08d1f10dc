"""Pools that keep some machines up without work (``min_idle``) until the last job ends.

They are topped up as soon as they lack any; the daemon does that at its next look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_elastic.policies.growth.scaling import spare
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.queueing import Queue
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scaler import Grower


class WarmingEngine(Protocol):
    """What is called of the engine."""

    jobs: Jobs
    queue: Queue
    runs: Runs
    grower: Grower

    def boot_ahead(self, pool: int, count: int, now: int) -> None:
        """Machines boot for whoever comes first."""
        ...

    def look_again(self, pool: int, now: int) -> None:
        """Machines that were due and stayed may go when it is due again."""
        ...

    def look_later(self, now: int) -> None:
        """Bounds may be open then."""
        ...


class Warm:
    """False if no pool has warm machines."""

    def __init__(self, site: WarmingEngine, pools: Sequence[PoolMachines]) -> None:
        self._site = site
        self._pools = [one for one in enumerate(pools) if one[1].pool.min_idle]

    def __bool__(self) -> bool:
        return bool(self._pools)

    def kept(self, machines: PoolMachines, now: int) -> int:
        """How many idle machines stay although they are due."""
        return machines.pool.min_idle if self._pools and self._goes_on(now) else 0

    def keep(self, now: int) -> None:
        """Start what is lacking; release what stayed and is no longer needed."""
        site = self._site
        for pool, machines in self._pools:
            least = self.kept(machines, now)
            count = site.grower.warm(machines, least, now) if least else 0
            if count:
                site.boot_ahead(pool, count, now)
                site.queue.paid_by_nobody()
            elif machines.idle + machines.booting < least and not site.grower.free_of_bounds:
                site.look_later(now)
            may_go = machines.postponed and (machines.yields or not site.queue.waiting)
            if may_go and spare(machines.idle, least):
                site.look_again(pool, now)

    def _goes_on(self, now: int) -> bool:
        """Whether there are jobs, or will be."""
        site = self._site
        return bool(site.runs.now or site.queue.waiting) or site.jobs.submit[-1] > now
