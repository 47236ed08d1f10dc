"""The waiting jobs that may run longer than any machine stays which a pool could start now, by the
decision of slurm-elasticd (``policies.launch.lasting``).

An answer stays right until a reservation begins, or is too near to its end for such a job. Most
jobs ask for the same few limits, so few answers are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.purchases import Purchases


class LastingPools:
    """``needs``: by pool the machines per job. ``limit``: the time limit of each job (s)."""

    def __init__(
        self,
        purchases: Purchases,
        pools: Sequence[PoolMachines],
        needs: Sequence[Sequence[int]],
        limit: Sequence[int],
    ) -> None:
        self._purchases, self._needs, self._limit = purchases, needs, limit
        self._growing = [
            pool
            for pool, machines in enumerate(pools)
            if machines.pool.machines > machines.pool.standing
        ]
        self._ending = frozenset(pool for pool in self._growing if pools[pool].ending is not None)
        self._known: dict[tuple[int, int, int], tuple[int, bool]] = {}

    def is_too_long(self, job: int, pool: int, count: int, now: int) -> bool:
        """Return True if no ``count`` machines that the pool could start now stay for the job."""
        if pool not in self._ending:
            return False
        key = pool, count, self._limit[job]
        until, answer = self._known.get(key, (now, False))
        if until <= now:
            until, answer = self._purchases.ends_too_early(*key, now)
            self._known[key] = until, answer
        return answer

    def short_pools(self, job: int, now: int) -> tuple[int, ...]:
        """Return the pools for which the job is too long."""
        return tuple(
            pool
            for pool in self._growing
            if self.is_too_long(job, pool, self._needs[pool][job], now)
        )

    def counted(self, jobs: Sequence[int], now: int) -> Sequence[int]:
        """Return the jobs that are not too long for all pools."""
        count = len(self._growing)
        return [job for job in jobs if len(self.short_pools(job, now)) < count]


def lasting_pools(
    purchases: Purchases,
    pools: Sequence[PoolMachines],
    needs: Sequence[Sequence[int]],
    limit: Sequence[int],
) -> LastingPools | None:
    """Return None if no reservation ends machines."""
    has_ends = any(machines.ending is not None for machines in pools)
    return LastingPools(purchases, pools, needs, limit) if has_ends else None
