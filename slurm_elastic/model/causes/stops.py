"""Why the site lets no machine start now."""

from __future__ import annotations

from slurm_elastic.base.units import money
from slurm_elastic.model.causes.cause import Cause
from slurm_elastic.model.directive import Directive, clock, given_by, scope_in_words


class StoppedByOrder(Cause, frozen=True, kw_only=True):
    """An operator's order (its ``number`` in the ledger) lets nothing start. ``fact``: the sentence
    that is true while the order is in force.
    """

    number: int
    fact: str
    who: str
    until: float | None = None
    reason: str = ""

    @classmethod
    def of(cls, order: Directive) -> StoppedByOrder:
        """The cause for an order."""
        return cls(
            number=order.number,
            fact=order.word.fact,
            who=order.who,
            until=order.until,
            reason=order.reason,
        )

    @property
    def words(self) -> str:
        return f"{self.fact}{given_by(self.who, self.until, self.reason)}"


class AddressTaken(Cause, frozen=True, kw_only=True):
    """The machine of another ``node`` still has this node's ``address`` in the tunnel, because the
    pools' lists of nodes have changed since that machine started.
    """

    address: str
    node: str

    @property
    def words(self) -> str:
        return (
            f"its address in the tunnel, {self.address}, still belongs to the machine of"
            f" {self.node}; it may start after that machine has ended"
        )


class CloudBlocked(Cause, frozen=True, kw_only=True):
    """The configuration lets nothing start in the cloud. ``missing_consents``: the missing consents
    of a cloud that costs money, as text. ``unusable``: why clouds of this kind cannot be used.
    """

    cloud: str
    missing_consents: tuple[str, ...] = ()
    unusable: str = ""

    @property
    def words(self) -> str:
        if self.unusable:
            return f"cloud {self.cloud} cannot be used: {self.unusable}"
        return f"cloud {self.cloud} costs money: {' and '.join(self.missing_consents)}"


class OutsideTimes(Cause, frozen=True, kw_only=True):
    """The site starts machines only at these times of the day (UTC). ``owner``: the owner of this
    rule, "" for the pool itself.
    """

    times: tuple[str, ...]
    owner: str = ""

    @property
    def words(self) -> str:
        times = ", ".join(self.times)
        whose = f"{self.owner}: " if self.owner else ""
        return f"{whose}outside the times at which machines may be started: {times} UTC"


class BudgetSpent(Cause, frozen=True, kw_only=True):
    """The budget of ``dollars`` for a ``period`` (day, month) is spent. ``owner``: its owner, ""
    for the cluster. ``is_committed``: it is spent if the running jobs use their time limits.
    """

    period: str
    dollars: float
    owner: str = ""
    is_committed: bool = False

    @property
    def words(self) -> str:
        whose = f"{self.owner}: " if self.owner else ""
        budget = f"{whose}the budget of {money(self.dollars)} a {self.period} is spent"
        return (
            f"{budget} if the running jobs use their time limits" if self.is_committed else budget
        )


class RecordsNotWritten(Cause, frozen=True, kw_only=True):
    """The ledger cannot be written. ``trouble``: the problem with its file."""

    trouble: str

    @property
    def words(self) -> str:
        return self.trouble


class ByOrder(Cause, frozen=True, kw_only=True):
    """An operator's order (its ``number``) is carried out. ``order_text``: the order in one
    line.
    """

    number: int
    order_text: str

    @property
    def words(self) -> str:
        return self.order_text


class PayerOverdrawn(Cause, frozen=True, kw_only=True):
    """An account or user (``payer``: ``account:NAME``, ``user:NAME``) has spent the ``budget`` ($)
    of this ``period`` (day, month). It gets new machines again from ``until`` (Unix time).
    """

    payer: str
    spent: float
    budget: float
    period: str
    until: float

    @property
    def words(self) -> str:
        when = "today" if self.period == "day" else f"this {self.period}"
        used, budget = money(self.spent), money(self.budget)
        return (
            f"{scope_in_words(self.payer)} has spent {used} of {budget} {when};"
            f" new machines from {clock(self.until)}"
        )


class PayerMaySpend(Cause, frozen=True, kw_only=True):
    """The job's account and user may spend again."""

    @property
    def words(self) -> str:
        return "its account and user may start new machines again"


class CloudMayServe(Cause, frozen=True, kw_only=True):
    """The cloud may serve the job again: a limit was raised, or a reservation was added."""

    cloud: str

    @property
    def words(self) -> str:
        return f"cloud {self.cloud} may serve it now"


SiteStop = (
    ByOrder
    | PayerOverdrawn
    | PayerMaySpend
    | CloudMayServe
    | StoppedByOrder
    | AddressTaken
    | CloudBlocked
    | OutsideTimes
    | BudgetSpent
    | RecordsNotWritten
)
"""All reasons why the site lets no machine start, and ``PayerMaySpend``."""
