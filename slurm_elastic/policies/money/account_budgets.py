"""The spending of each of Slurm's accounts and users, and why one gets no new machine. Pure; the
same in the daemon and in the simulator.

**The rule.** All that a machine costs, from its launch to its end, is charged to the payers of the
jobs that it was launched for, each such job counting one: a machine for two jobs of physics and one
of chemistry costs physics two thirds of it, whoever uses it later and while it is idle, too. A
machine that a growth policy starts ahead is charged to the payers of the jobs that waited for it,
by the nodes that they wait for. One that is started while no job waits (``min_idle``, an admin's
power_up), one that is adopted without its launch, and jobs without an account are ``NONE``'s, which
only the cluster's budget bounds. So the accounts together have spent what the cluster has, and so
have the users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.stops import PayerOverdrawn
from slurm_elastic.policies.money.bounds import Bounds, Spent

NONE = "(none)"
"""The account of jobs that have none: sites without accounting need not name any."""
ACCOUNT, USER = "account:", "user:"
"""The kinds of scope that a payer's budget has, in front of the name."""

Shares = Mapping[str, int]
"""By payer (``payer``), how many parts of a machine it pays; empty: NONE pays it."""


class Overdrawn(NamedTuple):
    """An account or user over its budget: until when (Unix time), and the cause."""

    until: float
    cause: AnyCause

    @property
    def reason(self) -> str:
        """The cause for people, with figures."""
        return str(self.cause)


def payer(account: str, user: str) -> str:
    """Who pays for a job, as the ledger keeps it."""
    return f"{account or NONE}/{user}" if user else account or NONE


def scopes(payer: str) -> tuple[str, str]:
    """The account and the user whose budgets bound a payer, each with its kind in front."""
    # The last one: an account's name may have a slash, a user's has none (useradd(8)).
    account, slash, user = payer.rpartition("/")
    return (ACCOUNT + account, USER + user) if slash else (ACCOUNT + payer, USER + NONE)


def barring(over: Mapping[str, Overdrawn], account: str, user: str) -> Overdrawn | None:
    """Why a job of these gets no new machine, if it does not: by the budget that keeps it longest.
    ``over`` has the scopes that are over theirs.
    """
    if not over:  # as for nearly every job of a long queue
        return None
    found = [over[scope] for scope in scopes(payer(account, user)) if scope in over]
    # By its first field: the budget that keeps the job longest.
    return max(found, default=None)


def shares(
    nodes: Iterable[str], jobs: Mapping[int, Sequence[str]], payer_of: Mapping[int, str]
) -> dict[str, Shares]:
    """Who pays each of ``nodes``: ``jobs`` has the nodes that each job waits for."""
    found: dict[str, Counter[str]] = {node: Counter() for node in nodes}
    for job, of in jobs.items():
        for node in of:
            if node in found:
                found[node][payer_of.get(job) or NONE] += 1
    return {node: dict(sorted(parts.items())) for node, parts in found.items()}


def parts(waiting: Iterable[tuple[str, int]]) -> Shares:
    """Who pays machines that are started for all of these: (payer, nodes)."""
    found: Counter[str] = Counter()
    for who, nodes in waiting:
        found[who or NONE] += nodes
    return dict(sorted(found.items()))


def charged(paid: Iterable[tuple[Shares, float]]) -> dict[str, float]:
    """Dollars by scope, of what was paid and by whom: those of accounts come to what was paid, and
    so do those of users.
    """
    found: dict[str, float] = {}
    for of, dollars in paid:
        whole = sum(of.values())
        for who, part in of.items() if whole else ((NONE, 1),):
            for scope in scopes(who):
                found[scope] = found.get(scope, 0.0) + dollars * part / (whole or 1)
    return found


def overdrawn(scope: str, bounds: Bounds, spent: Spent, now: float) -> Overdrawn | None:
    """Why the account or user gets no new machine, and until when; None where it does. Days and
    months are of UTC.
    """
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = today + timedelta(days=1)
    next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    for bound, used, period, until in (
        # The month first, as it keeps longer.
        (bounds.per_month, spent.month, "month", next_month),
        (bounds.per_day, spent.day, "day", tomorrow),
    ):
        if bound is not None and used >= bound:
            cause = PayerOverdrawn(
                payer=scope, spent=used, budget=bound, period=period, until=until.timestamp()
            )
            return Overdrawn(until.timestamp(), cause)
    return None
