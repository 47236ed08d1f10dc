"""The spending of each of Slurm's accounts, and why one gets no new machine. Pure; the same in the
daemon and in the simulator.

**The rule.** All that a machine costs, from its launch to its end, is charged to the accounts of
the jobs that it was launched for, each such job counting one: a machine for two jobs of physics and
one of chemistry costs physics two thirds of it, whoever uses it later and while it is idle, too. A
machine that a growth policy starts ahead is charged to the accounts of the jobs that waited for it,
by the nodes that they wait for. One that is started while no job waits (``min_idle``, an admin's
power_up), one that is adopted without its launch, and jobs without an account are ``NONE``'s, which
only the cluster's budget bounds. So the accounts together have spent what the cluster has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from slurm_elastic.policies.capacity import Bounds, Spent

NONE = "(none)"
"""The account of jobs that have none: sites without accounting need not name any."""

Shares = Mapping[str, int]
"""By account, how many parts of a machine it pays; empty: NONE pays it."""


class Overdrawn(NamedTuple):
    """An account over its budget: until when (Unix time), and in words with figures."""

    until: float
    reason: str


def shares(
    nodes: Iterable[str], jobs: Mapping[int, Sequence[str]], account_of: Mapping[int, str]
) -> dict[str, Shares]:
    """Who pays each of ``nodes``: ``jobs`` has the nodes that each job waits for."""
    found: dict[str, Counter[str]] = {node: Counter() for node in nodes}
    for job, of in jobs.items():
        for node in of:
            if node in found:
                found[node][account_of.get(job) or NONE] += 1
    return {node: dict(sorted(parts.items())) for node, parts in found.items()}


def parts(waiting: Iterable[tuple[str, int]]) -> Shares:
    """Who pays machines that are started for all of these: (account, nodes)."""
    found: Counter[str] = Counter()
    for account, nodes in waiting:
        found[account or NONE] += nodes
    return dict(sorted(found.items()))


def charged(paid: Iterable[tuple[Shares, float]]) -> dict[str, float]:
    """Dollars by account, of what was paid and by whom; their sum is what was paid."""
    found: dict[str, float] = {}
    for of, dollars in paid:
        whole = sum(of.values())
        for account, part in of.items() if whole else ((NONE, 1),):
            found[account] = found.get(account, 0.0) + dollars * part / (whole or 1)
    return found


def overdrawn(account: str, bounds: Bounds, spent: Spent, now: float) -> Overdrawn | None:
    """Why the account gets no new machine, and until when; None where it does. Days and months are
    of UTC.
    """
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = today + timedelta(days=1)
    next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    for bound, used, words, until in (
        (bounds.per_month, spent.month, "this month", next_month),
        (bounds.per_day, spent.day, "today", tomorrow),
    ):
        if bound is not None and used >= bound:
            digits = 2 if round(bound, 2) == bound else 6
            return Overdrawn(
                until.timestamp(),
                f"account {account} has spent ${used:.{digits}f} of ${bound:.{digits}f} {words};"
                f" new machines from {until:%Y-%m-%d %H:%M} UTC",
            )
    return None
