"""``slurm-elastic limit``: a cap other than the configuration's, at once and for a while."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.directing import WHO_MAY, add_options, give, opened
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.changed import DOLLARS, KEYS, checked, configured, scope_named
from slurm_elastic.model.directive import LimitChange, limit_changes, scope_in_words
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.watch.door.asks import DirectAsk, EndAsk
from slurm_elastic.watch.view import Facts

RESET = "reset"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "limit",
        description="Change a cap at once, without the configuration file: machines and dollars an "
        "hour of the cluster or a cloud, max_nodes of a pool, budgets of the cluster, a cloud, "
        f"an account or a user. No machine ends for it. {WHO_MAY}",
        epilog=examples(
            "slurm-elastic limit cluster dollars_per_hour 20 --for 8h",
            "slurm-elastic limit burst max_nodes 4 --reason 'licences'",
            "slurm-elastic limit account:physics per_day 50",
            "slurm-elastic limit user:alice per_month 40",
            "slurm-elastic limit burst max_nodes reset",
        ),
    )
    parser.add_argument(
        "scope", metavar="SCOPE", help="cluster, a cloud, a pool, account:NAME or user:NAME"
    )
    parser.add_argument("key", metavar="KEY", choices=KEYS, help=f"one of {', '.join(KEYS)}")
    parser.add_argument("value", metavar="VALUE", help=f"a number, or {RESET}: the file's again")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Change it, and say what it was; 2 for what there is not."""
    config, facts = opened(args)
    scope = scope_named(config, args.scope)
    own = configured(config, scope, args.key)
    if args.value == RESET:
        return _reset(args, config, facts, scope)
    word = checked(scope, args.key, _number(args.value))
    ask = DirectAsk(word=word, seconds=args.seconds, reason=args.reason)
    return give(config, facts, ask, _preview(facts, word, own), dry=args.dry_run)


def _reset(args: argparse.Namespace, config: Config, facts: Facts, scope: str) -> int:
    numbers = tuple(
        d.number
        for d in facts.directives
        if isinstance(d.word, LimitChange) and (d.word.scope, d.word.key) == (scope, args.key)
    )
    if not numbers:
        raise ConfigError(f"{args.key} of {scope_in_words(scope)} is the configuration's already")
    return give(config, facts, EndAsk(numbers=numbers), (), dry=args.dry_run)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"VALUE: {text[:24]!r} is neither a number nor {RESET!r}") from None


def _preview(facts: Facts, word: LimitChange, own: float | None) -> Iterator[str]:
    now = {(c.scope, c.key): c.value for c in limit_changes(facts.directives, facts.now)}
    before = now.get((word.scope, word.key), own)
    was = "no limit" if before is None else f"{before:g}"
    yield f"{scope_in_words(word.scope)}: {word.key} {was} -> {word.value:g}"
    live = [m for m in facts.machines if m.ended is None]
    paid = usage((*live, *facts.stopped), facts.open_launches)
    if word.key == DOLLARS:
        used = paid.dollars_per_hour.get(word.scope, 0.0)
        yield f"now ${used:.4f}/h at the worst prices{_over(used, word)}"
    elif word.key in ("nodes", "max_nodes"):
        machines = paid.nodes.get(word.scope, 0)
        yield f"now {machines} machines{_over(machines, word)}"


def _over(used: float, word: LimitChange) -> str:
    return "; none ends for it, none starts before some have ended" if used > word.value else ""
