"""``slurm-elastic cost``: the charge of machines, split over their jobs to the micro-dollar."""

from __future__ import annotations

import argparse
import contextlib
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.units import brief, counted, parse_duration, parse_moment
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_csv, write_json
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.streams import in_a_line
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.features.money.books import Costs, charges, idle_reservations, read_books
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.money.cost_sums import CostLine
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies.money.account_budgets import NONE
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger.retention import MACHINES_KEPT
from slurm_elastic.watch.door.client import costs_of
from slurm_elastic.watch.door.questions import CostAsk
from slurm_elastic.watch.door.records import LAST, may_read, opened
from slurm_elastic.watch.view import focus
from slurm_elastic.watch.view.unused import normal_unused, unused_shares

MAX_LINES = 50  # of a table; the other formats have all lines
MAX_NAME = 24  # characters of a job's name in a table


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "cost",
        description="Show what machines cost and who used them. An hour of a machine is split "
        "by the largest share (CPUs, memory, GPUs) of the jobs on it; the remainder is unused, "
        "with its reason. The command checks that all parts sum to the charge. Users see their "
        "own jobs.",
        epilog=examples(
            "slurm-elastic cost --by user --since 7d",
            "slurm-elastic cost --by job --since 1h --top 10",
            "slurm-elastic cost --since 2026-10-01 --until 2026-11-01 --format csv",
        ),
    )
    parser.add_argument(
        "--by", choices=[str(key) for key in By], metavar="KEY",
        help=f"sum by {', '.join(By)} (default: account; a table is by user if no job has an "
        "account)",
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
        "--top", type=count, default=MAX_LINES, metavar="N",
        help=f"lines of the table, the most expensive ones (default: {MAX_LINES})",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("table", "csv", "json", "focus"), default="table",
        help="print a table, CSV, one JSON document, or a row for each part of each machine's "
        "hour in FOCUS 1.2 (default: table)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="same as --format json"
    )
    parser.set_defaults(run=run)


def point(text: str) -> float:
    """Parse a date, or a duration before now, to Unix time (s), for argparse.

    A date without a zone is in UTC.
    """
    try:
        moment = parse_moment(text)
    except ValueError:
        try:
            moment = time.time() - parse_duration(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text[:24]!r} is neither a date such as 2026-11-01 nor a duration such as 7d"
            ) from None
    if not 0 <= moment <= LAST:
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is not in the years 1970 to 9999")
    return moment


def run(args: argparse.Namespace) -> int:
    """Print the costs. Exit 1 if the parts do not sum to the charge. ConfigError if the time ends
    before it begins.
    """
    config, now = load(Path(args.config)), time.time()
    since = month(now) if args.since is None else args.since
    if args.until is not None and args.until <= since:
        raise ConfigError("--until must be later than --since")
    if since > now:
        raise ConfigError("--since is in the future")
    ask = CostAsk(
        by=By(args.by or By.ACCOUNT),
        since=since,
        until=args.until,
        share_unused=args.share_unused != "no",
    )
    if args.format == "focus":
        return _print_focus(config, ask, now)
    costs = costs_of(config, ask, now)
    _report_missing(costs.since, ask, is_own=costs.own)
    if args.by is None and args.format == "table" and not _has_accounts(costs):
        costs = costs_of(config, replace(ask, by=By.USER), now)
    if args.format == "json":
        write_json(document(costs, config))
    elif args.format == "csv":
        _print_csv(costs)
    else:
        names = job_names(PromptCli(config.slurm)) if costs.by is By.JOB else {}
        render(costs, plain(), config, names, args.top)
    for problem in costs.problems:
        print(f"slurm-elastic: the sums are wrong: {problem}", file=sys.stderr)
    return 1 if costs.problems else 0


def _report_missing(since: float, ask: CostAsk, *, is_own: bool) -> None:
    """Report on stderr that the costs begin later than asked for, at ``since``. SlurmElasticError
    if nothing of the span is left: "nothing was paid" would be wrong.
    """
    if since <= ask.since:
        return
    reason = f"costs are kept for {round(MACHINES_KEPT / 86400)} days"
    if is_own:
        reason = "you see your own jobs' costs of the last three months"
    if ask.until is not None and ask.until <= since:
        raise SlurmElasticError(f"--until is too long ago: {reason}")
    print(f"slurm-elastic: the costs begin at {_utc(since)} (UTC): {reason}", file=sys.stderr)


def document(costs: Costs, config: Config | None = None) -> dict[str, object]:
    """The document of ``cost --format json``, version 1: money in whole micro-dollars.

    ``config``: also add how much unused time is normal, and the advice to lower the largest part.
    """
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
    } | (_unused_advice(costs, config) if config is not None else {})


def _unused_advice(costs: Costs, config: Config) -> dict[str, object]:
    """The fields about unused time; none if ``costs`` has no lines of unused parts."""
    shares = unused_shares(config, costs)
    if not shares:
        return {}
    return {
        "normal_unused_micro_dollars": normal_unused(config, costs).micro_dollars,
        "never_registered_micro_dollars": sum(costs.never_registered.values()),
        "unused_advice": f"{shares[0].reason}: {shares[0].advice}",
    }


def _has_accounts(costs: Costs) -> bool:
    """Whether a job has an account, or no job was charged."""
    keys = {line.key for line in costs.lines if not line.unused}
    return not keys or keys != {NONE}


def job_names(slurm: Slurm) -> dict[str, str]:
    """The names of the jobs that slurmctld remembers, by label; {} if Slurm does not answer."""
    with contextlib.suppress(SlurmError):
        return {job.label: job.name for job in slurm.jobs(ended=True) if job.name}
    return {}


