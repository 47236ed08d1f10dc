"""``slurm-elastic drain``: machines leave, and nothing new starts there."""

from __future__ import annotations

import argparse

from slurm_elastic.cli import departing
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.directing import WHO_MAY, add_options, give
from slurm_elastic.cli.helptext import examples
from slurm_elastic.model.directive import Departure
from slurm_elastic.watch.door.asks import DirectAsk


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "drain",
        description="Have the machines of a cloud, a pool or some nodes leave when their jobs have "
        "ended, and start nothing new there until `slurm-elastic resume`. With --aggressive jobs "
        f"are saved and requeued, and not waited for. {WHO_MAY}",
        epilog=examples(
            "slurm-elastic drain pub[1-4] --reason 'disk errors'",
            "slurm-elastic drain aws --aggressive --at 22:00 --dry-run",
        ),
    )
    add_leaving(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def add_leaving(parser: argparse.ArgumentParser) -> None:
    """The options that ``replace`` has, too."""
    parser.add_argument(
        "subject", metavar="NODES|POOL|CLOUD", help="nodes of pools, a pool or a cloud"
    )
    parser.add_argument(
        "--aggressive", action="store_true",
        help="save their jobs and requeue them, and start those anew that cannot be saved",
    )  # fmt: skip
    parser.add_argument(
        "--max-unavailable", type=count, metavar="N", dest="unavailable",
        help="let at most N machines leave at a time (default: all)",
    )  # fmt: skip
    departing.add_time(parser)


def run(args: argparse.Namespace) -> int:
    """Say what will be done, and do it; 2 for what is not ours."""
    return leave("drain", args, args.seconds)


def leave(verb: str, args: argparse.Namespace, seconds: float | None) -> int:
    """Drain or replace."""
    config, facts = departing.read(args)
    subject = departing.subject_of(config, args.subject)
    word = Departure(
        verb=verb,
        about=subject.about,
        nodes=subject.nodes,
        scope=subject.scope,
        aggressive=args.aggressive,
        unavailable=args.unavailable,
    )
    starts = max(args.at or facts.now, facts.now)
    ask = DirectAsk(word=word, starts=args.at, seconds=seconds, reason=args.reason)
    said = departing.preview(config, facts, word, starts)
    return give(config, facts, ask, said, dry=args.dry_run)
