"""``slurm-elastic resume``: the end of a pause, a drain, a replacement or a migration."""

from __future__ import annotations

import argparse

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.directing import WHO_MAY, give, opened
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.changed import scope_named
from slurm_elastic.model.directive import Departure, Directive, LimitChange, scope_in_words
from slurm_elastic.watch.door.asks import EndAsk


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "resume",
        description="End a pause, a drain, a replacement or a migration: machines may start there "
        "again, and what has not left yet stays. Changed limits end by `slurm-elastic limit SCOPE "
        f"KEY reset`. {WHO_MAY}",
        epilog=examples("slurm-elastic resume aws", "slurm-elastic resume --all"),
    )
    parser.add_argument(
        "subject",
        nargs="?",
        default="cluster",
        metavar="CLOUD|POOL|NODES",
        help="the cloud, the pool or the nodes, as the order named them (default: the cluster)",
    )
    parser.add_argument("--all", action="store_true", help="end all of them")
    parser.set_defaults(run=run, dry_run=False)


def run(args: argparse.Namespace) -> int:
    """End them; 2 where nothing of that name is paused or drained."""
    config, facts = opened(args)
    mine = [d for d in facts.directives if not isinstance(d.word, LimitChange)]
    chosen = mine if args.all else [d for d in mine if _is_about(config, d, args.subject)]
    if not chosen:
        known = ", ".join(_name(d) for d in mine) or "nothing"
        subject = "" if args.all else f"{args.subject!r} is not paused or drained; "
        raise ConfigError(f"{subject}paused or drained: {known}")
    ask = EndAsk(numbers=tuple(d.number for d in chosen))
    return give(config, facts, ask, (), dry=args.dry_run)


def _is_about(config: Config, directive: Directive, subject: str) -> bool:
    word = directive.word
    if isinstance(word, Departure) and subject in (word.about, word.image):
        return True
    try:
        scope = scope_named(config, subject)
    except ConfigError:
        return False
    return word.scope == scope and not (isinstance(word, Departure) and not word.scope)


def _name(directive: Directive) -> str:
    word = directive.word
    return word.about if isinstance(word, Departure) else scope_in_words(word.scope)
