"""Pictures of simulations, as one HTML file that opens without a network (needs matplotlib)."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli import report_text
from slurm_elastic.cli.history import Setting
from slurm_elastic.cli.simulate_tables import SCHEDULER, WORDS
from slurm_elastic.model.cluster import Offer
from slurm_elastic.policies.checkpoint.checkpoint import AnyPolicy
from slurm_elastic.simulate import breakdown, series
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.outcome import Outcome
from slurm_elastic.simulate.search import Tried

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } .note { color: #666; }
"""
SIZE = (9.5, 3.4)
MOST_PRICES = 6
"""Spot offers of a pool that are drawn."""
Rows = Sequence[Sequence[str]]


def figure(title: str, x: str, y: str) -> tuple[Figure, Any]:
    """An empty picture with one pair of axes. ConfigError where matplotlib is missing."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"plots need matplotlib (pip install 'slurm-elastic[plots]'): {error}"
        ) from None
    mpl.rcParams["svg.hashsalt"] = "slurm-elastic"  # else ids differ from run to run
    picture = Figure(figsize=SIZE, layout="constrained")
    axes = picture.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    return picture, axes


def svg(picture: Figure) -> str:
    """The picture as an inline SVG element, the same bytes for the same picture."""
    out = io.StringIO()
    picture.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document; ``parts`` are HTML."""
    name = html.escape(title)
    head = f'<meta charset="utf-8"><title>{name}</title><style>{STYLE}</style>'
    body = "\n".join([f"<h1>{name}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}\n</body></html>\n'


def table(head: Sequence[str], rows: Rows) -> str:
    """An HTML table of texts."""

    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(c)}</{kind}>" for c in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def report_page(
    runs: Sequence[tuple[str, Outcome]],
    setting: Setting,
    head: Sequence[str],
    rows: Rows,
    seed: int,
) -> str:
    """A simulation's report: what comes of it, from what, and what happened over time."""
    start = setting.history.start
    policies = [name for name, _ in runs]
    upright = list(zip(head, *rows, strict=True))
    pools = setting.base.pools
    parts = [
        *map(_paragraph, report_text.conclusion(runs)),
        table(upright[0], upright[1:]),
        _paragraph(" ".join(WORDS.split()), "note"),
        _paragraph(SCHEDULER),
        *_section("Assumptions"),
        *map(_paragraph, report_text.assumptions(setting, seed, policies)),
        table(*report_text.machines(pools)),
        *_section("Prices"),
        table(*report_text.prices(pools)),
        *_section("Over time"),
        _compared("Cost so far", "$", runs, series.cost, start),
        _compared("Waiting jobs", "jobs", runs, series.queue, start),
        *(_machines(policy, outcome, start) for policy, outcome in runs),
        *_section("By month"),
        table(*report_text.months(runs, start)),
        *_section("How long jobs wait"),
        _waits(runs),
        *_section("By account"),
        table(*report_text.accounts(runs, setting)),
        *_section("Spot prices"),
        *_spot_prices(runs, setting),
    ]
    return page(f"Simulation of {Path(setting.source).name}", parts)


def _section(title: str) -> tuple[str]:
    return (f"<h2>{html.escape(title)}</h2>",)


