"""``slurm-elastic pause``: no new machines in a cloud, a pool or anywhere, for a while."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from slurm_elastic.cli.directing import (
    WHO_MAY,
    add_options,
    counted,
    give,
    machines_in,
    opened,
    pools_in,
)
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.changed import scope_named
from slurm_elastic.model.directive import Pause, scope_in_words
from slurm_elastic.watch.door.asks import DirectAsk
from slurm_elastic.watch.view import Facts


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "pause",
        description="Start no new machines in a cloud or a pool, or anywhere. Machines that are "
        f"there stay, and so do their jobs; waiting jobs start elsewhere or wait. {WHO_MAY}",
        epilog=examples(
            "slurm-elastic pause aws --for 2h --reason 'new image'", "slurm-elastic pause"
        ),
    )
    parser.add_argument(
        "scope",
        nargs="?",
        default="cluster",
        metavar="CLOUD|POOL",
        help="pause this cloud or pool (default: all of them)",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pause, and say what that means; 2 for an unknown cloud or pool."""
    config, facts = opened(args)
    scope = scope_named(config, args.scope)
    ask = DirectAsk(word=Pause(scope=scope), seconds=args.seconds, reason=args.reason)
    return give(config, facts, ask, _preview(config, facts, scope), dry=args.dry_run)


def _preview(config: Config, facts: Facts, scope: str) -> Iterator[str]:
    pools = pools_in(config, scope)
    yield f"No new machines in {scope_in_words(scope)} ({counted(len(pools), 'pool')})."
    machines, dollars = machines_in(facts, pools)
    if machines:
        yield f"{counted(machines, 'machine')} at ${dollars:.4f}/h stay until they are idle."
