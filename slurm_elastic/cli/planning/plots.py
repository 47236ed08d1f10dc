"""Pictures of simulations, as one HTML file that opens without a network (needs matplotlib)."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.cli.planning.simulate_tables import LEGEND, SCHEDULER
from slurm_elastic.cli.reports import report_text
from slurm_elastic.model.cluster import Offer
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy
from slurm_elastic.simulate import series
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.setting import Setting
from slurm_elastic.simulate.studies import breakdown
from slurm_elastic.simulate.studies.search import Tried
from slurm_elastic.watch.web.policy import STATIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (6.4, 3.4)
INK, QUIET, LINE, SHEET = "#1c2126", "#59636d", "#dcdfe2", "#ffffff"
GREEN, BROWN, BLUE, VIOLET, RED = "#1d6f5c", "#9a5a00", "#1f6fb5", "#4a5a8c", "#b3261e"
VARIABLES = {
    INK: "ink", QUIET: "quiet", LINE: "line", SHEET: "sheet",
    GREEN: "spot", BROWN: "on-demand", BLUE: "boot", VIOLET: "reserved", RED: "down",
}  # fmt: skip
"""The CSS variable of each colour of the pictures, so that a dark page shows its own colours."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "slurm-elastic",  # without a fixed salt, ids differ from run to run
    "figure.facecolor": "none", "axes.facecolor": "none", "legend.facecolor": SHEET,
    "text.color": INK, "axes.labelcolor": QUIET, "xtick.color": QUIET, "ytick.color": QUIET,
    "axes.edgecolor": LINE, "legend.edgecolor": LINE, "grid.color": LINE, "font.size": 11,
}  # fmt: skip
MAX_PRICE_PICTURES = 6  # spot offers of a pool that are drawn
Rows = Sequence[Sequence[str]]
Clock = tuple[int, int, int]
"""Start of the history (Unix time; 0: unknown); the first and last second of all pictures."""


def figure(title: str, x: str, y: str) -> tuple[Figure, Any]:
    """An empty picture with one pair of axes. ConfigError if matplotlib is missing."""
    try:
        import matplotlib as mpl
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib: {missing_module(error, 'plots')}") from None
    mpl.rcParams.update(STYLE)
    colours = cycler(color=[GREEN, BROWN, BLUE, VIOLET, RED])
    picture = Figure(figsize=SIZE, layout="constrained")
    axes = picture.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * colours)
    axes.grid()
    axes.yaxis.set_major_formatter("{x:,.10g}")
    return picture, axes


def svg(picture: Figure) -> str:
    """The picture as an inline SVG element; the same picture gives the same bytes."""
    out = io.StringIO()
    picture.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    for colour, name in VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return f"<figure>{text[text.index('<svg') :]}</figure>"


def page(title: str, blocks: Sequence[str]) -> str:
    """A whole document; ``blocks`` are HTML."""
    name = html.escape(title)
    style = (STATIC / "style.css").read_text()
    screen = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{screen}<title>{name}</title><style>{style}</style>'
    body = "\n".join(['<main class="report">', f"<h1>{name}</h1>", *blocks, "</main>"])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}\n</body></html>\n'


