"""``slurm-elastic metrics``: print all metrics once, in Prometheus' text format."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.pages import page
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate.looking import config_to_look
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.watch.door.records import may_read


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "metrics",
        description="Print machines, money, refusals, boots, checkpoints and migrations as metrics "
        f"for Prometheus. For root and SlurmUser; {page('metrics')} lists them.",
        epilog=examples(
            "slurm-elastic metrics",
            "slurm-elastic metrics --output /run/textfiles/slurm-elastic.prom",
        ),
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="write this file atomically, for node_exporter's textfile collector",
    )  # fmt: skip
    parser.add_argument(
        "--no-slurm", action="store_true", help="leave out nodes by state: Slurm is not asked"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the metrics or write them to a file. SlurmElasticError for users without the right."""
    config = config_to_look(args)
    if not may_read(config):
        raise SlurmElasticError(f"{config.state} is for root and {config.slurm.user}")
    try:
        # Imported only here: prometheus-client is an extra, and ``-h`` must work without it.
        from slurm_elastic.watch.door.metrics import node_states, text
    except ModuleNotFoundError as error:
        raise SlurmElasticError(missing_module(error, "metrics")) from error
    now, states = time.time(), None
    if not args.no_slurm:
        try:
            with config.sharing():
                states = node_states(config, now, PromptCli(config.slurm))
        except SlurmError as error:
            print(f"slurm-elastic: without nodes by state: {error}", file=sys.stderr)
    with config.sharing():
        exposition = text(config, now, states)
    if args.output is None:
        sys.stdout.write(exposition.decode())
    else:
        writing.replace(args.output, exposition, 0o644)
    return 0
