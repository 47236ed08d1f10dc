"""The month's report as HTML: one file that needs nothing else, or a page of the web server.

There are no scripts and no style attributes, because the web server's Content-Security-Policy
forbids both.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

from slurm_elastic.base.month import Month, parse_month
from slurm_elastic.base.units import brief, money
from slurm_elastic.cli.planning.plots import table
from slurm_elastic.cli.planning.simulate_tables import duration
from slurm_elastic.cli.reports import month_sentences as sentences
from slurm_elastic.cli.reports.month_sentences import amount, percent
from slurm_elastic.cli.reports.month_tables import cells, curve_rows
from slurm_elastic.simulate.studies.month_replay import CurvePoint, Replay
from slurm_elastic.watch.view.month_report import MonthReport, ReportLine
from slurm_elastic.watch.web.policy import STATIC

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 78, 16, 14, 44  # the margins of the plot, for its labels
DOLLAR_STEPS = tuple(
    digit * 10.0**power for power in range(-4, 9) for digit in (1, 2, 5)
)  # fmt: skip
WAIT_STEPS_S = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
    *(3600.0 * hours for hours in (4, 6, 12, 24, 48, 96, 168, 336, 720)),
)
MAX_TICKS = 6
QUIET, LINE, CURVE, NOW = "#59636d", "#dcdfe2", "#1d6f5c", "#1f6fb5"
"""Attributes have the colours of a light page, because WeasyPrint gives SVG no style sheet. In a
browser the classes of style.css win, also on a dark page.
"""


def page(report: MonthReport) -> str:
    """A whole document with its style inside."""
    style = f"<style>{(STATIC / 'style.css').read_text()}</style>"
    return _document(report, style, "")


def web_page(report: MonthReport, months: Sequence[Month]) -> str:
    """A whole document that takes its style from the web server, with links to other months."""
    links = "".join(
        f'<li><a href="report?month={month}"'
        f"{' aria-current=page' if str(month) == report.month else ''}>{month}</a></li>"
        for month in months
    )
    navigation = f'<nav aria-label="Months"><ul><li><a href="./">Cluster</a></li>{links}</ul></nav>'
    style = (
        '<link rel="icon" href="icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="style.css">'
    )
    return _document(report, style, navigation)


def _document(report: MonthReport, style: str, navigation: str) -> str:
    title = html.escape(sentences.title(report))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><meta name="color-scheme" content="light dark"><title>{title}</title>'
        f"{style}"
    )
    body = "\n".join([
        navigation and f"<header>{navigation}</header>",
        '<main class="report month">', f"<h1>{title}</h1>", *_blocks(report), "</main>",
    ])  # fmt: skip
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}\n</body></html>\n'


def _blocks(report: MonthReport) -> Iterable[str]:
    yield _paragraph(sentences.span(report), "quiet")
    yield _figures(report)
    for problem in report.problems:
        yield _paragraph(f"The sums are wrong: {problem}", "alarm")
    yield _paragraph(sentences.spent(report))
    if report.micro_dollars:
        yield "<h2>Saved</h2>"
        for name, text in sentences.saved(report):
            yield f"<p><b>{html.escape(name)}:</b> {html.escape(text)}</p>"
    if not report.own_jobs_only:
        yield "<h2>Waiting</h2>"
        yield from map(_paragraph, sentences.waiting(report))
    if report.replay is not None and report.replay.curve:
        yield "<h2>What a budget buys</h2>"
        yield from map(_paragraph, sentences.curve(report))
        yield f"<figure>{curve_picture(report.replay)}</figure>"
        rows = [
            (f"{mark}: {policy}" if mark else policy, dollars, wait)
            for mark, dollars, wait, policy in curve_rows(report)
        ]
        yield table(("Policy", "Dollars", "Mean wait"), rows)
    yield from _spent(report)
    if report.unused:
        yield "<h2>Unused time</h2>"
        yield from map(_paragraph, sentences.unused(report))
        rows = [
            (
                share.reason, amount(report, share.micro_dollars),
                percent(share.micro_dollars, report.micro_dollars),
            )
            for share in report.unused
        ]  # fmt: skip
        yield table(("Reason", "Dollars", "Share"), rows)
        for share in report.unused:
            yield f"<p><b>{share.reason}:</b> {html.escape(share.advice)}</p>"
    if report.micro_dollars:
        yield "<h2>Next month</h2>"
        yield _paragraph(sentences.forecast(report))
    yield from (_paragraph(note, "quiet") for note in sentences.notes(report))


def _figures(report: MonthReport) -> str:
    """The large figures at the top."""
    figures = [("Spent", amount(report, report.micro_dollars), "")]
    saving = report.on_demand_micro_dollars - report.micro_dollars
    if saving > 0:
        share = percent(saving, report.on_demand_micro_dollars)
        figures.append(("Saved against on demand", amount(report, saving), share))
    if report.replay is not None and report.replay.avoided is not None:
        avoided = report.replay.avoided
        low, high = sentences.avoided_range(avoided)
        name = "Waiting avoided" if avoided.value >= 0 else "Waiting added"
        value = sentences.waiting_time(abs(avoided.value))
        figures.append((name, value, f"{low} to {high}, by simulation"))
    if report.unused_micro_dollars:
        share = percent(report.unused_micro_dollars, report.micro_dollars)
        figures.append(("Unused", share, amount(report, report.unused_micro_dollars)))
    if report.forecast is not None:
        name = parse_month(report.forecast.month).name
        dollars = amount(report, report.forecast.micro_dollars)
        figures.append((f"Forecast of {name}", dollars, ""))
    items = "".join(
        f'<div class="figure"><dt>{html.escape(name)}</dt><dd><strong>{html.escape(value)}</strong>'
        f"<small>{html.escape(small)}</small></dd></div>"
        for name, value, small in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _spent(report: MonthReport) -> Iterable[str]:
    for name, lines in (
        ("Account", report.accounts), ("User", report.users), ("Cloud", report.clouds)
    ):  # fmt: skip
        yield f"<h2>By {name.lower()}</h2>"
        yield _costs(report, name, lines)


def _costs(report: MonthReport, name: str, lines: Sequence[ReportLine]) -> str:
    has_unused = any(line.unused_micro_dollars for line in lines)
    head = (name, "Dollars", "Share", "Machine-hours", *(("Unused",) if has_unused else ()))
    rows = [
        [
            *cells(report, line),
            *([amount(report, line.unused_micro_dollars)] if has_unused else []),
        ]
        for line in lines
    ]
    return table(head, rows) if rows else _paragraph("Nothing was paid in that time.", "quiet")


def _paragraph(text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{html.escape(text)}</p>"


def curve_picture(replay: Replay) -> str:
    """The curve of budget and mean wait as SVG, with the current configuration."""
    points, now = replay.curve, replay.configured
    most_dollars = max(max(p.dollars for p in (*points, now)) * 1.08, 0.001)
    longest = max(max(p.mean_wait for p in (*points, now)) * 1.12, 1.0)

    def x(dollars: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * dollars / most_dollars

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / longest

    shapes = []
    for seconds in ticks(longest, WAIT_STEPS_S):
        shapes.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(seconds):.1f}" '
            f'y2="{y(seconds):.1f}" stroke="{LINE}"/>'
        )
        shapes.append(_label(LEFT - 6, y(seconds) + 4, brief(seconds), "end"))
    shapes += [
        _label(x(dollars), HEIGHT - BOTTOM + 18, money(dollars).removesuffix(".00"), "middle")
        for dollars in ticks(most_dollars, DOLLAR_STEPS)
    ]
    shapes.append(_label((LEFT + WIDTH) / 2, HEIGHT - 6, "dollars in the month", "middle"))
    shapes.append(f'<path class="curve" d="{_steps(points, x, y, most_dollars)}" fill="none" '
                 f'stroke="{CURVE}" stroke-width="2"/>')  # fmt: skip
    shapes += [
        f'<circle class="point" cx="{x(point.dollars):.1f}" cy="{y(point.mean_wait):.1f}" r="4" '
        f'fill="{CURVE}"><title>{html.escape(_point_text(replay, point))}</title></circle>'
        for point in points
    ]
    shapes.append(
        f'<circle class="now" cx="{x(now.dollars):.1f}" cy="{y(now.mean_wait):.1f}" r="7" '
        f'fill="none" stroke="{NOW}" stroke-width="3"><title>now: '
        f"{html.escape(_point_text(replay, now))}</title></circle>"
    )
    is_right = now.dollars > most_dollars * 0.8
    shapes.append(
        _label(
            x(now.dollars) + (-12 if is_right else 12),
            y(now.mean_wait) - 8,
            "now",
            "end" if is_right else "start",
        )
    )
    name = "Shortest mean wait for each budget, by simulation"
    return (
        f'<svg class="budget" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{name}">{"".join(shapes)}</svg>'
    )


def ticks(highest: float, steps: Sequence[float]) -> list[float]:
    """The values at an axis from 0 to ``highest``, at the first of ``steps`` that gives few."""
    step = next((step for step in steps if highest / step < MAX_TICKS), highest)
    return [number * step for number in range(int(highest / step) + 1)]


def _steps(
    points: Sequence[CurvePoint],
    x: Callable[[float], float],
    y: Callable[[float], float],
    most_dollars: float,
) -> str:
    """The path of the curve: a budget between two points buys the wait of the cheaper one."""
    path = ""
    for point in points:
        path += (
            f"H{x(point.dollars):.1f}V{y(point.mean_wait):.1f}"
            if path
            else f"M{x(point.dollars):.1f} {y(point.mean_wait):.1f}"
        )
    return f"{path}H{x(most_dollars):.1f}" if path else ""


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{QUIET}">'
        f"{html.escape(text)}</text>"
    )


def _point_text(replay: Replay, point: CurvePoint) -> str:
    amount_text = sentences.simulated_dollars(replay, point.dollars)
    return f"{amount_text}, mean wait {duration(point.mean_wait)}: {point.policy}"
