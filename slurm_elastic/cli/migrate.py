"""``slurm-elastic migrate``: a cloud is emptied, its jobs go on in another one."""

from __future__ import annotations

import argparse

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli import departing
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.directing import WHO_MAY, add_options, give
from slurm_elastic.cli.helptext import examples
from slurm_elastic.model.directive import Departure
from slurm_elastic.watch.door.asks import DirectAsk


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "migrate",
        description="Empty a cloud for its maintenance: its running jobs are saved, requeued and "
        "go on in the other cloud, its waiting jobs may start there, and nothing new starts here "
        f"until `slurm-elastic resume`. {WHO_MAY}",
        epilog=examples("slurm-elastic migrate onprem --to aws --at 22:00 --for 6h --dry-run"),
    )
    parser.add_argument("cloud", metavar="CLOUD", help="the cloud that is emptied")
    parser.add_argument("--to", required=True, metavar="CLOUD", help="where its jobs go on")
    parser.add_argument(
        "--max-unavailable", type=count, metavar="N", dest="unavailable",
        help="let at most N machines leave at a time (default: all)",
    )  # fmt: skip
    departing.add_time(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Say what will be done, and do it; 2 for what is no cloud."""
    config, facts = departing.read(args)
    known = [cloud.name for cloud in config.clouds]
    for name in (args.cloud, args.to):
        if name not in known:
            raise ConfigError(f"there is no cloud {name!r}; there are {', '.join(known)}")
    if args.cloud == args.to:
        raise ConfigError("--to is another cloud than the one that is emptied")
    subject = departing.subject_of(config, f"cloud:{args.cloud}")
    word = Departure(
        verb="migrate",
        about=subject.about,
        nodes=subject.nodes,
        scope=subject.scope,
        aggressive=True,
        unavailable=args.unavailable,
        to=args.to,
    )
    starts = max(args.at or facts.now, facts.now)
    ask = DirectAsk(word=word, starts=args.at, seconds=args.seconds, reason=args.reason)
    said = departing.preview(config, facts, word, starts)
    return give(config, facts, ask, said, dry=args.dry_run)
