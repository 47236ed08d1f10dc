"""``slurm-elastic resume``: end a pause, a drain, a replacement or a migration."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.cli.orders.giving_orders import (
    PlannedOrder,
    Subparsers,
    add_command,
    add_reason,
    run_planned,
)
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import scope_named
from slurm_elastic.model.directive import Departure, Directive, Word, describe
from slurm_elastic.watch.door.questions import EndAsk
from slurm_elastic.watch.view import Facts


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "resume",
        "End a pause, a drain, a replacement or a migration: machines may start there again, and "
        "machines that have not ended yet stay. `slurm-elastic limit SCOPE KEY reset` ends "
        "changed limits.",
        "slurm-elastic resume aws --reason 'new image works'",
        "slurm-elastic resume --all",
        run=run,
    )
    parser.add_argument(
        "subject",
        nargs="?",
        default="cluster",
        metavar="CLOUD|POOL|NODES",
        help="the cloud, the pool or the nodes that the order named (default: the cluster)",
    )
    parser.add_argument("--all", action="store_true", help="end all such orders")
    add_reason(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="show which orders would end, and change nothing"
    )


def run(args: argparse.Namespace) -> int:
    """End the orders about the subject. ConfigError (exit 2) if there is none."""
    return run_planned(args, plan)


def plan(args: argparse.Namespace, config: Config, facts: Facts) -> PlannedOrder:
    directives = [d for d in facts.directives if not d.word.is_limit]
    chosen = directives if args.all else _named(config, directives, args.subject)
    if not chosen:
        raise _no_order_error(config, args.subject, directives)
    # Without --dry-run the order's own lines say the same.
    preview = (f"would end: {describe(d, facts.now)}" for d in chosen if args.dry_run)
    ask = EndAsk(numbers=tuple(d.number for d in chosen), reason=args.reason)
    return PlannedOrder(ask=ask, preview=tuple(preview))


def _named(config: Config, directives: Sequence[Directive], subject: str) -> Sequence[Directive]:
    """Return the orders about the subject. If the ending commands of orders name just this subject,
    return these alone: a node may share its name with a cloud or a pool, whose order must stay.
    """
    printed = [d for d in directives if d.word.argument == subject]
    return printed or [d for d in directives if _is_about(config, d.word, subject)]


def _is_about(config: Config, word: Word, subject: str) -> bool:
    if isinstance(word, Departure) and subject in (word.about, word.image):
        return True
    # The scope of an order stays in force after its cloud or pool has left the configuration.
    if not word.node_names and subject == word.argument:
        return True
    try:
        return not word.node_names and word.scope == scope_named(config, subject)
    except ConfigError:
        return False


def _no_order_error(config: Config, subject: str, directives: Sequence[Directive]) -> ConfigError:
    """Why no order is about the subject: nothing is ordered, the name means two things, or the
    orders are about others, named as ``resume`` accepts them.
    """
    if not directives:
        return ConfigError("nothing is paused or drained")
    choices = ", ".join(d.word.argument for d in directives)
    if not _names_nodes(config, subject):
        try:
            scope_named(config, subject, nodes=True)
        except ConfigError as error:
            return ConfigError(f"{error}; paused or drained: {choices}")
    return ConfigError(f"{subject!r} is not paused or drained; choose from: {choices}")


def _names_nodes(config: Config, text: str) -> bool:
    """Whether the text is a list of nodes that pools have."""
    try:
        nodes = expand(text)
    except HostlistError:
        return False
    return bool(nodes) and {*nodes} <= {
        node for pool in config.pools for node in expand(pool.nodes)
    }