def _paragraph(text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{html.escape(text)}</p>"


def _spot_prices(runs: Sequence[tuple[str, Outcome]], setting: Setting) -> list[str]:
    scenarios = [setting.scenario(policy) for policy, _ in runs]
    policies = list(dict.fromkeys(scenario.checkpoints.policy for scenario in scenarios))
    found = [
        _prices(pool.name, sold.offer, sold.market, policies, setting.history.start)
        for pool in setting.base.pools
        for sold in pool.sold[:MOST_PRICES]
        if sold.market is not None
    ]
    return found or [_paragraph("No spot prices were given: machines are bought on demand.")]


def _waits(runs: Sequence[tuple[str, Outcome]]) -> str:
    """The share of jobs by the longest that they wait, from none to all."""
    picture, axes = figure("Jobs that wait so long at most", "", "% of the jobs")
    for policy, outcome in runs:
        steps = [(0, 0.0), *series.thinned(breakdown.waits(outcome))]
        axes.plot(
            [when for when, _ in steps], [100 * share for _, share in steps],
            drawstyle="steps-post", label=policy, linewidth=1,
        )  # fmt: skip
    axes.set_xscale("symlog", linthresh=60)
    axes.set_xlabel("seconds")
    axes.legend(fontsize="small")
    return svg(picture)


def _compared(
    title: str,
    unit: str,
    runs: Sequence[tuple[str, Outcome]],
    values: Callable[[Outcome], series.Steps],
    start: int,
) -> str:
    picture, axes = figure(title, "", unit)
    for policy, outcome in runs:
        _line(axes, values(outcome), start, policy, sloping=values is series.cost)
    axes.legend(fontsize="small")
    return svg(picture)


def _machines(policy: str, outcome: Outcome, start: int) -> str:
    picture, axes = figure(f"Machines: {policy}", "", "machines")
    for pool in outcome.pools:
        _line(axes, series.machines(pool), start, pool.pool.name)
    axes.legend(fontsize="small")
    return svg(picture)


def _prices(
    pool: str, offer: Offer, market: SpotMarket, policies: Sequence[AnyPolicy], start: int
) -> str:
    """A spot offer's price, with what takes its machines and what saves their jobs."""
    curve, bid = market.curve, market.bid
    title = f"Spot price: {pool}, {offer.instance_type} in {offer.zone}"
    picture, axes = figure(title, "", "$/h")
    _line(axes, list(zip(curve.times, curve.prices, strict=True)), start, "spot")
    axes.axhline(offer.on_demand_price or 0.0, color="#c30", linestyle="--", label="on demand")
    if bid is not None:
        axes.axhline(bid, color="#06c", linestyle=":", label="lost above (bid)")
    limits = dict(found for one in policies for found in series.thresholds(one, market))
    for text, steps in limits.items():
        _line(axes, steps, start, f"saved above ({text})")
    axes.legend(fontsize="small")
    return svg(picture)


def _line(
    axes: Any,  # noqa: ANN401 - of matplotlib
    steps: series.Steps,
    start: int,
    label: str,
    *,
    sloping: bool = False,
) -> None:
    """Dates where the history says when it began, else hours."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    points = series.thinned(steps)
    times: list[Any] = [when / 3600 for when, _ in points]
    if start:
        times = [datetime.fromtimestamp(start + when, UTC) for when, _ in points]
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    else:
        axes.set_xlabel("hours")
    style = "default" if sloping else "steps-post"
    axes.plot(times, [v for _, v in points], drawstyle=style, label=label, linewidth=1)


def front_page(
    tried: Sequence[Tried],
    best: Sequence[Tried],
    chosen: Tried | None,
    now: Tried | None,
    source: str,
) -> str:
    """Cost against mean wait of all that was tried; the front as a line."""
    picture, axes = figure("Policies on this history", "cost ($)", "mean wait (s)")
    axes.scatter(
        [t.figures.cost for t in tried], [t.figures.mean_wait for t in tried],
        s=14, color="#999", label="tried",
    )  # fmt: skip
    axes.plot(
        [t.figures.cost for t in best], [t.figures.mean_wait for t in best],
        marker="o", color="#0a6", label="not beaten in both",
    )  # fmt: skip
    if chosen:
        axes.scatter(
            [chosen.figures.cost], [chosen.figures.mean_wait],
            s=90, facecolors="none", edgecolors="#c30", linewidths=2, label=chosen.policy, zorder=3,
        )  # fmt: skip
    if now:
        axes.scatter(
            [now.figures.cost], [now.figures.mean_wait],
            s=60, marker="s", color="#06c", label="as it is configured", zorder=3,
        )  # fmt: skip
    axes.legend()
    rows = [[t.policy, f"${t.figures.cost:,.2f}", f"{t.figures.mean_wait:,.0f} s"] for t in best]
    return page(
        f"Policies for {Path(source).name}",
        [svg(picture), table(["policy", "cost", "mean wait"], rows)],
    )
