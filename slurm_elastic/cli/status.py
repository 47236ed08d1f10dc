"""``slurm-elastic status``: clouds, pools, nodes, instances with cost and owner, and the daemon."""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from slurm_elastic.cli.ckpt_read import read_checkpoints
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.status_tables import render
from slurm_elastic.cli.streams import write_json
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.controller.budget import spending, spending_of_accounts
from slurm_elastic.errors import SlurmElasticError, SlurmError
from slurm_elastic.heartbeat import DAEMON, end_only, latest, process_exists, read_mark
from slurm_elastic.ledger import Ledger
from slurm_elastic.protocols import NO_NODE, Slurm
from slurm_elastic.slurm.prompt import PromptCli
from slurm_elastic.spool import Spool
from slurm_elastic.view import DAY, Facts, StatusView, status_view

PERIOD = 5.0


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "status",
        help="what runs, what it costs, what happens next",
        description="Show clouds, pools, nodes and instances with price, cost, owner and next "
        "action; cool-downs, holds, and whether the daemon lives.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_period,
        const=PERIOD,
        help=f"show again every SECONDS (default {PERIOD:g}) until interrupted",
    )
    parser.add_argument("--once", action="store_true", help="show once and end (the default)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the status of the configured cluster; 1 when neither ledger nor Slurm could be read."""
    config = load(Path(args.config))
    slurm = PromptCli(config.slurm)
    if args.watch is None or args.once:
        return show(config, slurm, as_json=args.json)
    for _ in _ticks(args.watch):
        show(config, slurm, as_json=args.json, clear=True)
    return 0


def show(
    config: Config,
    slurm: Slurm,
    *,
    as_json: bool = False,
    clear: bool = False,
    console: Console | None = None,
) -> int:
    """Read everything and print it once."""
    view = status_view(config, gather(config, slurm, time.time()))
    if as_json:
        write_json(view)
    else:
        console = console or plain()
        if clear:
            _page(view, console)
        else:
            render(view, console)
    return 1 if view.ledger_error and view.slurm_error else 0


def gather(config: Config, slurm: Slurm, now: float) -> Facts:
    """Read the ledger, Slurm and the spool; what cannot be read is said in the facts."""
    mark = read_mark(config.state)
    why = end_only(config.state, mark, now, config.timings.heartbeat_stale)
    facts = replace(_ledger_facts(config, now), mark=mark, end_only=why)
    if (beat := latest(facts.heartbeat, mark.beat if mark else None)) is not None:
        facts = replace(facts, process_found=process_exists(beat[1]))
    with contextlib.suppress(
        OSError, sqlite3.Error, SlurmElasticError
    ):  # what ails it, its own log says
        facts = replace(facts, checkpoints=read_checkpoints(config, now))
    with contextlib.suppress(OSError):
        if (config.state / "requests").is_dir():
            facts = replace(facts, pending=Spool(config.state).count())
    try:
        nodes, jobs = slurm.nodes(), slurm.jobs()
    except SlurmError as error:
        return replace(facts, slurm_error=str(error))
    if not nodes:  # no cluster has none
        return replace(facts, slurm_error=NO_NODE)
    return replace(facts, nodes=nodes, jobs=jobs)


def _ledger_facts(config: Config, now: float) -> Facts:
    path = config.state / "ledger.db"
    try:
        ledger = Ledger(path, read_only=True)
        with contextlib.closing(ledger):
            return Facts(
                now=now,
                machines=ledger.machines(ended_since=now - DAY),
                open_launches=ledger.open_launches(),
                cool_downs=ledger.cool_downs(now),
                holds=ledger.holds(),
                spent=spending(config, ledger, now),
                accounts=spending_of_accounts(config, ledger, now),
                breakers=ledger.breakers(),
                health=ledger.health(),
                heartbeat=ledger.heartbeat(DAEMON),
            )
    except SlurmElasticError as error:
        return Facts(now=now, ledger_error=str(error))
    except OSError as error:
        return Facts(now=now, ledger_error=f"{path}: {error.strerror or error}")
    except sqlite3.Error as error:
        return Facts(now=now, ledger_error=f"{path}: {error}")


def _page(view: StatusView, console: Console) -> None:
    """Draw on a cleared screen; where the output is no terminal, below the last."""
    if console.is_terminal:
        with console.capture() as captured:
            render(view, console)
        console.clear()
        console.out(captured.get(), end="", highlight=False)
    else:
        render(view, console)
        console.print()


def _ticks(period: float) -> Iterator[None]:
    """Now, and then every ``period`` seconds after the last was dealt with."""
    while True:
        yield
        time.sleep(period)


def _period(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return seconds
