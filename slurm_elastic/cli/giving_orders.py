"""The common part of the commands with which operators give orders to slurm-elasticd."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import format_duration, parse_duration
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.model.directive import Word
from slurm_elastic.model.finding import SLURMCTLD
from slurm_elastic.model.protocols import NO_NODE
from slurm_elastic.state.heartbeat import alive, latest
from slurm_elastic.watch.door.client import facts_of, order
from slurm_elastic.watch.door.orders import LONGEST, MAX_TEXT, may_order, no_right
from slurm_elastic.watch.door.questions import DirectAsk, Order, group_ids, trusted
from slurm_elastic.watch.view import Facts

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_WHO_MAY = "For root, SlurmUser and members of the groups in users.operators."


def duration(text: str) -> float:
    """Seconds, more than 0 and at most LONGEST, for argparse."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1s to {format_duration(LONGEST)}")
    return seconds


def one_line(text: str) -> str:
    """A reason: one printable line, for argparse."""
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
    parser.add_argument(
        "--reason", type=one_line, default="", metavar="TEXT", help="show this reason to everybody"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show its effect and cost, and change nothing"
    )


def require_operator(config: Config) -> None:
    """SlurmElasticError if this user may not give orders.

    This is only an early message: the daemon asks the kernel for the caller's uid itself.
    """
    groups = {os.getegid(), *os.getgroups()}
    operators = partial(group_ids, "operators", config.users.operators)
    if not may_order(os.geteuid(), groups, trusted(config), operators):
        raise SlurmElasticError(no_right(config))


def require_trusted(config: Config) -> None:
    """SlurmElasticError for all users but root and SlurmUser."""
    if os.geteuid() not in trusted(config):
        raise SlurmElasticError(f"this is for root and {config.slurm.user}")


def opened(
    args: argparse.Namespace, read: Callable[[Config, float], Facts] = facts_of
) -> tuple[Config, Facts]:
    """The configuration and the current facts.

    SlurmElasticError if this user may not give orders, or if the ledger or Slurm cannot be read.
    """
    config = load(Path(args.config))
    require_operator(config)
    facts = read(config, time.time())
    if facts.ledger_error:
        reason = facts.end_only or f"the ledger cannot be read: {facts.ledger_error}"
        raise SlurmElasticError(f"nothing was ordered: {reason}")
    if facts.slurm_error:
        do = f"; do: {SLURMCTLD}" if facts.slurm_error != NO_NODE else ""
        raise SlurmElasticError(
            f"nothing was ordered: Slurm does not answer: {facts.slurm_error}{do}"
        )
    return config, facts


def direct(
    args: argparse.Namespace,
    config: Config,
    facts: Facts,
    word: Word,
    preview: Iterable[str],
    question: str = "",
) -> int:
    """Print ``preview``, ask ``question`` if there is one, and give the order. Exit 2 on "no"."""
    for line in preview:
        plain().print(line)
    if question and not args.dry_run and not is_confirmed(question):
        print("nothing was ordered", file=sys.stderr)
        return 2
    ask = DirectAsk(word=word, starts=args.at, seconds=args.seconds, reason=args.reason)
    return give(config, facts, ask, dry=args.dry_run)


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
            "do: systemctl start slurm-elasticd",
            file=sys.stderr,
        )
    return 0


def is_alive(config: Config, facts: Facts) -> bool:
    """Whether slurm-elasticd runs, as far as this user may see it."""
    beat = latest(facts.heartbeat, facts.mark.beat if facts.mark else None)
    return alive(beat, facts.process_found, facts.now, config.timings.daemon_timeout)