def render(
    costs: Costs,
    console: Console,
    config: Config | None = None,
    names: Mapping[str, str] = {},
    top: int = MAX_LINES,
) -> None:
    """Print the table with at most ``top`` lines, the sum, how much unused time is normal by
    ``config``, and the result of the check. ``names``: of jobs, by label.
    """
    console.print(f"Cost by {costs.by} from {_utc(costs.since)} to {_utc(costs.until)} (UTC)")
    if costs.own:
        console.print("You see your own jobs' part of the machines that they used.")
    if not costs.lines:
        console.print("nothing was paid in that time")
        return
    # Unused parts always have lines: without them the lines would not show where the money went.
    used = [line for line in costs.lines if not line.unused]
    # Days are in order of time, so the most expensive lines need not be the first ones.
    largest = sorted(used, key=lambda line: -line.micro)[:top]
    shown = [line for line in costs.lines if line.unused or line in largest]
    digits = digits_of(costs.micro)
    columns = _columns(costs, shown, names, digits)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, is_text, _ in columns:
        if is_text:
            table.add_column(title, overflow="fold")
        else:
            table.add_column(title, justify="right", no_wrap=True)
    for cells in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*cells)
    console.print(table)
    if hidden := [line for line in used if line not in largest]:
        cost = dollars(sum(line.micro for line in hidden), digits)
        console.print(f"and {len(hidden)} more, {cost} together: --format csv has all")
    hours = f"{costs.hours:,.{_hour_digits(costs)}f} machine-hours"
    whole = f"{counted(costs.machines, 'machine')} in {hours}"
    console.print(f"\n{dollars(costs.micro, digits)} in all, of {whole}")
    if (unused := _unused(costs)) and not costs.shared:  # shared: other jobs pay for unused time
        share = f"{100 * unused / costs.micro:.1f} %"
        console.print(f"{dollars(unused, digits)} of it ({share}) is for unused time")
        if config is not None and any(line.unused for line in costs.lines):
            _print_normal(config, costs, console, digits)
    if not costs.problems:
        pieces = f"{costs.pieces} pieces (at most an hour each)"
        console.print(f"checked: parts sum to the charge in each of {pieces}")


def _columns(
    costs: Costs, shown: Sequence[CostLine], names: Mapping[str, str], digits: int
) -> list[tuple[str, bool, list[str]]]:
    """The columns of the table. Each has a title, whether its cells are texts, and its cells."""
    columns = [
        (str(costs.by).upper(), True, [
            in_a_line(f"(unused: {line.key})" if line.unused else line.key) for line in shown
        ]),
    ]  # fmt: skip
    if costs.by is By.JOB:
        columns.append(("USER", True, [in_a_line(line.user) for line in shown]))
        job_names_shown = [
            in_a_line("" if line.unused else names.get(line.key, ""))[:MAX_NAME] for line in shown
        ]
        if any(job_names_shown):
            columns.append(("NAME", True, job_names_shown))
    hour_digits = _hour_digits(costs)
    columns += [
        ("DOLLARS", False, [dollars(line.micro, digits) for line in shown]),
        ("HOURS", False, [f"{line.hours:,.{hour_digits}f}" for line in shown]),
        ("$/H", False, [f"{_rate(line):.4f}" for line in shown]),
        ("SHARE", False, [
            f"{100 * line.micro / costs.micro:.1f} %" if costs.micro else "" for line in shown
        ]),
    ]  # fmt: skip
    if _has_unused(costs):
        columns.append(("UNUSED", False, [dollars(line.micro_unused, digits) for line in shown]))
    return columns


def _print_normal(config: Config, costs: Costs, console: Console, digits: int) -> None:
    """Print how much unused time is normal here, and the key that lowers the largest part."""
    normal = normal_unused(config, costs)
    share = f"{100 * normal.micro_dollars / costs.micro:.1f} %"
    wait = f", waits {brief(normal.wait_s)} for another job" if normal.wait_s else ""
    text = (
        f"With these settings {dollars(normal.micro_dollars, digits)} ({share}) is normal: each "
        f"machine boots once{wait}, and ends."
    )
    sentences = [text]
    if failed := sum(costs.never_registered.values()):
        sentences.append(f"{dollars(failed, digits)} was paid for machines that never registered.")
    largest = unused_shares(config, costs)[0]
    for sentence in (*sentences, f"{largest.reason}: {largest.advice}"):
        console.print(textwrap.fill(sentence, console.width), soft_wrap=True)


def digits_of(micro: int) -> int:
    """The digits after the point for the amounts of a table with this sum: so many that the sum
    shows at least three figures, and at least two digits for cents.
    """
    return 2 if micro >= 10_000_000 or not micro else 4 if micro >= 100_000 else 6


def dollars(micro: int, digits: int = 2) -> str:
    """An amount as text, such as ``$1,234.57``."""
    return f"{'-' if micro < 0 else ''}${abs(micro) / 1e6:,.{digits}f}"


def _rate(line: CostLine) -> float:
    """The mean dollars per machine-hour of a line."""
    return line.micro / 1e6 / line.hours if line.hours else 0.0


def _hour_digits(costs: Costs) -> int:
    return 2 if costs.hours >= 1 else 4


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


def _print_focus(config: Config, ask: CostAsk, now: float) -> int:
    if not may_read(config):
        raise SlurmElasticError("--format focus shows all jobs: it is for root and SlurmUser")
    with opened(config) as ledger:
        books = read_books(config, ledger, ask.since, ask.until, now)
    _report_missing(books.since, ask, is_own=False)
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


def _plain(micro: int) -> str:
    return f"{micro // 1_000_000}.{micro % 1_000_000:06d}"
