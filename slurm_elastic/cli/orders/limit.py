"""``slurm-elastic limit``: override a configured cap at once, for a while."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import counted, format_duration, money
from slurm_elastic.cli.orders.giving_orders import (
    PlannedOrder,
    Subparsers,
    add_command,
    add_options,
    run_planned,
)
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.limit_changes import DOLLARS, KEYS, checked, configured, scope_named
from slurm_elastic.config.pool_rules import paid_reservations
from slurm_elastic.model.causes.stops import CloudBlocked
from slurm_elastic.model.directive import (
    Directive,
    LimitChange,
    bound,
    limit_changes,
    scope_in_words,
    scope_of_cloud,
)
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk
from slurm_elastic.watch.view import Facts

RESET = "reset"


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "limit",
        "Change a cap at once, without the configuration file: machines and dollars an hour of the "
        "cluster or a cloud, max_nodes of a pool, budgets of the cluster, a cloud, an account or a "
        "user. Running machines are not ended.",
        "slurm-elastic limit cluster dollars_per_hour 20 --for 8h",
        "slurm-elastic limit burst max_nodes 4 --reason 'licences'",
        "slurm-elastic limit account:physics per_day 50",
        "slurm-elastic limit user:alice per_month 40",
        "slurm-elastic limit burst max_nodes reset",
        run=run,
    )
    parser.add_argument(
        "scope", metavar="SCOPE", help="cluster, a cloud, a pool, account:NAME or user:NAME"
    )
    parser.add_argument("key", metavar="KEY", choices=KEYS, help=f"one of {', '.join(KEYS)}")
    parser.add_argument(
        "value", metavar="VALUE", help=f"a number, or {RESET} for the configured value"
    )
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Change the cap, and print the value before. ConfigError (exit 2) for an unknown scope."""
    return run_planned(args, plan)


def plan(args: argparse.Namespace, config: Config, facts: Facts) -> PlannedOrder:
    if args.value == RESET and args.seconds is not None:
        raise ConfigError(
            f"--for is {format_duration(args.seconds)}, expected no --for with {RESET}: the "
            "configured value has no end"
        )
    orphans = _changes_of_gone_place(args, config, facts)
    if args.value == RESET and orphans:
        return _reset(args, orphans, None, None)
    scope, key = scope_named(config, args.scope, payers=True), args.key
    configured_value = configured(config, scope, key)
    now = {(c.scope, c.key): c.value for c in limit_changes(facts.directives, facts.now)}
    before = now.get((scope, key), configured_value)
    if args.value != RESET:
        word = checked(scope, key, _number(args.value))
        # The usage is not in the basis: in a busy cluster it is another one each moment.
        return PlannedOrder(
            ask=DirectAsk(word=word, seconds=args.seconds, reason=args.reason),
            preview=tuple(_preview(config, facts, word, before)),
            basis=(before,),
        )
    changes = [
        d for d in facts.directives if d.word.is_limit and d.word.replaced_key == (scope, key)
    ]
    if not changes:
        raise ConfigError(f"{key} of {scope_in_words(scope)} has its configured value already")
    return _reset(args, changes, before, configured_value)


def _changes_of_gone_place(
    args: argparse.Namespace, config: Config, facts: Facts
) -> Sequence[Directive]:
    """The changes of that limit whose pool, cloud or budget has left the configuration. They stay
    in force, should it come back.
    """
    try:
        scope_named(config, args.scope, payers=True)
    except ConfigError:
        changes = [d for d in facts.directives if d.word.is_limit]
        return [d for d in changes if d.word.replaced_key == (args.scope, args.key)]
    return ()


def _reset(
    args: argparse.Namespace,
    changes: Sequence[Directive],
    before: float | None,
    configured_value: float | None,
) -> PlannedOrder:
    subject, key = changes[0].word.subject, args.key
    line = f"{subject}: {key} {bound(key, before)} -> {bound(key, configured_value)}"
    return PlannedOrder(
        ask=EndAsk(numbers=tuple(d.number for d in changes), reason=args.reason),
        preview=(line,) if args.dry_run else (),
        basis=(before, configured_value),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"VALUE: {text[:24]!r} is neither a number nor {RESET!r}") from None


def _preview(
    config: Config, facts: Facts, word: LimitChange, before: float | None
) -> Iterator[str]:
    yield f"{word.subject}: {word.key} {bound(word.key, before)} -> {bound(word.key, word.value)}"
    # Stopped machines and launches without an answer count, too.
    live = [m for m in facts.machines if not m.has_ended]
    held = paid_reservations(config, facts.now)
    paid = usage((*live, *facts.stopped), facts.open_launches, paid=held)
    if word.key == DOLLARS:
        used = paid.dollars_per_hour.get(word.scope, 0.0)
        yield f"now {money(used)}/h at the worst prices{_over(used, word)}"
        # Otherwise an operator believes that the new cap has opened the cloud.
        yield from (f"It stays closed: {blocked}" for blocked in _closed(config, word.scope))
    elif word.key in ("nodes", "max_nodes"):
        machines = paid.nodes.get(word.scope, 0)
        yield f"now {counted(machines, 'machine')}{_over(machines, word)}"


def _closed(config: Config, scope: str) -> list[CloudBlocked]:
    """The clouds of the scope that the configuration closes, whatever an operator orders."""
    blocked = blocked_clouds(config)
    return [cause for cloud, cause in blocked.items() if scope in ("", scope_of_cloud(cloud))]


def _over(used: float, word: LimitChange) -> str:
    return (
        "; running machines stay, and none starts until some have ended"
        if used > word.value
        else ""
    )
