"""``slurm-elastic report``: a month's costs, savings and waits, for the people who pay."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.month import Month, month_at, parse_month
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate import history
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.reports import month_jobs
from slurm_elastic.cli.reports.month_tables import render
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.directive import limit_changes
from slurm_elastic.state.ledger.retention import MACHINES_KEPT
from slurm_elastic.watch.door.client import costs_by_key, costs_of, facts_of
from slurm_elastic.watch.door.questions import CostAsk
from slurm_elastic.watch.view.month_report import (
    KEYS,
    MAX_WEEKS,
    WEEK_S,
    MonthReport,
    month_report,
)

SIMULATION_S = 60.0
"""Time limit of the simulation on the command line."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "report",
        description="Report a month: what accounts and users spent, what was saved against "
        "on-demand prices and against an always-on cluster, which paid time no job used and which "
        "key lowers it, and what the next month may cost. A simulation of the month's own jobs "
        "shows the waiting that clouds avoided, and the mean wait that each budget buys. The "
        "amounts equal `cost`. Users see their own jobs' part.",
        epilog=examples(
            "slurm-elastic report",
            "slurm-elastic report --month 2026-10 --pdf october.pdf",
            "slurm-elastic report --month 2026-10 --mail --to me@example.org",
        ),
    )
    parser.add_argument(
        "--month", nargs="?", type=_month, metavar="YYYY-MM",
        help="report this month of UTC (default: the last whole month)",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", type=Path, metavar="FILE", help="write one HTML file instead")
    form.add_argument(
        "--pdf", type=Path, metavar="FILE",
        help="write a PDF instead, by the extra `report` or by Chromium",
    )  # fmt: skip
    form.add_argument("--json", action="store_true", help="print one JSON document instead")
    form.add_argument(
        "--mail", action="store_true",
        help="send the mails about this month to the owners of accounts now (notify.accounts)",
    )  # fmt: skip
    parser.add_argument(
        "--to", type=_address, metavar="ADDRESS", help="with --mail: send them to ADDRESS only"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="with --mail: print the mails, and send nothing"
    )
    month_jobs.add_arguments(parser)
    parser.add_argument(
        "--no-simulation", action="store_true",
        help="leave the simulation out, which takes up to a minute",
    )  # fmt: skip
    parser.set_defaults(run=run)


def _address(text: str) -> str:
    """An address that the mail program cannot take for an option or for several, for argparse."""
    if text.startswith("-") or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected an address or a user's name")
    return text


def _month(text: str) -> Month:
    """Parse ``2026-10``, for argparse."""
    try:
        return parse_month(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print or write the report. Exit 1 if sums do not add up."""
    config, now = load(Path(args.config)), time.time()
    month = args.month or month_at(now).previous
    if args.mail:
        return _mail(config, month, now, args)
    if args.to or args.dry_run:
        raise ConfigError("--to and --dry-run: found them without --mail, expected them with it")
    report = gather(config, month, now)
    if args.no_simulation:
        report = replace(report, no_replay="it was left out")
    elif not report.own_jobs_only:
        with history.spinner("simulating the month's jobs"):
            report = simulated(
                config, report, now, SIMULATION_S,
                workload=args.workload, sacct_file=args.sacct, static=args.static,
            )  # fmt: skip
    _deliver(report, args)
    for problem in report.problems:
        print(f"slurm-elastic: the sums are wrong: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


def _mail(config: Config, month: Month, now: float, args: argparse.Namespace) -> int:
    from slurm_elastic.cli.reports import month_mail

    month_mail.require_rights(config)
    _require_costs(month, now)
    return month_mail.mail_month(config, month, now, to=args.to or "", dry=args.dry_run)


def _deliver(report: MonthReport, args: argparse.Namespace) -> None:
    """Print the report, or write the file that the user named."""
    if args.json:
        write_json(report)
    elif args.html or args.pdf:
        from slurm_elastic.cli.reports.month_page import page

        html = page(report)
        if args.html:
            writing.as_told(args.html, html)
        else:
            from slurm_elastic.cli.reports.month_pdf import pdf_of

            writing.as_told(args.pdf, pdf_of(html))
        # On stderr, because the file may be /dev/stdout.
        print(f"wrote {args.html or args.pdf}", file=sys.stderr)
    else:
        render(report, plain(), "" if args.month else _running_month(report))


def _running_month(report: MonthReport) -> str:
    """A line with the command that reports the running month. "" if the reported month
    has costs.
    """
    if report.micro_dollars:
        return ""
    running = parse_month(report.month).next
    return f"This month so far: slurm-elastic report --month {running}"


def gather(config: Config, month: Month, now: float) -> MonthReport:
    """The report without a simulation. SlurmElasticError if its costs cannot be read."""
    _require_costs(month, now)
    costs = costs_by_key(config, KEYS, month.begin, month.end, now)
    if costs[By.ACCOUNT].since > month.begin:  # the read door shows users only their last months
        raise SlurmElasticError(
            f"{month.name} is too long ago: you see your own jobs' costs of the last three months"
        )
    # The day of `until` is not whole, and the weeks are counted back from the midnight before it.
    until = min(month.end, now)
    since = max(until - MAX_WEEKS * WEEK_S - 86400, 0.0)
    days_ask = CostAsk(by=By.DAY, since=since // 86400 * 86400, until=until)
    days = costs_of(config, days_ask, now)
    if not costs[By.ACCOUNT].own:  # own jobs are compared with no budget
        changes = limit_changes(facts_of(config, now).directives, now)
        config = with_limits(config, changes)
    return month_report(config, month, costs, days, now)


def _require_costs(month: Month, now: float) -> None:
    """SlurmElasticError if the ledger does not have the whole month. ConfigError if it is a month
    to come.
    """
    if month.begin > now:
        raise ConfigError(f"--month: {month.name} has not begun")
    if month.begin < now - MACHINES_KEPT:
        days = round(MACHINES_KEPT / 86400)
        raise SlurmElasticError(
            f"the costs of {month.name} are no longer complete: they are kept for {days} days"
        )


def simulated(
    config: Config,
    report: MonthReport,
    now: float,
    seconds: float,
    *,
    workload: Path | None = None,
    sacct_file: Path | None = None,
    static: tuple[int, int] | None = None,
) -> MonthReport:
    """The report with a simulation of its month's jobs, or with the reason why there is none."""
    try:
        result = month_jobs.replay_of_month(
            config, parse_month(report.month), now, seconds,
            workload=workload, sacct_file=sacct_file, static=static,
        )  # fmt: skip
    except SlurmElasticError as error:
        return replace(report, no_replay=str(error))
    return replace(report, replay=result)
