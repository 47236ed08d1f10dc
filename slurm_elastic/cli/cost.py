"""``slurm-elastic cost``: the charge of machines, split over their jobs to the micro-dollar."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import parse_duration
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_csv, write_json
from slurm_elastic.cli.streams import in_a_line
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.features.books import CostLine, Costs, charges, idle_reservations, read_books
from slurm_elastic.features.cost_keys import By
from slurm_elastic.watch.door.client import costs_of
from slurm_elastic.watch.door.questions import CostAsk
from slurm_elastic.watch.door.records import may_read, opened
from slurm_elastic.watch.view import focus

MAX_LINES = 50  # of a table; the other formats have all lines


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "cost",
        description="Show what machines cost and who used them. An hour of a machine is split "
        "by the largest share (CPUs, memory, GPUs) of the jobs on it; the remainder is unused, "
        "with its reason. The command checks that all parts sum to the charge. Users see their "
        "own jobs.",
        epilog=examples(
            "slurm-elastic cost --by user --since 7d",
            "slurm-elastic cost --by user --since 1h",
            "slurm-elastic cost --since 2026-10-01 --until 2026-11-01 --format csv",
        ),
    )
    parser.add_argument(
        "--by", choices=[str(key) for key in By], default=str(By.ACCOUNT), metavar="KEY",
        help=f"sum by one of {', '.join(By)} (default: account)",
    )  # fmt: skip
    parser.add_argument(
        "--since", type=point, metavar="TIME",
        help="from this UTC time on, such as 2026-11-01 or 2026-11-01T12:00, or since this long "
        "ago, such as 7d (default: the first of this month)",
    )  # fmt: skip
    parser.add_argument(
        "--until", type=point, metavar="TIME", help="up to this time (default: now)"
    )
    parser.add_argument(
        "--share-unused", choices=("no", "proportional"), default="no",
        help="charge the unused time of a pool's machines to the jobs that used the pool, in "
        "proportion (default: no, unused time has its own lines)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("table", "csv", "json", "focus"), default="table",
        help="print a table, CSV, one JSON document, or a row for each part of each machine's "
        "hour in FOCUS 1.2 (default: table)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def point(text: str) -> float:
    """Unix time (s) of a date, or of a duration before now, for argparse. Without zone: UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time() - parse_duration(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text[:24]!r} is neither a date such as 2026-11-01 nor a duration such as 7d"
            ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def run(args: argparse.Namespace) -> int:
    """Print the costs. Exit 1 if the parts do not sum to the charge."""
    config, now = load(Path(args.config)), time.time()
    since = month(now) if args.since is None else args.since
    if args.until is not None and args.until <= since:
        raise SlurmElasticError("--until must be later than --since")
    if args.format == "focus":
        return _print_focus(config, since, args.until, now)
    ask = CostAsk(
        by=By(args.by), since=since, until=args.until, share_unused=args.share_unused != "no"
    )  # fmt: skip
    costs = costs_of(config, ask, now)
    if args.format == "json":
        write_json(document(costs))
    elif args.format == "csv":
        _print_csv(costs)
    else:
        render(costs, plain())
    for problem in costs.problems:
        print(f"slurm-elastic: the sums are wrong: {problem}", file=sys.stderr)
    return 1 if costs.problems else 0


def document(costs: Costs) -> dict[str, object]:
    """The document of ``cost --format json``, version 1: money in whole micro-dollars."""
    lines = [
        {
            "key": line.key,
            "micro_dollars": line.micro,
            "unused": line.unused,
            "machine_hours": round(line.hours, 6),
            "dollars_per_hour": round(_rate(line), 6),
        }
        | ({"unused_micro_dollars": line.micro_unused} if line.micro_unused else {})
        for line in costs.lines
    ]
    return {
        "version": 1,
        "by": str(costs.by),
        "since": costs.since,
        "until": costs.until,
        "own_jobs_only": costs.own,
        "unused_is_shared": costs.shared,
        "micro_dollars": costs.micro,
        "on_demand_micro_dollars": costs.micro_on_demand,
        "machines": costs.machines,
        "machine_hours": round(costs.hours, 6),
        "unused_micro_dollars": _unused(costs),
        "pieces_checked": costs.pieces,
        "problems": list(costs.problems),
        "lines": lines,
    }


