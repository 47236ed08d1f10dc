"""The options of ``plan reserve`` about reservations that the site has already, and the text of its
answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field
from rich import box
from rich.console import Console
from rich.table import Table

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import brief
from slurm_elastic.config.basics.numbers import Count, Seconds
from slurm_elastic.config.configfile import load_as
from slurm_elastic.config.decode import nearest
from slurm_elastic.policies.planning.held import HeldPlan, Risk
from slurm_elastic.policies.planning.portfolio import WEEK, ReservedClass


class HeldClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines that the site has reserved: of a class of the price list, or of the capacity block
    with the name ``block``. ``left``: seconds of their term that remain at the end of the history.
    """

    name: str = field(name="class", default="")
    block: str = ""
    machines: Count
    left: Seconds


class Inventory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file ``--held``."""

    held: tuple[HeldClass, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--held", type=Path, metavar="FILE.yaml",
        help="file with the reserved machines: show what to buy besides them (default: the site "
        "holds none)",
    )  # fmt: skip
    parser.add_argument(
        "--at-most", type=_bound, action="append", default=[], metavar="CLASS=N",
        help="hold at most N machines of this class, together with those held now",
    )  # fmt: skip
    parser.add_argument(
        "--prefer-short", action="store_true",
        help="buy the class with the shortest term of those that pay off",
    )  # fmt: skip


def read(args: argparse.Namespace, classes: Sequence[ReservedClass]) -> tuple[Inventory, Risk]:
    """Return the inventory, which is empty without ``--held``, and the site's bounds. ConfigError
    for mistakes.
    """
    inventory = load_as(args.held, Inventory, "held") if args.held else Inventory(held=())
    for number, one in enumerate(inventory.held):
        place = f"{args.held}: held[{number}]"
        if one.name and one.block:
            raise ConfigError(f"{place}: found 'class' and 'block', expected one of them")
        if not (one.name or one.block):
            raise ConfigError(f"{place}: found no 'class', expected text, or a 'block'")
        if one.name:
            _index(one.name, classes, f"{place}.class")
    at_most = {_index(name, classes, "--at-most"): count for name, count in args.at_most}
    return inventory, Risk(at_most=at_most, prefer_short=args.prefer_short)


def counts(inventory: Inventory, classes: Sequence[ReservedClass]) -> list[int]:
    """Return the held machines by class. A contract that ends within a week no longer counts,
    because its machines have to be bought again now.
    """
    machines = [0] * len(classes)
    for one in inventory.held:
        if one.left >= WEEK * 3600 and one.name:
            machines[_index(one.name, classes, "held")] += one.machines
    return machines


def on_blocks(inventory: Inventory) -> int:
    """Return how many machines the site has in capacity blocks that last for a week or more."""
    return sum(one.machines for one in inventory.held if one.block and one.left >= WEEK * 3600)


def render(
    plan: HeldPlan, inventory: Inventory, classes: Sequence[ReservedClass], console: Console
) -> None:
    """Print the reservations to buy now, and how demand changes the cost."""
    held = ", ".join(
        f"{one.machines} x {one.name or f'block {one.block}'} ({brief(one.left)} left)"
        for one in inventory.held
    )
    console.print(f"held now: {held or 'nothing (--held FILE.yaml says what is held)'}")
    buy = machines_text(plan.buy, classes)
    upfront = f", ${plan.upfront:,.0f} upfront" if plan.upfront else ""
    console.print(
        f"to buy now besides it, by the use of the last {plan.weeks} weeks: {buy}{upfront}",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE)
    for name in ("demand", "to buy now", "on demand", "with what is held", "with the purchase"):
        table.add_column(name, justify="left" if name == "to buy now" else "right")
    for case in plan.cases:
        dollars = (f"${cost:,.2f}" for cost in (case.on_demand, case.held, case.bought))
        table.add_row(f"{case.share:.0%}", machines_text(case.buy, classes), *dollars)
    console.print("dollars per week, upfront payments spread over their terms:")
    console.print(table)


def machines_text(machines: Sequence[int], classes: Sequence[ReservedClass]) -> str:
    """Return ``2 x year, 1 x month``, or ``nothing``."""
    pairs = zip(machines, classes, strict=True)
    return ", ".join(f"{count} x {kind.name}" for count, kind in pairs if count) or "nothing"


def _bound(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text[:40]} is not CLASS=N")
    return name, int(number)


def _index(name: str, classes: Sequence[ReservedClass], place: str) -> int:
    names = [kind.name for kind in classes]
    if name not in names:
        close = nearest(name, names)
        hint = f"; did you mean {close}?" if close else ""
        expected = f"a class of the price list: one of {', '.join(names)}"
        raise ConfigError(f"{place}: found {name[:40]!r}, expected {expected}{hint}")
    return names.index(name)
