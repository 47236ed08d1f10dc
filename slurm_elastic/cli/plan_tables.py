"""A portfolio of reserved machines as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table

from slurm_elastic.policies.planning.portfolio import WEEK, Bought, ReservedClass
from slurm_elastic.simulate.portfolio import PurchasePlan

SHOWN = 12  # purchases that are listed


def render(plan: PurchasePlan, pool: str, start: int, console: Console) -> None:
    """Print all of it; ``start``: Unix time of the history's beginning, 0 where not known."""
    console.print(f"pool {pool}: {plan.weeks} whole weeks of history")
    console.print(_classes(plan))
    console.print(_choices(plan))
    _purchases(plan, start, console)
    _advice(plan, console)


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
        for one in choice.bought[:SHOWN]:
            console.print(f"  {_week(one.week, start)}: {_what([one], plan.classes)}")
        if len(choice.bought) > SHOWN:
            console.print(f"  and {len(choice.bought) - SHOWN} more purchases")


def _advice(plan: PurchasePlan, console: Console) -> None:
    console.print(f"to buy now: {_what(plan.now, plan.classes) or 'nothing more'}")
    if plan.outlook:
        one = plan.outlook
        console.print(
            f"what is held then saves {one.value:.1%} of the cost on demand in weeks like the"
            f" history's ({one.low:.1%} to {one.high:.1%}, by how far single weeks differ)",
            soft_wrap=True,
        )
    for fall in plan.falls:
        console.print(
            f"  had only {fall.left:.0%} of the machines been needed: ${fall.cost:,.0f} with what"
            f" was bought week by week, ${fall.on_demand:,.0f} on demand",
            soft_wrap=True,
        )
    if plan.breakeven_left:
        console.print(f"  it does not pay where {plan.breakeven_left:.0%} or less are needed")


def _what(bought: Sequence[Bought], classes: Sequence[ReservedClass]) -> str:
    return ", ".join(f"{one.machines} x {classes[one.kind].name}" for one in bought)


def _week(week: int, start: int) -> str:
    if not start:
        return f"week {week + 1}"
    return datetime.fromtimestamp(start + week * WEEK * 3600, UTC).strftime("%Y-%m-%d")


def _term(hours: int) -> str:
    years = hours / 8760
    return f"{years:g} y" if years >= 1 and years == int(years) else f"{hours / 24:g} d"