def table(head: Sequence[str], rows: Rows) -> str:
    """An HTML table in the style of the web page: on a phone each row is a card."""

    def line(row: Sequence[str]) -> str:
        heading, *numbers = map(html.escape, row)
        named = zip(names, numbers, strict=True)
        cells = (f'<td class="number" data-label="{name}">{cell}</td>' for name, cell in named)
        begin = f'<th scope="row">{heading}</th>' if heading else "<td></td>"
        return f"<tr>{begin}{''.join(cells)}</tr>"

    top, *names = map(html.escape, head)
    tops = "".join([f"<th>{top}</th>", *(f'<th class="number">{name}</th>' for name in names)])
    body = f"<thead><tr>{tops}</tr></thead><tbody>{''.join(map(line, rows))}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def report_page(
    runs: Sequence[tuple[str, RunResult]],
    setting: Setting,
    head: Sequence[str],
    rows: Rows,
    seed: int,
    baseline: RunResult | None = None,
) -> str:
    """The report of a simulation: conclusion, assumptions, prices, and pictures over time.

    ``baseline``: the site without public clouds, to compare with.
    """
    start = setting.history.start
    compared_runs = [*runs, ("without clouds", baseline)] if baseline else runs
    ends = [series.cost(run)[-1:] for _, run in runs] + [series.queue(run)[-1:] for _, run in runs]
    last_second = max((when for steps in ends for when, _ in steps), default=1)
    clock = (start, min(setting.jobs.submit, default=0), last_second)
    policies = [name for name, _ in runs]
    upright = list(zip(head, *rows, strict=True))
    pools = setting.base.pools
    blocks = [
        *map(_paragraph, report_text.conclusion(runs, baseline)),
        table(upright[0], upright[1:]),
        _paragraph(" ".join(LEGEND.split()), "note"),
        _paragraph(SCHEDULER),
        *_section("Assumptions"),
        *map(_paragraph, report_text.assumptions(setting, seed, policies)),
        table(*report_text.machines(pools)),
        *_section("Prices"),
        table(*report_text.prices(pools)),
        *_section("Over time"),
        '<div class="charts">',
        _compared("Cost so far", "$", runs, series.cost, clock),
        _compared("Waiting jobs", "jobs", compared_runs, series.queue, clock),
        *(_machines(*run, clock) for run in runs),
        "</div>",
        *_section("By month"),
        table(*report_text.months(runs, start)),
        *_section("How long jobs wait"),
        '<div class="charts">',
        _waits(compared_runs),
        "</div>",
        *_section("By account"),
        table(*report_text.accounts(runs, setting)),
        *_section("Spot prices"),
        '<div class="charts">',
        *_spot_prices(runs, setting, clock),
        "</div>",
    ]
    return page(f"Simulation of {Path(setting.history.source).name}", blocks)


def _section(title: str) -> tuple[str]:
    return (f"<h2>{html.escape(title)}</h2>",)


