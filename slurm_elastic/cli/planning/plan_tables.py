"""Tables and sentences about a plan of reserved machines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table

from slurm_elastic.policies.planning.portfolio import WEEK, Bought, ReservedClass
from slurm_elastic.simulate.studies.portfolio import PurchasePlan

MAX_PURCHASES = 12  # the list shows at most this many; the others are counted


def render(plan: PurchasePlan, pool: str, start: int, console: Console) -> None:
    """Print the plan; ``start``: Unix time of the history's first job, 0 if unknown."""
    console.print(f"pool {pool}: {plan.weeks} whole weeks of history")
    console.print(_classes(plan))
    console.print(_choices(plan))
    _purchases(plan, start, console)
    _lessons(plan, console)


def _classes(plan: PurchasePlan) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("class", "term", "upfront", "per hour", "paid", "pays from use"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for kind, share in zip(plan.classes, plan.shares, strict=True):
        table.add_row(
            kind.name,
            _term(kind.term),
            f"${kind.upfront:,.0f}",
            f"${kind.price:g}",
            "always" if kind.always else "when used",
            "never" if share is None else f"{share:.1%}",
        )
    return table


def _choices(plan: PurchasePlan) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("bought")
    for name in ("cost", "saving", "regret", "upfront in all"):
        table.add_column(name, justify="right")
    for choice in plan.choices:
        table.add_row(
            choice.name,
            f"${choice.bill.cost:,.0f}",
            f"{choice.saving:.1%}",
            f"{choice.regret:.1%}",
            f"${choice.bill.upfront:,.0f}",
        )
    table.add_row("no portfolio is below", f"${plan.bound:,.0f}", *[""] * 3)
    return table


def _purchases(plan: PurchasePlan, start: int, console: Console) -> None:
    for choice in plan.choices:
        if not choice.bought:
            continue
        console.print(f"{choice.name}:")
        for purchase in choice.bought[:MAX_PURCHASES]:
            console.print(
                f"  {_week(purchase.week, start)}: {_machines_text([purchase], plan.classes)}"
            )
        if len(choice.bought) > MAX_PURCHASES:
            console.print(f"  and {len(choice.bought) - MAX_PURCHASES} more purchases")


def tell_prospects(plan: PurchasePlan, console: Console) -> None:
    """Print what the held machines and the purchase save in coming weeks."""
    if plan.outlook:
        outlook = plan.outlook
        console.print(
            f"these reservations then save {outlook.value:.1%} of the on-demand cost in weeks like"
            f" the history's ({outlook.low:.1%} to {outlook.high:.1%}, from the variation between"
            " weeks)",
            soft_wrap=True,
        )


def _lessons(plan: PurchasePlan, console: Console) -> None:
    """Print what the purchases week by week would have missed, and their risk."""
    console.print(
        "week by week is what this advice would have bought; the best purchases, which are known"
        f" only in hindsight, would have saved another {plan.missed:.1%} of the on-demand cost",
        soft_wrap=True,
    )
    for fall in plan.falls:
        console.print(
            f"  if only {fall.left:.0%} of the machines had been needed: ${fall.cost:,.0f} with"
            f" these weekly purchases, ${fall.on_demand:,.0f} on demand",
            soft_wrap=True,
        )
    if plan.breakeven_left:
        console.print(
            f"  they would not have paid off if {plan.breakeven_left:.0%} or less had been needed"
        )


def _machines_text(bought: Sequence[Bought], classes: Sequence[ReservedClass]) -> str:
    return ", ".join(f"{purchase.machines} x {classes[purchase.kind].name}" for purchase in bought)


def _week(week: int, start: int) -> str:
    if not start:
        return f"week {week + 1}"
    return datetime.fromtimestamp(start + week * WEEK * 3600, UTC).strftime("%Y-%m-%d")


def _term(hours: int) -> str:
    years = hours / 8760
    return f"{years:g} y" if years >= 1 and years == int(years) else f"{hours / 24:g} d"
