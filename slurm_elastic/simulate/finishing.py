"""A spent budget with ``when_spent: finish`` in a simulation, by the rule of slurm-elasticd
(``policies.money.commitments``): what running jobs may still cost by their time limits counts as
spent, and machines of public clouds then take no new jobs and end after theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.policies.money.bounds import end_of_day_and_month
from slurm_elastic.policies.money.commitments import BusyMachine, spent_by_limits
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scaler import Grower


class Finishing:
    """Closes the public machines of a simulation while the cluster's budget is spent.

    ``start``: the Unix time of second 0.
    """

    def __init__(
        self, grower: Grower, runs: Runs, pools: Sequence[PoolMachines], start: int
    ) -> None:
        self._grower, self._runs, self._start = grower, runs, start
        self._public = [
            (number, machines) for number, machines in enumerate(pools) if machines.pool.public
        ]

    def look(self, now: int) -> None:
        """Decide whether the budget is spent at ``now``. If it is, close the machines."""
        grower = self._grower
        grower.is_committed = self._is_committed(now)
        if grower.is_committed or grower.is_spent(now):
            for _, machines in self._public:
                self._close(machines, now)

    def _is_committed(self, now: int) -> bool:
        spent = self._grower.spent(now)
        unix = now + self._start
        ends = end_of_day_and_month(unix)
        return spent_by_limits(self._grower.money, spent, [*self._busy()], unix, ends) is not None

    def _busy(self) -> Iterator[BusyMachine]:
        """Yield the machines with jobs; equal ones as one of their whole price."""
        for number, machines in self._public:
            for until, pieces in self._runs.free_at(number):
                for batch, count in pieces:
                    yield BusyMachine(
                        price=count * machines.rate(batch),
                        launched=self._start + machines.batch_start[batch],
                        busy_until=self._start + until,
                    )

    @staticmethod
    def _close(machines: PoolMachines, now: int) -> None:
        machines.release_idle(machines.idle, now)
        # Machines promised to a job have no names yet, and standing machines never end.
        bought = machines.busy - machines.promised - machines.pool.standing
        machines.draining = max(machines.draining, bought)
