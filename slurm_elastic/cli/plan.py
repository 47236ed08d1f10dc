"""``slurm-elastic plan``: what a job history says about machines to reserve and policies to use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli import history, plan_checkpoint, plan_deadline, plan_policy
from slurm_elastic.cli.console import Output
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.plan_tables import render
from slurm_elastic.cli.simulate_tables import SCHEDULER, tell_unbought
from slurm_elastic.config.configfile import load_as
from slurm_elastic.config.numbers import Dollars, Seconds
from slurm_elastic.policies.planning.portfolio import ReservedClass, heaviest_first
from slurm_elastic.policies.planning.reserve import usage_of_steps
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.portfolio import PurchasePlan, plan_of
from slurm_elastic.simulate.scenario import PoolModel

WEEKS = 8  # less of a history says nothing of years to come


class PricedClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of reservations or of a savings plan, as the provider prices it."""

    name: str
    term: Seconds
    upfront: Annotated[float, Meta(ge=0)] = 0.0
    hourly: Annotated[float, Meta(ge=0)] = 0.0
    always: bool = True


class Pricing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file ``--pricing``: dollars for one machine of the pool."""

    on_demand: Dollars
    classes: Annotated[tuple[PricedClass, ...], Meta(min_length=1)]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        description="Plan ahead by a job history, or by traces of spot machines. See "
        "docs/planning.md.",
        epilog=examples("slurm-elastic plan policy --workload history.swf --max-wait 60"),
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    reserve = kinds.add_parser(
        "reserve",
        help="tell which machines to reserve, and when",
        description="Tell which machines of a pool to buy ahead (reserved instances, savings "
        "plans), when, what it saves, and what it risks.",
        epilog=examples("slurm-elastic plan reserve --workload h.swf --pricing pricing.yaml"),
    )
    history.add_arguments(reserve)
    reserve.add_argument(
        "--pricing", type=Path, required=True, metavar="FILE.yaml",
        help="the prices of reservations; docs/planning.md has an example",
    )  # fmt: skip
    reserve.add_argument(
        "--policy", default="slurm", metavar="POLICY",
        help="plan for the machines that this policy uses (default: slurm)",
    )  # fmt: skip
    reserve.add_argument(
        "--pool", metavar="NAME", help="plan for this pool (default: the only public one)"
    )
    reserve.add_argument("--json", type=Path, metavar="OUT", help="also write all figures as JSON")
    reserve.set_defaults(run=run)
    plan_policy.add(kinds)
    plan_checkpoint.add(kinds)
    plan_deadline.add(kinds)


def run(args: argparse.Namespace) -> int:
    """Simulate the history, plan, print."""
    classes, on_demand = pricing(args.pricing)
    setting = history.read(args)
    scenario = setting.scenario(args.policy)
    index = _pool(args.pool, scenario.pools)
    with history.progress(len(setting.jobs)) as advance:
        outcome = simulate(setting.jobs, scenario, setting.history.start, advance)
    console = Output()
    tell_unbought({args.policy: outcome.figures}, console)  # it is why there may be no plan
    plan = _plan(outcome, index, classes, on_demand)
    render(plan, scenario.pools[index].name, setting.history.start, console)
    console.print(SCHEDULER, markup=False, highlight=False)
    for note in setting.told([args.policy]):
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        writing.as_told(args.json, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    return 0


def pricing(path: Path) -> tuple[tuple[ReservedClass, ...], float]:
    """The classes, heaviest first, and the price on demand. ConfigError for anything wrong."""
    found = load_as(path, Pricing, "on_demand and classes")
    names = [kind.name for kind in found.classes]
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
        for kind in found.classes
    ]
    return heaviest_first(classes), found.on_demand


def _pool(name: str | None, pools: Sequence[PoolModel]) -> int:
    names = [pool.name for pool in pools]
    if name is None:
        public = [pool.name for pool in pools if pool.public]
        if len(public) != 1:
            raise ConfigError(f"--pool is needed: found public pools {', '.join(public) or 'none'}")
        return names.index(public[0])
    paid = [p.name for p in pools if p.standing < p.machines or not p.machines]
    if name not in names:
        raise ConfigError(f"--pool: found {name!r}, expected one of {', '.join(names)}")
    if name not in paid:
        raise ConfigError(
            f"--pool: the machines of {name!r} are always there, and none is to be reserved;"
            f" expected one of {', '.join(paid) or 'none'}"
        )
    return names.index(name)


def _plan(
    outcome: RunResult, pool: int, classes: tuple[ReservedClass, ...], on_demand: float
) -> PurchasePlan:
    usage = usage_of_steps(outcome.paid_steps(pool))
    if len(usage) < WEEKS:
        raise ConfigError(
            f"the history keeps machines of the pool for {len(usage)} whole weeks, expected {WEEKS}"
            " at least: less says nothing of the years to come"
        )
    return plan_of(usage, classes, on_demand)
