"""The order in which each job uses the pools of a site with several clouds.

A new job gets its order by ``policies.launch.pool_order``, as from the submit filter: from prices,
limits and cool-downs at its arrival. Every ``LOOK_S`` seconds jobs that still wait get another
order if it has become much better for them, as from slurm-elasticd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_elastic.policies.launch.job_data import NO_DATA, JobData
from slurm_elastic.policies.launch.pool_order import (
    JobShape,
    RankedPool,
    partition_order,
)
from slurm_elastic.policies.launch.reorder import MAX_REORDERED_JOBS, better_place
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.pool_terms import Lane, TermsTable, partition_of
from slurm_elastic.simulate.purchases import Purchases
from slurm_elastic.simulate.scenario import PoolModel, Scenario

LOOK_S = 30
HOUR_S = 3600

Pools = Sequence[tuple[int, PoolMachines]]


class _Order(NamedTuple):
    """Partitions in the order in which a job uses them, and their pools after the site's own."""

    partitions: tuple[str, ...]
    lanes: tuple[Lane, ...]


_Best = tuple[_Order, list[RankedPool]]  # an order, and the costs that decided it


class JobOrders:
    """``lanes``: by job, its pools in its order; empty before its arrival.

    Each cloud is one partition, whose pools are used in the order of the file. Machines that the
    site has anyway come before all clouds.
    """

    def __init__(
        self,
        jobs: Jobs,
        scenario: Scenario,
        pools: Sequence[PoolMachines],
        needs: Sequence[Sequence[int]],
        purchases: Purchases,
    ) -> None:
        self.lanes: list[tuple[Lane, ...]] = [()] * len(jobs)
        self._jobs, self._limit, self._ranking = jobs, jobs.limit, scenario.ranking
        lanes = [(pool, pools[pool], needs[pool]) for pool in range(len(pools))]
        self._own = tuple(lane for lane in lanes if _is_own(lane[1].pool))
        self._ranked = [lane for lane in lanes if not _is_own(lane[1].pool)]
        self._table = TermsTable(self._ranked, scenario.ranking, purchases)
        self._orders: dict[int, _Best] = {}
        self._growth: _Order | None = None
        # Two caches: the orders by their partitions, and the best order by a job's data, limit and
        # needs.
        self._known: dict[tuple[str, ...], _Order] = {}
        self._best: dict[tuple[JobData, tuple[int, ...]], _Best] = {}
        # The numbers of the terms by which ``_best`` was filled and waiting jobs were looked at.
        self._filled = self._looked_at = -1
        self._back_at = -1

    def arrive(self, job: int, now: int) -> None:
        """Order the pools for a new job."""
        self._table.refresh(now)
        self._set(job, self._best_for(job))

    def start(self, job: int) -> None:
        """Forget the costs that decided the order of a job, because it waits no longer. They would
        take a kilobyte for each job of the history.
        """
        del self._orders[job]

    def come_back(self, job: int, now: int) -> None:
        """Order the pools again for an interrupted job: slurmctld requeues it with a delay, in
        which slurm-elasticd changes its order if it has to.
        """
        if self._back_at != now:  # all jobs that come back in one second see the same
            self._back_at = now
            self._table.refresh(now)
        self._set(job, self._best_for(job))

    def look(self, waiting: Sequence[int], before: int, now: int) -> None:
        """Make the looks of slurm-elasticd after the second ``before``, until ``now``. Only prices
        and cool-downs have changed in between.
        """
        table, look = self._table, (before // LOOK_S + 1) * LOOK_S
        while look <= now:
            table.refresh(look)
            if self._looked_at == table.number or self._reorder(waiting):
                self._looked_at = table.number
                # No look before the next change would find anything new.
                look = max(-(-table.until // LOOK_S) * LOOK_S, look + LOOK_S)
            else:
                look += LOOK_S

    def for_growth(self, pools: Pools, job: int | None, now: int, *, starts: bool = True) -> Pools:
        """Return the ``pools`` in the order in which a growth policy starts machines: the order of
        the first waiting job or, if no job waits, of a job that needs one machine for an hour.

        The last order stays unless the job's is much better. Machines that are spread over several
        clouds because prices differ by a cent would serve no job that needs them together.
        ``starts``: False if no machine starts in this order, so that it is no last order.
        """
        if job is None:
            self._table.refresh(now)
            order, ranked = self._best_of((HOUR_S, *[1] * len(self._ranked)))
        else:
            order, ranked = self._orders[job]
        last = self._growth
        if (
            last is None
            or set(last.partitions) != set(order.partitions)
            or better_place(last.partitions, ranked, self._ranking)
        ):
            last = order
            self._growth = order if starts else self._growth
        places = {pool: place for place, (pool, _, _) in enumerate(last.lanes)}
        # Sorting is stable: pools that cannot hold the job come last, in the order of the file.
        return sorted(pools, key=lambda entry: places.get(entry[0], len(places)))

    def _reorder(self, waiting: Sequence[int]) -> bool:
        """Change the orders of waiting jobs. False if more jobs than allowed should change."""
        changes = 0
        for job in waiting:
            (present, _), (best, ranked) = self._orders[job], self._best_for(job)
            if best is present or not better_place(present.partitions, ranked, self._ranking):
                continue
            if changes == MAX_REORDERED_JOBS:
                return False
            self._set(job, (best, ranked))
            changes += 1
        return True

    def _set(self, job: int, best: _Best) -> None:
        self._orders[job], self.lanes[job] = best, best[0].lanes

    def _best_for(self, job: int) -> _Best:
        shape = self._limit[job], *[needs[job] for _, _, needs in self._ranked]
        return self._best_of(shape, self._jobs.data_of(job))

    def _best_of(self, shape: tuple[int, ...], data: JobData = NO_DATA) -> _Best:
        """Return the best order by the present terms for jobs with a time limit, needs of each
        pool, and data to move.
        """
        if self._filled != self._table.number:
            self._filled = self._table.number
            self._best.clear()
        best = self._best.get((data, shape))
        if best is None:
            pairs = zip(self._ranked, shape[1:], strict=True)
            job = JobShape(
                machines={
                    machines.pool.name: need
                    for (_, machines, _), need in pairs
                    if need <= machines.max_machines
                },
                seconds=float(shape[0]),
                data=data,
            )
            ranked = partition_order(job, self._table.terms, self._ranking)
            best = self._order(tuple(row.terms.partition for row in ranked)), ranked
            self._best[data, shape] = best
        return best

    def _order(self, partitions: tuple[str, ...]) -> _Order:
        """Return the one object with this order, so that orders can be compared by identity."""
        order = self._known.get(partitions)
        if order is None:
            by_partition = {
                name: [lane for lane in self._ranked if partition_of(lane[1].pool) == name]
                for name in partitions
            }
            lanes = (lane for name in partitions for lane in by_partition[name])
            order = self._known[partitions] = _Order(partitions, (*self._own, *lanes))
        return order


def job_orders(
    jobs: Jobs,
    scenario: Scenario,
    pools: Sequence[PoolMachines],
    needs: Sequence[Sequence[int]],
    purchases: Purchases,
) -> JobOrders | None:
    """Return the orders of all jobs; None if all jobs use the pools in the order of the file,
    because no two clouds compete.
    """
    clouds = {
        (partition_of(pool), pool.public)
        for pool in scenario.pools
        if pool.machines > pool.standing
    }
    if scenario.ranking[0] == "location":
        # On-premises comes first at any price.
        competing = max(
            sum(public for _, public in clouds), sum(not public for _, public in clouds)
        )
    else:
        competing = len(clouds)
    return JobOrders(jobs, scenario, pools, needs, purchases) if competing > 1 else None


def _is_own(pool: PoolModel) -> bool:
    """Whether the site has all machines of the pool anyway."""
    return not pool.public and pool.machines == pool.standing
