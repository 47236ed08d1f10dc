"""The spending of each of Slurm's accounts and users, and why an account or user gets no new
machine. Pure; shared by the daemon and the simulator.

**The rule.** The payers of the jobs for which a machine was launched pay all its costs, from launch
to end. Each job counts one. If a machine was launched for two jobs of physics and one of chemistry,
physics pays two thirds, also for the time in which other jobs use it or no job does. If a growth
policy starts a machine ahead, the payers of the jobs that waited for it pay, by the nodes that they
wait for. ``NONE`` pays for machines started while no job waits (``min_idle``, an admin's power_up),
for adopted machines without a known launch, and for jobs without an account; only the cluster's
budget bounds it. All accounts together have spent what the cluster has, and so have all users.
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
"""The account of jobs without an account: sites without accounting need no names."""
ACCOUNT, USER = "account:", "user:"
"""The prefixes of a payer's budget scopes."""

Shares = Mapping[str, int]
"""For each payer (``payer``) the number of parts of a machine that it pays. Empty: NONE pays the
machine.
"""


class Overdrawn(NamedTuple):
    """An account or user over its budget: until when (Unix s), and the cause."""

    until: float
    cause: AnyCause

    @property
    def reason(self) -> str:
        """The cause for people, with figures."""
        return str(self.cause)


def payer(account: str, user: str) -> str:
    """Return the payer of a job, as the ledger stores it."""
    return f"{account or NONE}/{user}" if user else account or NONE


def scopes(payer: str) -> tuple[str, str]:
    """Return the account's and the user's budget scope of a payer."""
    # Split at the last slash: an account's name may have a slash, a user's may not (useradd(8)).
    account, slash, user = payer.rpartition("/")
    return (ACCOUNT + account, USER + user) if slash else (ACCOUNT + payer, USER + NONE)


def barring(over: Mapping[str, Overdrawn], account: str, user: str) -> Overdrawn | None:
    """Return the budget that keeps a job of these payers longest from a new machine; None if no
    budget does. ``over``: the overdrawn scopes.
    """
    if not over:  # as for nearly every job of a long queue
        return None
    budgets = [over[scope] for scope in scopes(payer(account, user)) if scope in over]
    # By `until` alone: causes have no order, and two days' budgets last until the same midnight.
    return max(budgets, key=lambda budget: budget.until, default=None)


def shares(
    nodes: Iterable[str], jobs: Mapping[int, Sequence[str]], payer_of: Mapping[int, str]
) -> dict[str, Shares]:
    """Return who pays each of ``nodes``. ``jobs``: the nodes that each job waits for."""
    counts_by_node: dict[str, Counter[str]] = {node: Counter() for node in nodes}
    for job, job_nodes in jobs.items():
        for node in job_nodes:
            if node in counts_by_node:
                counts_by_node[node][payer_of.get(job) or NONE] += 1
    return {node: dict(sorted(counts.items())) for node, counts in counts_by_node.items()}


def parts(waiting: Iterable[tuple[str, int]]) -> Shares:
    """Return who pays machines that are started for all these jobs: (payer, nodes)."""
    counts: Counter[str] = Counter()
    for name, nodes in waiting:
        counts[name or NONE] += nodes
    return dict(sorted(counts.items()))


def charged(paid: Iterable[tuple[Shares, float]]) -> dict[str, float]:
    """Return the dollars that the payers paid, by scope. The sum of all accounts is the sum paid,
    and so is the sum of all users.
    """
    dollars_by_scope: dict[str, float] = {}
    for shares_of_machine, dollars in paid:
        whole = sum(shares_of_machine.values())
        for name, share in shares_of_machine.items() if whole else ((NONE, 1),):
            for scope in scopes(name):
                dollars_by_scope[scope] = dollars_by_scope.get(scope, 0.0) + dollars * share / (
                    whole or 1
                )
    return dollars_by_scope


def overdrawn(scope: str, bounds: Bounds, spent: Spent, now: float) -> Overdrawn | None:
    """Return why the account or user gets no new machine, and until when; None if it may get one.
    Days and months are in UTC.
    """
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = today + timedelta(days=1)
    # The first of a month plus 32 days lies in the next month, whatever its length.
    next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    for bound, used, period, until in (
        # The month first, because it bars for longer.
        (bounds.per_month, spent.month, "month", next_month),
        (bounds.per_day, spent.day, "day", tomorrow),
    ):
        if bound is not None and used >= bound:
            cause = PayerOverdrawn(
                payer=scope, spent=used, budget=bound, period=period, until=until.timestamp()
            )
            return Overdrawn(until.timestamp(), cause)
    return None
