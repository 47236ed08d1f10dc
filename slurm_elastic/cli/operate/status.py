"""``slurm-elastic status``: show clouds, pools, nodes, machines with their cost, and services."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import time
from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate.console import Output, plain
from slurm_elastic.cli.operate.looking import config_to_look
from slurm_elastic.cli.operate.status_page import fitted, low
from slurm_elastic.cli.operate.status_screen import SHORT, SORTS, Screen
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.cli.operate.watch_terminal import has_keys
from slurm_elastic.cli.planning.day_table import day_table
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.model.protocols import NO_NODE, Slurm
from slurm_elastic.model.requeued_jobs import with_waits
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.watch.door.client import day_of, facts_of
from slurm_elastic.watch.view import Facts, StatusView, status_view
from slurm_elastic.watch.view.day import DaySpan, DayView, still_waiting
from slurm_elastic.watch.view.narrowing import view_of_part

Part = tuple[str | None, str | None]  # a cloud and a pool; None: all
WHOLE: Part = (None, None)
PERIOD_S = 5.0


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "status",
        description="Show clouds, pools, nodes and machines with price, cost, owner and next "
        "action; cool-downs, held nodes, and whether the daemon runs. If there are more rows than "
        "fit, the rows that need attention come first and the others are counted.",
        epilog=examples(
            "slurm-elastic status --watch", "slurm-elastic status --cloud aws --sort cost --top 20"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_period,
        const=PERIOD_S,
        help=f"show again every SECONDS (default {PERIOD_S:g}) until interrupted; on a terminal "
        "with keys: h shows them",
    )
    parser.add_argument(
        "--day",
        nargs="?",
        type=DaySpan,
        choices=list(DaySpan),
        const=DaySpan.DAY,
        metavar="SPAN",
        help="print the last 24 hours instead, hour by hour: machines, dollars an hour, jobs; or "
        f"another span of {', '.join(DaySpan)}; with --json one point per five minutes "
        "(of 24 hours)",
    )
    parser.add_argument("--once", action="store_true", help="show once and end (the default)")
    parser.add_argument(
        "--clusters",
        action="store_true",
        help="show a table of this cluster and of the configuration's `clusters` instead",
    )
    parser.add_argument("--cloud", metavar="CLOUD", help="show only this cloud")
    parser.add_argument("--pool", metavar="POOL", help="show only this pool")
    parser.add_argument(
        "--sort",
        choices=SORTS,
        help="sort machines by this (default: by node; if some are hidden, machines that need "
        "attention come first)",
    )
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument(
        "--top",
        type=count,
        metavar="N",
        help="show at most N rows in each table (default: as many as fit)",
    )
    rows.add_argument("--all", action="store_true", help="show every row, however many there are")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the status. Exit 1 if neither the ledger nor Slurm could be read."""
    with contextlib.nullcontext() if args.watch else _uncollected():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    config = config_to_look(args)
    # excluded=False saves a query of 22.05: no table shows the nodes that jobs exclude.
    slurm = PromptCli(config.slurm, excluded=False)
    selection: Part = (args.cloud, args.pool)
    if args.clusters:
        return _run_clusters(config, slurm, args)
    if args.day:
        return show_day(config, slurm, args.day, as_json=args.json)
    screen = Screen(top=args.top, whole=args.all, sort=args.sort)
    if args.watch is None or args.once:
        return show(config, slurm, as_json=args.json, selection=selection, screen=screen)
    if has_keys() and not args.json:
        return _watch(config, slurm, args.watch, selection, screen)
    for _ in _ticks(args.watch):
        try:
            show(config, slurm, as_json=args.json, clear=True, selection=selection, screen=screen)
        except SlurmElasticError as error:  # continue: the daemon may answer the next time
            print(f"slurm-elastic: {visible(str(error))}", file=sys.stderr)
    return 0


def _watch(config: Config, slurm: PromptCli, period: float, selection: Part, screen: Screen) -> int:
    """Watch with keys, on a terminal."""
    from slurm_elastic.cli.jobs import explain  # which imports this module
    from slurm_elastic.cli.operate.watch_screen import WatchSources, watch

    def explanation(subject: str, width: int) -> str:
        console = Output(width=width, markup=False, emoji=False, highlight=False)
        with console.capture() as captured:
            explain.show(config, PromptCli(config.slurm), subject, console=console)
        return captured.get().rstrip("\n")

    sources = WatchSources(
        status=lambda: view_of_part(config, gather(config, slurm, time.time()), *selection),
        explanation=explanation,
    )
    return watch(sources, config.cluster.name, period, screen)


