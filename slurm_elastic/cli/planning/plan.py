"""``slurm-elastic plan``: choose reservations and policies from a job history."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate import history
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.orders.pool_option import pool_index
from slurm_elastic.cli.planning import (
    plan_checkpoint,
    plan_deadline,
    plan_held,
    plan_own,
    plan_policy,
)
from slurm_elastic.cli.planning.plan_tables import render, tell_prospects
from slurm_elastic.cli.planning.simulate_tables import SCHEDULER, tell_unbought
from slurm_elastic.config.basics.numbers import Dollars, Seconds
from slurm_elastic.config.configfile import load_as
from slurm_elastic.policies.planning.held import Risk
from slurm_elastic.policies.planning.portfolio import ReservedClass, heaviest_first
from slurm_elastic.policies.planning.reserve import usage_of_steps
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.studies.portfolio import PurchasePlan, plan_of

WEEKS = 8  # a shorter history says nothing about the coming years


class PricedClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of reservations or of a savings plan, with the provider's prices.

    ``term``: length of the contract (s). ``upfront``: $ at its start. ``hourly``: $/h. ``always``:
    the hourly price is paid at all times, else only while the machine is used.
    """

    name: str
    term: Seconds
    upfront: Annotated[float, Meta(ge=0)] = 0.0
    hourly: Annotated[float, Meta(ge=0)] = 0.0
    always: bool = True


class Pricing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file ``--pricing``: dollars for one machine of the pool."""

    on_demand: Dollars
    classes: Annotated[tuple[PricedClass, ...], Meta(min_length=1)]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        description="Plan ahead from a job history, or from traces of spot machines. See "
        f"{page('planning')}.",
        epilog=examples("slurm-elastic plan policy --workload history.swf --max-wait 60"),
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    reserve = kinds.add_parser(
        "reserve",
        help="show which machines to reserve, and when",
        description="Show which machines of a pool to reserve (reserved instances, savings "
        "plans), when, and the savings and risks.",
        epilog=examples("slurm-elastic plan reserve --workload h.swf --pricing pricing.yaml"),
    )
    history.add_arguments(reserve)
    reserve.add_argument(
        "--pricing", type=Path, required=True, metavar="FILE.yaml",
        help=f"the prices of reservations; {page('planning')} has an example",
    )  # fmt: skip
    reserve.add_argument(
        "--policy", default="slurm", metavar="POLICY",
        help="plan for the machines that this policy uses (default: slurm)",
    )  # fmt: skip
    reserve.add_argument(
        "--pool", metavar="NAME", help="plan for this pool (default: the only public one)"
    )
    plan_held.add_arguments(reserve)
    reserve.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    reserve.set_defaults(run=run)
    plan_own.add(kinds)
    plan_policy.add(kinds)
    plan_checkpoint.add(kinds)
    plan_deadline.add(kinds)


def run(args: argparse.Namespace) -> int:
    """Simulate the history, plan, and print the plan. ConfigError if the history is too short."""
    classes, on_demand = pricing(args.pricing)
    inventory = plan_held.read(args, classes)
    setting = history.read(args)
    scenario = setting.scenario(args.policy)
    index = pool_index(args.pool, scenario.pools)
    with history.progress(len(setting.jobs)) as advance:
        outcome = simulate(setting.jobs, scenario, setting.history.start, advance)
    console = Output()
    # Before the plan: a policy that bought no machine is the usual reason for the error of _plan.
    tell_unbought({args.policy: outcome.figures}, console)
    plan = _plan(outcome, index, classes, on_demand, inventory)
    render(plan, scenario.pools[index].name, setting.history.start, console)
    plan_held.render(plan.held, inventory[0], classes, console)
    tell_prospects(plan, console)
    console.print(SCHEDULER, markup=False, highlight=False)
    for note in setting.notes_for([args.policy]):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        writing.as_told(args.json, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    return 0


def pricing(path: Path) -> tuple[tuple[ReservedClass, ...], float]:
    """Read the classes (heaviest first) and the on-demand price ($/h). ConfigError for mistakes."""
    document = load_as(path, Pricing, "on_demand and classes")
    names = [kind.name for kind in document.classes]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(f"{path}: classes[{number}].name: found {name!r} twice")
    classes = [
        ReservedClass(
            name=kind.name,
            term=max(round(kind.term / 3600), 1),
            upfront=kind.upfront,
            price=kind.hourly,
            always=kind.always,
        )
        for kind in document.classes
    ]
    return heaviest_first(classes), document.on_demand


def _plan(
    outcome: RunResult,
    pool: int,
    classes: tuple[ReservedClass, ...],
    on_demand: float,
    inventory: tuple[plan_held.Inventory, Risk],
) -> PurchasePlan:
    usage = usage_of_steps(outcome.paid_steps(pool))
    if len(usage) < WEEKS:
        raise ConfigError(
            f"the history uses machines of the pool for {len(usage)} whole weeks, expected at least"
            f" {WEEKS}: a shorter history says nothing about the coming years"
        )
    held, risk = plan_held.counts(inventory[0], classes), inventory[1]
    blocks = plan_held.on_blocks(inventory[0])
    return plan_of(usage, classes, on_demand, held, risk, blocks)
