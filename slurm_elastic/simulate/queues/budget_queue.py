"""The queue of a site whose accounts or users have budgets.

If an account or user is over its budget, its jobs may start only on the site's own machines. A job
that could never run there leaves the queue and returns after the end of the day or month, as with
``features.budget_enforcement``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from slurm_elastic.policies.money.account_budgets import (
    USER,
    Overdrawn,
    Shares,
    parts,
    payer,
    scopes,
)
from slurm_elastic.simulate.bills.spending import Purses
from slurm_elastic.simulate.pool_terms import Lane
from slurm_elastic.simulate.queues.cloud_order import JobOrders
from slurm_elastic.simulate.queues.queueing import Queue
from slurm_elastic.simulate.queues.reservations import Profile
from slurm_elastic.simulate.shared_machines import SharedMachine

Later = Callable[[int, int | None], None]
"""Called with a second and a job that arrives again then; with None the queue is only checked
then.
"""


class BudgetQueue(Queue):
    """The queue with budgets. Call ``with_purses`` before the first job arrives."""

    def with_purses(
        self, purses: Purses, later: Later, orders: JobOrders | None = None
    ) -> BudgetQueue:
        """Set the purses, the function that schedules events, and the orders of the pools. A job
        pays for machines launched for it.
        """
        self.purses, self.later, self.orders = purses, later, orders
        self._by_user = any(scope.startswith(USER) for scope in purses.bounds)
        self._bounded: dict[str, tuple[str, ...]] = {}
        self._all = self._each
        self._own = [lane for lane in self._all if not lane[1].pool.public]
        self._known: frozenset[str] = frozenset()
        start = self.start

        # Wrapped, because a job that starts on new machines pays for them alone, and not together
        # with the other waiting jobs.
        def start_paid(
            job: int, pool: int, need: int, now: int, beside: SharedMachine | None = None
        ) -> bool:
            started = start(job, pool, need, now, beside)
            purses.pay({self.payer(job): 1})
            if started and orders is not None:
                orders.start(job)
            return started

        self.start = start_paid
        return self

    def payer(self, job: int) -> str:
        """Return the purses' name for the job's payer. It includes the user only if a user has a
        budget.
        """
        account, user = self.jobs.account[job], self.jobs.user[job] if self._by_user else -1
        return payer(str(account) if account >= 0 else "", str(user) if user >= 0 else "")

    def classes(self, now: int) -> Iterator[tuple[Sequence[int], bool]]:
        """Yield (jobs, own machines only): first the jobs that may use any machine, then the jobs
        over budget. The jobs just yielded pay for machines that the caller starts before the next
        step.
        """
        counted = self.counted(now)
        over_budget = {job for job in counted if self._overdraft(job, now)}
        for own_only in (False, True) if over_budget else (False,):
            jobs = [job for job in counted if (job in over_budget) == own_only]
            for group in self.by_fit(jobs, now):
                shares = self._shares(group)
                yield group, own_only
                self.purses.pay(shares)

    def paid_by_nobody(self) -> None:
        """Charge no payer for the last started machines, for example of a warm pool."""
        self.purses.pay({})

    def _shares(self, jobs: Sequence[int]) -> Shares:
        """Return who pays for machines started ahead: the jobs without growth so far. If all jobs
        have caused growth before, all pay.
        """
        covered = self.grower.covered
        fresh = [job for job in jobs if job not in covered] or jobs
        return parts((self.payer(job), self.grower.need[job]) for job in fresh)

    def arrive(self, job: int, now: int) -> None:
        """Put the job into the queue, or schedule its return for when its payer may spend again."""
        overdraft = self._overdraft(job, now)
        if overdraft is not None and not self._fits_own(job):
            self.later(self._return_at(overdraft), job)
            return
        super().arrive(job, now)

    def schedule(self, now: int) -> None:
        """Remove jobs whose payer has run out of money since the last call, then start jobs."""
        overdraft_by_payer = {
            name: overdraft
            for name in self.purses.bounds
            if (overdraft := self.purses.overdraft(name, now))
        }
        if overdraft_by_payer.keys() - self._known:
            for overdraft in overdraft_by_payer.values():
                self.later(self._return_at(overdraft), None)
            removed = {
                job: overdraft for job in self.waiting if (overdraft := self._must_leave(job, now))
            }
            for job, overdraft in removed.items():
                self.later(self._return_at(overdraft), job)
            self.waiting[:] = [job for job in self.waiting if job not in removed]
        self._known = frozenset(overdraft_by_payer)
        super().schedule(now)

    def _usable(self, job: int, now: int) -> Sequence[Lane]:
        """Return the pools that the job may use, in its order."""
        own_only = self._overdraft(job, now) is not None
        if self.orders is None:
            return self._own if own_only else self._all
        lanes = self.orders.lanes[job]
        return [lane for lane in lanes if not lane[1].pool.public] if own_only else lanes

    def _place(self, job: int, now: int) -> bool:
        self._each = self._usable(job, now)
        return super()._place(job, now)

    def _reserve(self, job: int, now: int) -> None:
        self._each = self._usable(job, now)
        super()._reserve(job, now)

    def _first_fit(self, job: int, profiles: Sequence[Profile], now: int) -> int | None:
        self._each = self._usable(job, now)
        return super()._first_fit(job, profiles, now)

    def _must_leave(self, job: int, now: int) -> Overdrawn | None:
        overdraft = self._overdraft(job, now)
        return None if overdraft is None or self._fits_own(job) else overdraft

    def _fits_own(self, job: int) -> bool:
        return any(needs[job] <= machines.pool.machines for _, machines, needs in self._own)

    def _overdraft(self, job: int, now: int) -> Overdrawn | None:
        payer_name = self.payer(job)
        if payer_name not in self._bounded:
            self._bounded[payer_name] = tuple(
                s for s in scopes(payer_name) if s in self.purses.bounds
            )
        overdrafts = (self.purses.overdraft(scope, now) for scope in self._bounded[payer_name])
        return max((overdraft for overdraft in overdrafts if overdraft is not None), default=None)

    def _return_at(self, overdraft: Overdrawn) -> int:
        return int(overdraft.until) - self.purses.start