def render(costs: Costs, console: Console) -> None:
    """Print the table, the sum and the result of the check."""
    console.print(f"Cost by {costs.by} from {_utc(costs.since)} to {_utc(costs.until)} (UTC)")
    if costs.own:
        console.print("You see your own jobs' part of the machines that they used.")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(str(costs.by).upper(), overflow="fold")
    for name in ("DOLLARS", "HOURS", "$/H", "SHARE", *(("UNUSED",) if _has_unused(costs) else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for line in costs.lines[:MAX_LINES]:
        table.add_row(*_cells(line, costs))
    if not costs.lines:
        console.print("nothing was paid in that time")
        return
    console.print(table)
    if len(costs.lines) > MAX_LINES:
        hidden_cost = sum(line.micro for line in costs.lines[MAX_LINES:])
        hidden = len(costs.lines) - MAX_LINES
        console.print(f"and {hidden} more, {_dollars(hidden_cost)} together: --format csv has all")
    whole = f"{costs.machines} machines in {costs.hours:.2f} machine-hours"
    console.print(f"\n{_dollars(costs.micro)} in all, of {whole}")
    if (unused := _unused(costs)) and not costs.shared:  # shared: other jobs pay for unused time
        share = f"{100 * unused / costs.micro:.1f} %"
        console.print(f"{_dollars(unused)} of it ({share}) is for unused time")
    if not costs.problems:
        pieces = f"{costs.pieces} pieces (at most an hour each)"
        console.print(f"checked: parts sum to the charge in each of {pieces}")


def _cells(line: CostLine, costs: Costs) -> list[str]:
    name = in_a_line(f"(unused: {line.key})" if line.unused else line.key)
    share = f"{100 * line.micro / costs.micro:.1f} %" if costs.micro else ""
    cells = [name, _dollars(line.micro), f"{line.hours:.2f}", f"{_rate(line):.4f}", share]
    return cells + ([_dollars(line.micro_unused)] if _has_unused(costs) else [])


def _rate(line: CostLine) -> float:
    """Mean dollars per machine-hour."""
    return line.micro / 1e6 / line.hours if line.hours else 0.0


def _has_unused(costs: Costs) -> bool:
    return any(line.micro_unused for line in costs.lines)


def _unused(costs: Costs) -> int:
    """Micro-dollars of unused time, over all lines."""
    return sum(line.micro if line.unused else line.micro_unused for line in costs.lines)


def _print_csv(costs: Costs) -> None:
    columns = ["dollars", "unused", "unused_dollars", "machine_hours", "dollars_per_hour"]
    rows = [[str(costs.by), *columns]]
    for line in costs.lines:
        unused = _plain(line.micro if line.unused else line.micro_unused)
        rate = f"{_rate(line):.6f}"
        hours = f"{line.hours:.6f}"
        rows.append([line.key, _plain(line.micro), str(int(line.unused)), unused, hours, rate])
    write_csv(rows)


def _print_focus(config: Config, since: float, until: float | None, now: float) -> int:
    if not may_read(config):
        raise SlurmElasticError("--format focus shows all jobs: it is for root and SlurmUser")
    with opened(config) as ledger:
        books = read_books(config, ledger, since, until, now)
    idle = idle_reservations(books)
    rows = focus.rows(charges(books), books.runs, config.cluster.name, idle)
    write_csv(chain([focus.COLUMNS], ([row[name] for name in focus.COLUMNS] for row in rows)))
    return 0


def month(now: float) -> float:
    """The start of the month of ``now`` (Unix time; the month of UTC)."""
    today = datetime.fromtimestamp(now, UTC)
    return today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def _utc(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}"


def _dollars(micro: int) -> str:
    return f"${micro // 1_000_000:,}.{micro % 1_000_000:06d}"


def _plain(micro: int) -> str:
    return f"{micro // 1_000_000}.{micro % 1_000_000:06d}"
