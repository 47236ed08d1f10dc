"""The common part of the commands with which operators give orders to slurm-elasticd."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import format_duration, parse_duration
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.looking import config_to_look
from slurm_elastic.config import Config
from slurm_elastic.model.protocols import NO_NODE
from slurm_elastic.state.heartbeat import alive, latest
from slurm_elastic.watch.door import rights
from slurm_elastic.watch.door.client import facts_of, order
from slurm_elastic.watch.door.orders import MAX_ORDER_S, MAX_TEXT
from slurm_elastic.watch.door.questions import Order
from slurm_elastic.watch.view import Facts

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_WHO_MAY = "For root, SlurmUser and members of the groups in users.operators."


def duration(text: str) -> float:
    """Parse seconds, more than 0 and at most MAX_ORDER_S, for argparse."""
    seconds = seconds_of(text)
    if not 0 < seconds <= MAX_ORDER_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not from 1s to {format_duration(MAX_ORDER_S)}"
        )
    return seconds


def seconds_of(text: str) -> float:
    """Parse a duration with a unit to seconds, for argparse."""
    if text.strip().isdecimal() and float(text):
        # 10 means minutes to Slurm's users and seconds in our configuration: a pause that somebody
        # meant to last for ten minutes would be over before anybody notices.
        raise argparse.ArgumentTypeError(f"{text!r} has no unit: write {text}m or {text}s")
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def one_line(text: str) -> str:
    """Parse a reason, which is one printable line, for argparse."""
    if len(text) > MAX_TEXT or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a reason is one line of at most {MAX_TEXT} characters")
    return text


def add_command(
    subparsers: Subparsers,
    name: str,
    description: str,
    *example_lines: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Register a command; ``example_lines``: the examples of its help."""
    full_description = f"{description} {_WHO_MAY}"
    parser = subparsers.add_parser(
        name, description=full_description, epilog=examples(*example_lines)
    )
    parser.set_defaults(run=run, seconds=None, at=None)
    return parser


def add_options(parser: argparse.ArgumentParser, *, ends: bool = True) -> None:
    """Add the options of all orders; ``ends``: also --for, after which the order ends."""
    if ends:
        parser.add_argument(
            "--for", dest="seconds", type=duration, metavar="TIME",
            help="how long it holds, such as 2h (default: until you end it)",
        )  # fmt: skip
    add_reason(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="show its effect and cost, and change nothing"
    )


def add_reason(parser: argparse.ArgumentParser) -> None:
    """Add the option for the reason of an order, or of its end."""
    parser.add_argument(
        "--reason", type=one_line, default="", metavar="TEXT", help="show this reason to everybody"
    )


def require_trusted(config: Config) -> None:
    """SlurmElasticError for all users but root and SlurmUser."""
    rights.require_trusted(config, rights.own_person())


class PlannedOrder(Struct, frozen=True, kw_only=True):
    """An order that was not given yet, and its effects.

    ``preview``: the effects, a line each. ``question``: asked at a terminal before the order is
    given; "" for none. ``basis``: the facts that the person relies on. If a later plan has another
    basis, the page shows its preview again.
    """

    ask: Order
    preview: tuple[str, ...]
    question: str = ""
    basis: tuple[object, ...] = ()


Plan: TypeAlias = Callable[[argparse.Namespace, Config, Facts], PlannedOrder]
"""Plans the order of a command. ConfigError if the order is impossible."""


def opened(
    args: argparse.Namespace, read: Callable[[Config, float], Facts] = facts_of
) -> tuple[Config, Facts]:
    """The configuration and the current facts.

    SlurmElasticError if this user may not give orders, or if the ledger or Slurm cannot be read.
    """
    config = config_to_look(args)
    # This is only an early message: the daemon asks the kernel for the caller's uid itself.
    rights.require_operator(config, rights.own_person())
    return config, known_facts(config, read, time.time())


def known_facts(config: Config, read: Callable[[Config, float], Facts], now: float) -> Facts:
    """The facts at ``now``. SlurmElasticError if the ledger or Slurm cannot be read."""
    facts = read(config, now)
    if facts.ledger_error:
        reason = facts.end_only or f"the ledger cannot be read: {facts.ledger_error}"
        raise SlurmElasticError(f"nothing was ordered: {reason}")
    if facts.slurm_error:
        do = f"; do: {service_remedies.slurmctld_state()}" if facts.slurm_error != NO_NODE else ""
        raise SlurmElasticError(
            f"nothing was ordered: Slurm does not answer: {facts.slurm_error}{do}"
        )
    return facts


def run_planned(
    args: argparse.Namespace, plan: Plan, read: Callable[[Config, float], Facts] = facts_of
) -> int:
    """Print the effects of an order, ask its question, and give it. Exit 2 after "no"."""
    config, facts = opened(args, read)
    planned = plan(args, config, facts)
    for line in planned.preview:
        plain().print(line)
    if planned.question and not args.dry_run and not is_confirmed(planned.question):
        print("nothing was ordered", file=sys.stderr)
        return 2
    return give(config, facts, planned.ask, dry=args.dry_run)


def is_confirmed(question: str) -> bool:
    """Whether a person at a terminal answers yes; True without a terminal, for scripts."""
    if not sys.stdin.isatty():
        return True
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def give(config: Config, facts: Facts, ask: Order, *, dry: bool = False) -> int:
    """Give the order, unless ``dry``, and print its effect.

    Warn if slurm-elasticd does not run: an order that waits must not look like one that was
    carried out.
    """
    lines = ("dry run: nothing was changed",) if dry else order(config, ask, facts.now)
    for line in lines:
        plain().print(line)
    if not dry and not is_alive(config, facts):
        print(
            "slurm-elasticd is NOT RUNNING: it does this when it starts; "
            f"do: {service_remedies.start('slurm-elasticd')}",
            file=sys.stderr,
        )
    return 0


def is_alive(config: Config, facts: Facts) -> bool:
    """Whether slurm-elasticd runs, as far as this user may see it."""
    beat = latest(facts.heartbeat, facts.mark.beat if facts.mark else None)
    return alive(beat, facts.process_found, facts.now, config.timings.daemon_timeout)
