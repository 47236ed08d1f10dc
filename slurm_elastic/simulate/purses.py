"""What each account has spent in a simulation, by ``policies.accounts``'s rule.

Money is read off the pools' own books (batches and leases), so that a run without budgets of
accounts pays nothing for this. Machine-seconds count at the on-demand price, as for the cluster's
budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from slurm_elastic.policies.accounts import Overdrawn, Shares, charged, overdrawn
from slurm_elastic.policies.capacity import Bounds, Spent
from slurm_elastic.simulate.machines import Machines


class Purses:
    """``bounds``: by account (the number that the history gives it, as text); ``start``: Unix time
    of the history's second 0. Times are the history's seconds and never go back.
    """

    def __init__(
        self, bounds: Mapping[str, Bounds], pools: Sequence[Machines], start: int = 0
    ) -> None:
        self.bounds, self.start = bounds, start
        self._books = [_Book(machines) for machines in pools]
        self._at = -(2**62)
        self._total: dict[str, float] = {}
        self._before: dict[str, tuple[int, dict[str, float]]] = {}
        self._over: dict[str, Overdrawn | None] = {}

    def pay(self, shares: Shares) -> None:
        """All machines that were launched since the last call are paid by these."""
        for book in self._books:
            book.enter(shares)

    def over(self, account: str, now: int) -> Overdrawn | None:
        """Why the account gets no new public machine, until when (Unix time); None if it does."""
        bounds = self.bounds.get(account)
        if bounds is None:
            return None
        self._advance(now)
        if account not in self._over:
            spent = self.spent(account, now)
            self._over[account] = overdrawn(account, bounds, spent, now + self.start)
        return self._over[account]

    def spent(self, account: str, now: int) -> Spent:
        """Dollars of this day and month (UTC)."""
        self._advance(now)
        total = self._total.get(account, 0.0)
        day, month = (total - self._before[k][1].get(account, 0.0) for k in ("day", "month"))
        return Spent(day=day, month=month)

    def total(self, now: int) -> Mapping[str, float]:
        """Dollars of all accounts from the first second on."""
        self._advance(now)
        return self._total

    def _advance(self, now: int) -> None:
        """Up to ``now``, with what had been spent when its day and its month began."""
        if now == self._at:
            return
        today = datetime.fromtimestamp(now + self.start, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        for name, begin in (("month", today.replace(day=1)), ("day", today)):
            second = int(begin.timestamp()) - self.start
            if name not in self._before or self._before[name][0] != second:
                self._before[name] = second, self._charged(max(second, self._at))
        self._at, self._total, self._over = now, self._charged(now), {}

    def _charged(self, now: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for book in self._books:
            for account, dollars in book.charged(now).items():
                found[account] = found.get(account, 0.0) + dollars
        return found


class _Book:
    """One pool's batches: who pays them, and what is over of them."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._price = machines.pool.price / 3600
        self._shares: list[Shares] = []
        self._live: dict[int, int] = {}
        if machines.pool.standing:  # batch 0, for nobody
            self._shares.append({})
            self._live[0] = machines.pool.standing
        self._read = 0
        self._over: dict[str, float] = {}

    def enter(self, shares: Shares) -> None:
        """New batches."""
        live = self._machines.batch_live
        for batch in range(len(self._shares), len(live)):
            self._shares.append(shares)
            self._live[batch] = live[batch]

    def charged(self, now: int) -> dict[str, float]:
        """Dollars by account until ``now``: of leases that were over by then and of what was up."""
        self._close(now)
        start = self._machines.batch_start
        found = dict(self._over)
        for batch, count in self._live.items():
            self._add(found, batch, count * max(now - start[batch], 0))
        return found

    def _close(self, now: int) -> None:
        """Read the leases that have ended by ``now``; they are in the order of their ends."""
        machines = self._machines
        ends = machines.lease_end
        while self._read < len(ends) and ends[self._read] <= now:
            batch, count = machines.lease_batch[self._read], machines.lease_count[self._read]
            seconds = max(ends[self._read] - machines.batch_start[batch], 0)
            self._add(self._over, batch, count * seconds)
            self._live[batch] -= count
            if not self._live[batch]:
                del self._live[batch]
            self._read += 1

    def _add(self, found: dict[str, float], batch: int, seconds: int) -> None:
        dollars = seconds * self._price
        for account, part in charged([(self._shares[batch], dollars)]).items():
            found[account] = found.get(account, 0.0) + part
