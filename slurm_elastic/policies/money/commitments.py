"""The dollars that running jobs may still cost by their time limits. Pure.

With ``when_spent: finish`` these dollars count in a budget, because nothing ends a running job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_elastic.base.billing import billed_dollars, paid_until
from slurm_elastic.model.causes.stops import BudgetSpent
from slurm_elastic.policies.money.bounds import Bounds, Spent


class BusyMachine(NamedTuple):
    """A machine with jobs, which may run until ``busy_until`` (Unix time; infinite: no limit).
    ``price``: $/h; ``launched`` (Unix time); ``unit``: how many seconds are billed at a time.
    """

    price: float
    launched: float
    busy_until: float
    unit: int = 1


def committed(machines: Sequence[BusyMachine], now: float, end: float) -> float:
    """Return the dollars that the machines may cost from ``now`` until ``end`` for the jobs that
    run on them.
    """
    return sum(
        billed_dollars(
            machine.price, max(_paid(machine, min(machine.busy_until, end), end) - paid, 0.0)
        )
        for machine in machines
        # Machines that are paid until the end already count as spent.
        if (paid := _paid(machine, now, end)) < end
    )


def _paid(machine: BusyMachine, until: float, end: float) -> float:
    return min(paid_until(machine.launched, until, machine.unit), end)


def spent_by_limits(
    bounds: Bounds, spent: Spent, machines: Sequence[BusyMachine], now: float,
    ends: tuple[float, float],
) -> tuple[BudgetSpent, float] | None:  # fmt: skip
    """Return which budget is spent if the jobs use their time limits, and when its period ends;
    None if money is left. ``ends``: when this day and this month end (Unix time).
    """
    budgets = (
        ("day", bounds.per_day, spent.day, ends[0]),
        ("month", bounds.per_month, spent.month, ends[1]),
    )
    for period, dollars, spent_so_far, end in budgets:
        if dollars is not None and spent_so_far + committed(machines, now, end) >= dollars:
            return BudgetSpent(period=period, dollars=dollars, is_committed=True), end
    return None
