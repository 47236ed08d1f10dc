"""What the cluster, each account and each user have spent in a simulation, by the rule of
``policies.money.account_budgets``.

We read money off the pools' own books (batches and leases), so that a run without budgets pays
nothing for this. Machine-seconds count at the on-demand price. Days and months begin at midnight
UTC, as the daemon's do, whenever the first look after that comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from slurm_elastic.policies.money.account_budgets import (
    ACCOUNT,
    NONE,
    Overdrawn,
    Shares,
    charged,
    overdrawn,
)
from slurm_elastic.policies.money.bounds import Bounds, Spent
from slurm_elastic.simulate.machines import PoolMachines

DAY = 86400


class Purses:
    """``bounds``: by scope (``account:3``). ``start``: Unix time of second 0; time runs on."""

    def __init__(
        self, bounds: Mapping[str, Bounds], pools: Sequence[PoolMachines], start: int = 0
    ) -> None:
        self.bounds, self.start = bounds, start
        self._books = [_Book(machines) for machines in pools]
        self._at = self._tomorrow = -(2**62)
        self._total: dict[str, float] = {}
        self._before: dict[str, tuple[int, dict[str, float]]] = {}
        self._over: dict[str, Overdrawn | None] = {}

    def pay(self, shares: Shares) -> None:
        """Have these pay for all machines that were launched since the last call."""
        for book in self._books:
            book.enter(shares)

    def over(self, scope: str, now: int) -> Overdrawn | None:
        """Why the payer gets no new public machine, and until when (Unix time); None if it does."""
        bounds = self.bounds.get(scope)
        if bounds is None:
            return None
        self._advance(now)
        if scope not in self._over:
            self._over[scope] = overdrawn(scope, bounds, self.spent(scope, now), now + self.start)
        return self._over[scope]

    def spent(self, scope: str, now: int) -> Spent:
        """Dollars of this day and month (UTC)."""
        self._advance(now)
        total = self._total.get(scope, 0.0)
        day, month = (total - self._before[k][1].get(scope, 0.0) for k in ("day", "month"))
        return Spent(day=day, month=month)

    def of_cluster(self, now: int) -> Spent:
        """The same for all machines, where no account pays any."""
        self.pay({})
        return self.spent(ACCOUNT + NONE, now)

    def total(self, now: int) -> Mapping[str, float]:
        """Dollars by scope since the first second."""
        self._advance(now)
        return self._total

    def _advance(self, now: int) -> None:
        """Go on to ``now``, noting what had been spent when its day and its month began."""
        if now == self._at:
            return
        if now >= self._tomorrow:
            self._begin_day(now)
        self._at, self._total, self._over = now, self._charged(now), {}

    def _begin_day(self, now: int) -> None:
        today = datetime.fromtimestamp(now + self.start, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        for name, begin in (("month", today.replace(day=1)), ("day", today)):
            second = int(begin.timestamp()) - self.start
            if name not in self._before or self._before[name][0] != second:
                self._before[name] = second, self._charged(max(second, self._at))
        self._tomorrow = self._before["day"][0] + DAY

    def _charged(self, now: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for book in self._books:
            for scope, dollars in book.charged(now).items():
                found[scope] = found.get(scope, 0.0) + dollars
        return found


class _Paid:
    """Machine-seconds at one price ($/h) of the same payers, without ends of those ``up``."""

    def __init__(self, shares: Shares, price: float) -> None:
        self.shares, self.price = shares, price
        self.up = self.area = 0


class _Book:
    """One pool's batches: who pays for them, and for how long."""

    def __init__(self, machines: PoolMachines) -> None:
        self._machines = machines
        self._paid: dict[tuple[float, tuple[tuple[str, int], ...]], _Paid] = {}
        self._payer: list[_Paid] = []
        self._unborn: dict[int, int] = {}
        self._read = self._seen = 0
        if machines.pool.standing:  # batch 0, for nobody
            self._book(machines.pool.standing, {}, machines.rates[-1])

    def enter(self, shares: Shares) -> None:
        """Note new batches: what is left of them, and what has gone since the last call."""
        machines, first = self._machines, len(self._payer)
        for count in machines.batch_live[first:]:
            self._book(count, shares, machines.rate(len(self._payer)))
        for lease in range(self._seen, len(machines.leases.end)):
            batch = machines.leases.batch[lease]
            if batch >= first:
                self._unborn[batch] += machines.leases.count[lease]
        self._seen = len(machines.leases.end)

    def charged(self, now: int) -> dict[str, float]:
        """Dollars by scope until ``now``, for leases that were over by then and for what was up."""
        self._begin(now)
        self._close(now)
        sums = [(p.shares, (p.area + p.up * now) * p.price / 3600) for p in self._paid.values()]
        return charged(sums)

    def _book(self, count: int, shares: Shares, price: float) -> None:
        key = price, tuple(sorted(shares.items()))
        paid = self._paid.setdefault(key, _Paid(shares, price))
        self._unborn[len(self._payer)] = count
        self._payer.append(paid)

    def _begin(self, now: int) -> None:
        """Count batches that are paid by ``now``; the others still boot."""
        start = self._machines.batch_start
        for batch in [batch for batch in self._unborn if start[batch] <= now]:
            count, paid = self._unborn.pop(batch), self._payer[batch]
            paid.up += count
            paid.area -= count * start[batch]

    def _close(self, now: int) -> None:
        """Read the leases that have ended by ``now``, which are ordered by their ends."""
        machines, ends = self._machines, self._machines.leases.end
        while self._read < len(ends) and ends[self._read] <= now:
            batch, count = machines.leases.batch[self._read], machines.leases.count[self._read]
            end, start = ends[self._read], machines.batch_start[batch]
            if batch in self._unborn:
                self._unborn[batch] -= count
            else:
                self._payer[batch].up -= count
                self._payer[batch].area += count * max(end, start)
            self._read += 1
