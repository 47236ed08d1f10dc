"""``slurm-elastic pause``: start no new machines in a cloud, a pool or anywhere, for a while."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from slurm_elastic.base.units import counted, does, money
from slurm_elastic.cli.orders.giving_orders import (
    PlannedOrder,
    Subparsers,
    add_command,
    add_options,
    run_planned,
)
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import pools_in, scope_named
from slurm_elastic.model.directive import Pause
from slurm_elastic.watch.door.questions import DirectAsk
from slurm_elastic.watch.view import Facts


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "pause",
        "Start no new machines in a cloud or a pool, or anywhere. Running machines and their jobs "
        "stay; waiting jobs start elsewhere or wait.",
        "slurm-elastic pause aws --for 2h --reason 'new image'",
        "slurm-elastic pause",
        run=run,
    )
    parser.add_argument(
        "scope",
        nargs="?",
        default="cluster",
        metavar="CLOUD|POOL",
        help="pause this cloud or pool (default: the whole cluster)",
    )
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the effects, and give the order. ConfigError (exit 2) for an unknown scope."""
    return run_planned(args, plan)


def plan(args: argparse.Namespace, config: Config, facts: Facts) -> PlannedOrder:
    word = Pause(scope=scope_named(config, args.scope))
    # No machines in the basis: a cloud may start machines all the time, and the operator who wants
    # to pause it must not see a new preview after each of them.
    return PlannedOrder(
        ask=DirectAsk(word=word, seconds=args.seconds, reason=args.reason),
        preview=tuple(_preview(config, facts, word)),
        basis=pools_in(config, word.scope),
    )


def _preview(config: Config, facts: Facts, word: Pause) -> Iterator[str]:
    pools = pools_in(config, word.scope)
    yield f"No new machines in {word.subject} ({counted(len(pools), 'pool')})."
    paid = [m.instance.price for m in facts.machines if not m.has_ended and m.pool in pools]
    if paid:
        are = "it is" if len(paid) == 1 else "they are"
        stay = f"{money(sum(paid))}/h {does(len(paid), 'stay')} until {are} idle"
        yield f"{counted(len(paid), 'machine')} at {stay}."