def _run_clusters(config: Config, slurm: Slurm, args: argparse.Namespace) -> int:
    """Print the table of clusters, again and again with --watch. Returns 1 if a cluster
    is missing.
    """
    from slurm_elastic.cli.operate.clusters_table import clusters_table, gather_clusters

    for _ in _ticks(args.watch) if args.watch and not args.once else (None,):
        own = status_view(config, gather(config, slurm, time.time()))
        view = gather_clusters(config, own)
        console = plain()
        if args.json:
            write_json(view)
            continue
        if args.watch and console.is_terminal:
            console.clear()
        console.print(clusters_table(view))
    return 1 if view.missing else 0


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch Python's garbage collector off: all of tens of thousands of values stay in use."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def show(
    config: Config,
    slurm: Slurm,
    *,
    as_json: bool = False,
    clear: bool = False,
    console: Console | None = None,
    selection: Part = WHOLE,
    screen: Screen = SHORT,
) -> int:
    """Read everything and print the selected part once. Returns the exit code."""
    view = view_of_part(config, gather(config, slurm, time.time()), *selection)
    if as_json:
        write_json(view)
    else:
        console = console or plain()
        if clear:
            _page(view, console, screen)
        else:
            if console.is_terminal:  # the first lines must not scroll away
                screen = low(view, console, screen, console.height - 1)
            render(view, console, screen)
    return 1 if view.ledger_error and view.slurm_error else 0


def show_day(config: Config, slurm: Slurm, span: DaySpan = DaySpan.DAY, *, as_json: bool) -> int:
    """Print the last hours or days. SlurmElasticError if they cannot be read."""
    day = gather_day(config, slurm, time.time(), span)
    if as_json:
        write_json(day)
    else:
        plain().print(day_table(day, span))
    return 0


def gather_day(config: Config, slurm: Slurm, now: float, span: DaySpan = DaySpan.DAY) -> DayView:
    """The history from the ledger, and the waiting jobs from Slurm (if it answers)."""
    day = day_of(config, now, span)
    with contextlib.suppress(SlurmError):
        jobs = slurm.jobs()
        if any(job.restarts and "PENDING" in job.states for job in jobs):
            jobs = with_waits(jobs, facts_of(config, now).requeued)
        return replace(day, waiting=still_waiting(jobs, day.at, span))
    return day


def gather(config: Config, slurm: Slurm, now: float) -> Facts:
    """The records, and the nodes and jobs of Slurm.

    SlurmElasticError if this user may not read the records and the daemon does not answer.
    """
    facts = facts_of(config, now)
    try:
        nodes, jobs = slurm.nodes(), slurm.jobs()
    except SlurmError as error:
        return replace(facts, slurm_error=str(error))
    # An empty answer is an error of slurmctld: every cluster has nodes.
    if not nodes and "nodes" not in facts.private:
        return replace(facts, slurm_error=NO_NODE)
    return with_kept(replace(facts, nodes=nodes, jobs=jobs), slurm)


def kept_of(slurm: Slurm, now: float) -> Facts:
    """Read Slurm's nodes, reservations and partitions. Parts that Slurm does not answer for stay
    empty.
    """
    facts = Facts(now=now)
    with contextlib.suppress(SlurmError):
        facts = replace(facts, nodes=slurm.nodes())
    return with_kept(facts, slurm)


def with_kept(facts: Facts, slurm: Slurm) -> Facts:
    """Add Slurm's reservations and partitions, if Slurm answers."""
    with contextlib.suppress(SlurmError):
        return replace(
            facts, reservations=slurm.reservations(), partition_states=slurm.partition_states(),
            suspend_exclusions=slurm.suspend_exclusions(), max_times=slurm.max_times(),
        )  # fmt: skip
    return facts


def _page(view: StatusView, console: Console, screen: Screen) -> None:
    """Draw on a cleared screen, in as many rows as fit.

    If the output is no terminal, append a page instead.
    """
    if not console.is_terminal:
        render(view, console, screen)
        console.print()
        return
    lines, _ = fitted(view, console, screen, max(console.height - 1, 2))  # the cursor's line
    console.clear()
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False)


def _ticks(period: float) -> Iterator[None]:
    """Yield at once, and then ``period`` seconds after the caller was done with each round."""
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