def _paragraph(text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{html.escape(text)}</p>"


def _spot_prices(
    runs: Sequence[tuple[str, RunResult]], setting: Setting, clock: Clock
) -> list[str]:
    scenarios = [setting.scenario(policy) for policy, _ in runs]
    policies = list(dict.fromkeys(scenario.checkpoints.policy for scenario in scenarios))
    pictures = [
        _prices(pool.name, sold.offer, sold.market, policies, clock)
        for pool in setting.base.pools
        for sold in pool.sold[:MAX_PRICE_PICTURES]
        if sold.market is not None
    ]
    return pictures or [_paragraph("No spot prices were given: machines are bought on demand.")]


def _waits(runs: Sequence[tuple[str, RunResult]]) -> str:
    """A picture of the cumulative share of jobs over their wait."""
    picture, axes = figure("Jobs that wait at most this long", "", "% of the jobs")
    for policy, outcome in runs:
        steps = [(0, 0.0), *series.thinned(breakdown.waits(outcome))]
        axes.plot(
            [when for when, _ in steps], [100 * share for _, share in steps],
            drawstyle="steps-post", label=policy, linewidth=1,
        )  # fmt: skip
    axes.set_xscale("symlog", linthresh=60)
    axes.set_xlabel("seconds")
    _add_legend(axes)
    return svg(picture)


def _compared(
    title: str,
    unit: str,
    runs: Sequence[tuple[str, RunResult]],
    values: Callable[[RunResult], series.Steps],
    clock: Clock,
) -> str:
    picture, axes = figure(title, "", unit)
    for policy, outcome in runs:
        _line(axes, values(outcome), clock, policy, sloping=values is series.cost)
    _add_legend(axes)
    return svg(picture)


def _machines(policy: str, outcome: RunResult, clock: Clock) -> str:
    """A picture of the machines over time, without the pools whose machines always run.

    These are many, and would flatten the other lines.
    """
    moving = [
        pool_run for pool_run in outcome.pools if pool_run.pool.standing < pool_run.pool.machines
    ]
    if not moving:
        return ""
    picture, axes = figure(f"Machines that come and go: {policy}", "", "machines")
    for machines in moving:
        _line(axes, series.machines(machines), clock, machines.pool.name)
    _add_legend(axes)
    return svg(picture)


def _add_legend(axes: Any) -> None:  # noqa: ANN401 - of matplotlib
    """Add the legend below the picture, where it covers no line."""
    axes.figure.legend(fontsize="small", loc="outside lower center", ncols=2)


def _prices(
    pool: str, offer: Offer, market: SpotMarket, policies: Sequence[AnyPolicy], clock: Clock
) -> str:
    """A picture of a spot offer's price, with the bid and the prices above which jobs are saved."""
    curve, bid = market.curve, market.bid
    title = f"Spot price: {pool}, {offer.instance_type} in {offer.zone}"
    picture, axes = figure(title, "", "$/h")
    _line(axes, list(zip(curve.times, curve.prices, strict=True)), clock, "spot")
    axes.axhline(offer.on_demand_price or 0.0, color=RED, linestyle="--", label="on demand")
    if bid is not None:
        axes.axhline(bid, color=BLUE, linestyle=":", label="lost above (bid)")
    limits = dict(
        threshold for policy in policies for threshold in series.thresholds(policy, market)
    )
    for text, steps in limits.items():
        _line(axes, steps, clock, f"saved above ({text})")
    _add_legend(axes)
    return svg(picture)


def _line(
    axes: Any,  # noqa: ANN401 - of matplotlib
    steps: series.Steps,
    clock: Clock,
    label: str,
    *,
    sloping: bool = False,
) -> None:
    """Draw a line over dates if the start of the history is known, else over hours."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    points = series.thinned(steps)
    start, *ends = clock
    times: list[Any] = [when / 3600 for when in (*ends, *(when for when, _ in points))]
    if start:
        times = [datetime.fromtimestamp(start + 3600 * hours, UTC) for hours in times]
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    else:
        axes.set_xlabel("hours")
    style = "default" if sloping else "steps-post"
    axes.plot(times[2:], [v for _, v in points], drawstyle=style, label=label, linewidth=1.2)
    axes.set_xlim(*times[:2])


def front_page(
    tried: Sequence[Tried],
    best: Sequence[Tried],
    chosen: Tried | None,
    now: Tried | None,
    source: str,
) -> str:
    """A picture of cost against mean wait of all tried policies; the best trade-offs as a line."""
    picture, axes = figure("Policies on this history", "cost ($)", "mean wait (s)")
    axes.scatter(
        [t.figures.cost for t in tried], [t.figures.mean_wait for t in tried],
        s=14, color=QUIET, label="tried",
    )  # fmt: skip
    axes.plot(
        [t.figures.cost for t in best], [t.figures.mean_wait for t in best],
        marker="o", color=GREEN, label="best trade-offs",
    )  # fmt: skip
    if chosen:
        axes.scatter(
            [chosen.figures.cost], [chosen.figures.mean_wait],
            s=90, facecolors="none", edgecolors=RED, linewidths=2, label=chosen.policy, zorder=3,
        )  # fmt: skip
    if now:
        axes.scatter(
            [now.figures.cost], [now.figures.mean_wait],
            s=60, marker="s", color=BLUE, label="current configuration", zorder=3,
        )  # fmt: skip
    _add_legend(axes)
    rows = [[t.policy, f"${t.figures.cost:,.2f}", f"{t.figures.mean_wait:,.0f} s"] for t in best]
    return page(
        f"Policies for {Path(source).name}",
        [svg(picture), table(["policy", "cost", "mean wait"], rows)],
    )
