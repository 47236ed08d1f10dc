"""The budgets that ``status`` shows: what was spent, and what a spent budget stops."""

from __future__ import annotations

from slurm_elastic.config import Config
from slurm_elastic.config.pool_rules import bounds_of
from slurm_elastic.policies.money.account_budgets import overdrawn
from slurm_elastic.policies.money.bounds import Spent, stopped
from slurm_elastic.watch.view.rows import BudgetView


def budget_view(config: Config, now: float, cloud: str, spent: Spent) -> BudgetView:
    """The budget of a cloud, or of the cluster ("")."""
    budget = config.cloud(cloud).policies.budget if cloud else config.policies.budget
    stop = stopped(int(now), bounds_of(budget), spent)
    return BudgetView(
        cloud=cloud,
        day=spent.day,
        per_day=budget.per_day,
        month=spent.month,
        per_month=budget.per_month,
        stop=str(stop) if stop else None,
    )


def payer_budget_view(config: Config, now: float, scope: str, spent: Spent) -> BudgetView:
    """The budget of an account or a user (``account:physics``)."""
    budget = config.policies.payer_budgets[scope]
    over = overdrawn(scope, bounds_of(budget), spent, now)
    kind, _, name = scope.partition(":")
    return BudgetView(
        cloud="",
        account=name if kind == "account" else "",
        user=name if kind == "user" else "",
        day=spent.day,
        per_day=budget.per_day,
        month=spent.month,
        per_month=budget.per_month,
        stop=over.reason if over else None,
    )
