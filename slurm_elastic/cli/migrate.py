"""``slurm-elastic migrate``: empty a cloud and continue its jobs in another one."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.departure_orders import add_leaving, departure, planned, read
from slurm_elastic.cli.giving_orders import (
    PlannedOrder,
    Subparsers,
    add_command,
    add_options,
    run_planned,
)
from slurm_elastic.config import Config
from slurm_elastic.model.directive import scope_of_cloud
from slurm_elastic.watch.view import Facts


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "migrate",
        "Empty a cloud for its maintenance: its running jobs are saved, requeued and continue in "
        "the other cloud, its waiting jobs may start there, and no machine starts in the emptied "
        "cloud until `slurm-elastic resume`.",
        "slurm-elastic migrate onprem --to aws --at 22:00 --for 6h --dry-run",
        run=run,
    )
    parser.add_argument("cloud", metavar="CLOUD", help="the cloud to empty")
    parser.add_argument("--to", required=True, metavar="CLOUD", help="continue its jobs there")
    add_leaving(parser)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the effects, and give the order. ConfigError (exit 2) for an unknown cloud."""
    return run_planned(args, plan, read)


def plan(args: argparse.Namespace, config: Config, facts: Facts) -> PlannedOrder:
    names = [cloud.name for cloud in config.clouds]
    for name in (args.cloud, args.to):
        if name not in names:
            raise ConfigError(f"there is no cloud {name!r}; there are {', '.join(names)}")
    if args.cloud == args.to:
        raise ConfigError("--to must name a different cloud")
    word = departure(config, "migrate", scope_of_cloud(args.cloud))
    return planned(args, config, facts, replace(word, aggressive=True, to=args.to))
