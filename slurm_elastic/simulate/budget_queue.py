"""The queue of a site whose accounts or users have budgets. A job whose account or user is over its
budget may start only on the site's own machines. If it could never run there, it leaves the queue
and comes back when the day or month is over (``controller.budget_enforcement``).
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
from slurm_elastic.simulate.queueing import Queue
from slurm_elastic.simulate.reservations import Profile
from slurm_elastic.simulate.shared_machines import Host
from slurm_elastic.simulate.spending import Purses

Later = Callable[[int, int | None], None]
"""Called with the second at which a job arrives again, or (None) the queue is looked at."""


class ApartQueue(Queue):
    """Call ``by`` before the first job arrives."""

    def by(self, purses: Purses, later: Later) -> ApartQueue:
        """Use these purses and the engine's clock. A job pays for machines launched for it."""
        self.purses, self.later = purses, later
        self._by_user = any(scope.startswith(USER) for scope in purses.bounds)
        self._bounded: dict[str, tuple[str, ...]] = {}
        self._all = self._each
        self._own = [lane for lane in self._all if not lane[1].pool.public]
        self._known: frozenset[str] = frozenset()
        start = self.start

        def start_paid(
            job: int, pool: int, need: int, now: int, beside: Host | None = None
        ) -> bool:
            started = start(job, pool, need, now, beside)
            purses.pay({self.payer(job): 1})
            return started

        self.start = start_paid
        return self

    def payer(self, job: int) -> str:
        """The job's payer as the purses name it; users count only if one of them has a budget."""
        account, user = self.jobs.account[job], self.jobs.user[job] if self._by_user else -1
        return payer(str(account) if account >= 0 else "", str(user) if user >= 0 else "")

    def classes(self, now: int) -> Iterator[tuple[Sequence[int], bool]]:
        """First the jobs that may have any machine, then those that may have own ones only.
        Machines that are started in between are paid by the jobs just yielded.
        """
        over = {job for job in self.waiting if self._over(job, now)}
        for own in (False, True) if over else (False,):
            jobs = [job for job in self.waiting if (job in over) == own]
            shares = self._shares(jobs)
            yield jobs, own
            self.purses.pay(shares)

    def paid_by_nobody(self) -> None:
        """Nobody pays for the machines that were started last, as for a warm pool."""
        self.purses.pay({})

    def _shares(self, jobs: Sequence[int]) -> Shares:
        """Who pays for machines started ahead: jobs for which no growth was decided yet."""
        covered = self.grower.covered
        fresh = [job for job in jobs if job not in covered] or jobs
        return parts((self.payer(job), self.grower.need[job]) for job in fresh)

    def arrive(self, job: int, now: int) -> None:
        """Put the job into the queue, or have it come back when its payer may spend again."""
        why = self._over(job, now)
        if why is not None and not self._fits_own(job):
            self.later(self._second(why), job)
            return
        super().arrive(job, now)

    def schedule(self, now: int) -> None:
        """First remove jobs whose payer has run out of money since."""
        over = {name: why for name in self.purses.bounds if (why := self.purses.over(name, now))}
        if over.keys() - self._known:
            for why in over.values():
                self.later(self._second(why), None)
            gone = {job: why for job in self.waiting if (why := self._must_go(job, now))}
            for job, why in gone.items():
                self.later(self._second(why), job)
            self.waiting[:] = [job for job in self.waiting if job not in gone]
        self._known = frozenset(over)
        super().schedule(now)

    def _place(self, job: int, now: int) -> bool:
        self._each = self._own if self._over(job, now) else self._all
        return super()._place(job, now)

    def _reserve(self, job: int, now: int) -> None:
        self._each = self._own if self._over(job, now) else self._all
        super()._reserve(job, now)

    def _first_fit(self, job: int, profiles: Sequence[Profile], now: int) -> int | None:
        self._each = self._own if self._over(job, now) else self._all
        return super()._first_fit(job, profiles, now)

    def _must_go(self, job: int, now: int) -> Overdrawn | None:
        why = self._over(job, now)
        return None if why is None or self._fits_own(job) else why

    def _fits_own(self, job: int) -> bool:
        return any(needs[job] <= machines.pool.machines for _, machines, needs in self._own)

    def _over(self, job: int, now: int) -> Overdrawn | None:
        who = self.payer(job)
        if who not in self._bounded:
            self._bounded[who] = tuple(s for s in scopes(who) if s in self.purses.bounds)
        found = (self.purses.over(scope, now) for scope in self._bounded[who])
        return max((why for why in found if why is not None), default=None)

    def _second(self, why: Overdrawn) -> int:
        return int(why.until) - self.purses.start
