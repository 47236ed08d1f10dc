"""``slurm-elastic migrate``: empty machines and continue their jobs in another cloud."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.orders.departure_orders import add_leaving, departure, planned, read
from slurm_elastic.cli.orders.giving_orders import (
    PlannedOrder,
    Subparsers,
    add_command,
    add_options,
    run_planned,
)
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import clouds_of
from slurm_elastic.watch.view import Facts


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "migrate",
        "Empty a cloud, a pool or some nodes: running jobs are saved, requeued and continue in the "
        "other cloud, waiting jobs may start there, and no machine starts on the emptied nodes "
        "until `slurm-elastic resume`. --after-jobs lets running jobs end first.",
        "slurm-elastic migrate onprem --to aws --at 22:00 --for 6h --dry-run",
        "slurm-elastic migrate node[1-4] --to aws --after-jobs --start-replacements",
        run=run,
    )
    parser.add_argument(
        "subject", metavar="NODES|POOL|CLOUD", help="nodes of pools, a pool or a cloud to empty"
    )
    parser.add_argument("--to", required=True, metavar="CLOUD", help="continue its jobs there")
    parser.add_argument(
        "--after-jobs", action="store_true",
        help="let running jobs end on their machines; only waiting jobs go to the other cloud",
    )  # fmt: skip
    parser.add_argument(
        "--start-replacements", action="store_true",
        help="start as many machines in the other cloud at once, within its limits, and keep each "
        "for an hour without a job",
    )  # fmt: skip
    add_leaving(parser)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the effects, and give the order. ConfigError (exit 2) for unknown names."""
    return run_planned(args, plan, read)


def plan(args: argparse.Namespace, config: Config, facts: Facts) -> PlannedOrder:
    names = [cloud.name for cloud in config.clouds]
    if args.to not in names:
        raise ConfigError(f"there is no cloud {args.to!r}; there are {', '.join(names)}")
    word = replace(
        departure(config, "migrate", args.subject),
        aggressive=not args.after_jobs,
        to=args.to,
        start_replacements=args.start_replacements,
    )
    if args.to in clouds_of(config, word.nodes):
        raise ConfigError("--to must name a different cloud")
    return planned(args, config, facts, word)
