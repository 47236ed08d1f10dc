"""The month's report on a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from slurm_elastic.cli.planning.simulate_tables import duration
from slurm_elastic.cli.reports import month_sentences as sentences
from slurm_elastic.cli.reports.month_sentences import amount, percent
from slurm_elastic.cli.streams import in_a_line
from slurm_elastic.watch.view.month_report import MonthReport, ReportLine

MAX_LINES = 15  # of a table on a terminal; --html and --json have all


def render(report: MonthReport, console: Console, hint: str = "") -> None:
    """Print the report. ``hint``: a sentence to print below the sum, or ""."""
    console.print(sentences.title(report), style="bold")
    console.print(sentences.span(report))
    _section("Spent", [sentences.spent(report), *([hint] if hint else [])], console)
    if not report.micro_dollars:
        _print_waiting(report, console)
        return
    _section("Saved", [f"{name}: {text}" for name, text in sentences.saved(report)], console)
    for name, lines in (
        ("ACCOUNT", report.accounts), ("USER", report.users), ("CLOUD", report.clouds)
    ):  # fmt: skip
        # Unused parts always have lines: among the hidden ones they would look like users.
        used = [line for line in lines if not line.unused]
        hidden = used[MAX_LINES:]
        console.print()
        console.print(_costs(report, name, [line for line in lines if line not in hidden]))
        if hidden:
            cost = amount(report, sum(line.micro_dollars for line in hidden))
            console.print(f"and {len(hidden)} more, {cost} together: --html and --json have all")
    _section("Unused time", sentences.unused(report), console)
    for share in report.unused:
        percentage = percent(share.micro_dollars, report.micro_dollars)
        _print_indented(f"{share.reason}, {percentage}: {share.advice}", console)
    _print_waiting(report, console)
    _section("Next month", [sentences.forecast(report)], console)


def _print_waiting(report: MonthReport, console: Console) -> None:
    if report.own_jobs_only:
        return
    _section("Waiting", sentences.waiting(report), console)
    if report.replay is None:
        return
    _section("What a budget buys", sentences.curve(report), console)
    console.print(_curve(report))
    for note in sentences.notes(report):
        console.print(textwrap.fill(note, console.width), style="dim", soft_wrap=True)


def _section(name: str, texts: Iterable[str], console: Console) -> None:
    sentences_shown = list(texts)
    if not sentences_shown:
        return
    console.print()
    console.print(name, style="bold")
    for text in sentences_shown:
        _print_indented(text, console)


def _print_indented(text: str, console: Console) -> None:
    # Not rich's Padding, which fills each line up with blanks.
    wrapped = textwrap.fill(text, console.width, initial_indent="  ", subsequent_indent="  ")
    console.print(wrapped, soft_wrap=True)


def _costs(report: MonthReport, name: str, lines: Sequence[ReportLine]) -> Table:
    has_unused = any(line.unused_micro_dollars for line in lines)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(name, overflow="fold")
    for column in ("DOLLARS", "SHARE", "HOURS", *(("UNUSED",) if has_unused else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*cells(report, line), *(
            [amount(report, line.unused_micro_dollars)] if has_unused else []
        ))  # fmt: skip
    return table


def cells(report: MonthReport, line: ReportLine) -> list[str]:
    """The cells of a line of costs: key, dollars, share, machine-hours."""
    key = f"(unused: {line.key})" if line.unused else line.key
    return [
        in_a_line(key),
        amount(report, line.micro_dollars),
        percent(line.micro_dollars, report.micro_dollars),
        f"{line.machine_hours:,.2f}",
    ]


def curve_rows(report: MonthReport) -> list[tuple[str, str, str, str]]:
    """Rows of the curve: a mark, dollars, mean wait, policy; the current configuration, too."""
    if report.replay is None:
        return []
    replay, now = report.replay, report.replay.configured
    points = [*replay.curve, *([] if now in replay.curve else [now])]
    points.sort(key=lambda point: (point.dollars, point.mean_wait))
    return [
        (
            "now" if point == now else "",
            sentences.simulated_dollars(replay, point.dollars),
            duration(point.mean_wait),
            "without public clouds" if point.policy == "none" else point.policy,
        )
        for point in points
    ]


def _curve(report: MonthReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in ("BUDGET", "MEAN WAIT"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("POLICY", overflow="fold")
    for row in curve_rows(report):
        table.add_row(*row)
    return table
