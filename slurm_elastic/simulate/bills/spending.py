"""The money that the cluster, each account and each user have spent in a simulation, by the rule of
``policies.money.account_budgets``.

The sums are computed from the pools' own books (batches and leases), so that a run without budgets
is not slower. Machine-seconds are charged at the on-demand price. Days and months begin at midnight
UTC, as the daemon's do, even if the first question comes later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from slurm_elastic.base.billing import billed_dollars
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

DAY_S = 86400


class Purses:
    """The spending per scope (``account:3``). ``bounds``: budgets by scope. ``start``: the Unix
    time of second 0. Calls must be in the order of time.
    """

    def __init__(
        self, bounds: Mapping[str, Bounds], pools: Sequence[PoolMachines], start: int = 0
    ) -> None:
        self.bounds, self.start = bounds, start
        self._books = [_Book(machines) for machines in pools]
        self._now = self._tomorrow = -(2**62)
        self._total: dict[str, float] = {}
        self._before: dict[str, tuple[int, dict[str, float]]] = {}
        self._overdrafts: dict[str, Overdrawn | None] = {}

    def pay(self, shares: Shares) -> None:
        """Charge these payers for all machines that were launched since the last call."""
        for book in self._books:
            book.enter(shares)

    def overdraft(self, scope: str, now: int) -> Overdrawn | None:
        """Return why and until when (Unix time) the payer gets no new public machines, or None."""
        bounds = self.bounds.get(scope)
        if bounds is None:
            return None
        self._advance(now)
        if scope not in self._overdrafts:
            self._overdrafts[scope] = overdrawn(
                scope, bounds, self.spent(scope, now), now + self.start
            )
        return self._overdrafts[scope]

    def spent(self, scope: str, now: int) -> Spent:
        """Return the dollars of this day and month (UTC)."""
        self._advance(now)
        total = self._total.get(scope, 0.0)
        day, month = (total - self._before[k][1].get(scope, 0.0) for k in ("day", "month"))
        return Spent(day=day, month=month)

    def of_cluster(self, now: int) -> Spent:
        """Return the dollars of this day and month for all machines, if no account pays for any."""
        self.pay({})
        return self.spent(ACCOUNT + NONE, now)

    def total(self, now: int) -> Mapping[str, float]:
        """Return the dollars by scope since the first second."""
        self._advance(now)
        return self._total

    def _advance(self, now: int) -> None:
        """Advance to ``now``, and record the sums at the begin of its day and month."""
        if now == self._now:
            return
        if now >= self._tomorrow:
            self._begin_day(now)
        self._now, self._total, self._overdrafts = now, self._charged(now), {}

    def _begin_day(self, now: int) -> None:
        today = datetime.fromtimestamp(now + self.start, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        for name, begin in (("month", today.replace(day=1)), ("day", today)):
            second = int(begin.timestamp()) - self.start
            if name not in self._before or self._before[name][0] != second:
                self._before[name] = second, self._charged(max(second, self._now))
        self._tomorrow = self._before["day"][0] + DAY_S

    def _charged(self, now: int) -> dict[str, float]:
        dollars_by_scope: dict[str, float] = {}
        for book in self._books:
            for scope, dollars in book.charged(now).items():
                dollars_by_scope[scope] = dollars_by_scope.get(scope, 0.0) + dollars
        return dollars_by_scope


class _Paid:
    """Machine-seconds of the same payers at one price ($/h). ``area`` lacks the ends of the
    machines that are ``up``.
    """

    def __init__(self, shares: Shares, price: float) -> None:
        self.shares, self.price = shares, price
        self.up = self.area = 0


class _Book:
    """The payers of a pool's batches. ``_unborn``: machines of batches that do not cost yet."""

    def __init__(self, machines: PoolMachines) -> None:
        self._machines = machines
        self._paid: dict[tuple[float, tuple[tuple[str, int], ...]], _Paid] = {}
        self._payer: list[_Paid] = []
        self._unborn: dict[int, int] = {}
        self._leases_closed = self._leases_entered = 0
        if machines.pool.standing:  # batch 0, charged to no account
            self._book(machines.pool.standing, {}, machines.rates[-1])

    def enter(self, shares: Shares) -> None:
        """Record new batches with all their machines, including machines that have already
        ended.
        """
        machines, first_new = self._machines, len(self._payer)
        for count in machines.batch_live[first_new:]:
            self._book(count, shares, machines.rate(len(self._payer)))
        for lease in range(self._leases_entered, len(machines.leases.end)):
            batch = machines.leases.batch[lease]
            if batch >= first_new:
                self._unborn[batch] += machines.leases.count[lease]
        self._leases_entered = len(machines.leases.end)

    def charged(self, now: int) -> dict[str, float]:
        """Return the dollars by scope until ``now``, for ended leases and running machines."""
        self._begin(now)
        self._close(now)
        sums = [
            (p.shares, billed_dollars(p.price, p.area + p.up * now)) for p in self._paid.values()
        ]
        return charged(sums)

    def _book(self, count: int, shares: Shares, price: float) -> None:
        key = price, tuple(sorted(shares.items()))
        paid = self._paid.setdefault(key, _Paid(shares, price))
        self._unborn[len(self._payer)] = count
        self._payer.append(paid)

    def _begin(self, now: int) -> None:
        """Begin to charge batches that cost money at ``now``. The others still boot."""
        start = self._machines.batch_start
        for batch in [batch for batch in self._unborn if start[batch] <= now]:
            count, paid = self._unborn.pop(batch), self._payer[batch]
            paid.up += count
            paid.area -= count * start[batch]

    def _close(self, now: int) -> None:
        """Read the ended leases until ``now``. They are ordered by their ends."""
        machines, ends = self._machines, self._machines.leases.end
        while self._leases_closed < len(ends) and ends[self._leases_closed] <= now:
            batch, count = (
                machines.leases.batch[self._leases_closed],
                machines.leases.count[self._leases_closed],
            )
            end, start = ends[self._leases_closed], machines.batch_start[batch]
            if batch in self._unborn:
                self._unborn[batch] -= count
            else:
                self._payer[batch].up -= count
                self._payer[batch].area += count * max(end, start)
            self._leases_closed += 1
