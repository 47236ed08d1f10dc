"""``slurm-elastic resume``: the end of a pause, a drain, a replacement or a migration."""

from __future__ import annotations

import argparse

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.giving_orders import Subparsers, add_command, give, opened
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import scope_named
from slurm_elastic.model.directive import Departure, Word
from slurm_elastic.watch.door.questions import EndAsk


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "resume",
        "End a pause, a drain, a replacement or a migration: machines may start there again, and "
        "what has not left yet stays. Changed limits end by `slurm-elastic limit SCOPE KEY reset`.",
        "slurm-elastic resume aws",
        "slurm-elastic resume --all",
        run=run,
    )
    parser.add_argument(
        "subject",
        nargs="?",
        default="cluster",
        metavar="CLOUD|POOL|NODES",
        help="the cloud, the pool or the nodes, as the order named them (default: the cluster)",
    )
    parser.add_argument("--all", action="store_true", help="end all of them")


def run(args: argparse.Namespace) -> int:
    """End them; 2 where nothing of that name is paused or drained."""
    config, facts = opened(args)
    mine = [d for d in facts.directives if not d.word.is_limit]
    chosen = mine if args.all else [d for d in mine if _is_about(config, d.word, args.subject)]
    if not chosen:
        if not mine:
            raise ConfigError("nothing is paused or drained")
        known = ", ".join(d.word.subject for d in mine)
        raise ConfigError(f"{args.subject!r} is not paused or drained; what is: {known}")
    return give(config, facts, EndAsk(numbers=tuple(d.number for d in chosen)))


def _is_about(config: Config, word: Word, subject: str) -> bool:
    if isinstance(word, Departure) and subject in (word.about, word.image):
        return True
    try:
        return not word.single and word.scope == scope_named(config, subject)
    except ConfigError:
        return False
