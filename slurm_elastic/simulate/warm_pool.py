"""Pools that keep machines up without work (``min_idle``) until the last job ends.

The simulator starts a missing machine at once, the daemon at its next look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_elastic.policies.growth.scaling import spare
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.queues.queueing import Queue
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scaler import Grower


class WarmingEngine(Protocol):
    """The part of the engine that this module uses."""

    jobs: Jobs
    queue: Queue
    runs: Runs
    grower: Grower

    def boot_ahead(self, pool: int, count: int, now: int) -> None:
        """Boot machines for no job in particular."""
        ...

    def look_again(self, pool: int, now: int) -> None:
        """Plan new releases of machines whose release was postponed."""
        ...

    def look_later(self, now: int) -> None:
        """Plan a look for when bounds may have changed."""
        ...


class Warm:
    """Keeps the pools warm. False in a boolean context if no pool has ``min_idle``."""

    def __init__(self, site: WarmingEngine, pools: Sequence[PoolMachines]) -> None:
        self._site = site
        self._pools = [entry for entry in enumerate(pools) if entry[1].pool.min_idle]

    def __bool__(self) -> bool:
        return bool(self._pools)

    def kept(self, machines: PoolMachines, now: int) -> int:
        """Return how many idle machines stay although their release is due."""
        return machines.pool.min_idle if self._pools and self._has_jobs(now) else 0

    def keep(self, now: int) -> None:
        """Start missing machines, and plan the release of surplus machines."""
        site = self._site
        for pool, machines in self._pools:
            least = self.kept(machines, now)
            count = site.grower.warm(machines, least, now) if least else 0
            if count:
                site.boot_ahead(pool, count, now)
                site.queue.paid_by_nobody()
                # Now, as slurm-elasticd does: later they would count as started for later jobs.
                site.queue.watch_started(site.queue.counted(now), now)
            elif machines.idle + machines.booting < least and not site.grower.free_of_bounds:
                site.look_later(now)
            may_go = machines.postponed and (machines.yields or not site.queue.counted(now))
            if may_go and spare(machines.idle, least):
                site.look_again(pool, now)

    def _has_jobs(self, now: int) -> bool:
        """Return True if there are jobs, or more will arrive."""
        site = self._site
        return bool(site.runs.now or site.queue.waiting) or site.jobs.submit[-1] > now
