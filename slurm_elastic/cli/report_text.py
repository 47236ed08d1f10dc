"""The words and tables of a simulation's report; ``cli.plots`` makes the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from slurm_elastic.cli.simulate_tables import duration, told, unbought
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.breakdown import Share, by_account, by_month
from slurm_elastic.simulate.certainty import LEAST, compared
from slurm_elastic.simulate.outcome import Figures, RunResult
from slurm_elastic.simulate.scenario import PoolModel, Sold
from slurm_elastic.simulate.setting import Setting

MOST = 20  # accounts and offers in a table; the others are counted
Runs = Sequence[tuple[str, RunResult]]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # a head and its rows


def conclusion(runs: Runs, baseline: RunResult | None = None) -> list[str]:
    """The site without clouds and the policies that never bought; then the cheapest and the
    fastest, beside the first.
    """
    never = [f"{found}." for found in unbought({name: outcome.figures for name, outcome in runs})]
    if baseline:
        lacking = max(one.figures.jobs for _, one in runs) - baseline.figures.jobs
        unrun = f"; {lacking:,} jobs would never run" if lacking > 0 else ""
        never.insert(0, f"Without public clouds {_paid(baseline.figures)}{unrun}.")
    first_name, first = runs[0]
    if len(runs) == 1:
        return [*never, f"Under {first_name} {_paid(first.figures)}."]
    cheapest = min(runs, key=lambda run: run[1].figures.cost)
    quickest = min(runs, key=lambda run: run[1].figures.mean_wait)
    best = {cheapest[0]: "costs least", quickest[0]: "has jobs wait least"}
    if cheapest[0] == quickest[0]:
        best = {cheapest[0]: "costs least and has jobs wait least"}
    outcomes = dict(runs)
    sentences = never
    for name, why in best.items():
        sentences.append(f"{name} {why}: {_paid(outcomes[name].figures)}.")
        if name == first_name:
            continue
        found = compared(outcomes[name], first)
        sentences.append(
            f"Beside {first_name}: {told(found)}." if found else
            f"How sure that is beside {first_name} nobody can say: the history has fewer than "
            f"{LEAST} whole weeks with costs."
        )  # fmt: skip
    return sentences


def _paid(figures: Figures) -> str:
    return (
        f"{figures.jobs:,} jobs cost ${figures.cost:,.2f} and wait {duration(figures.mean_wait)} "
        f"in the mean, 95 of 100 at most {duration(figures.p95_wait)}"
    )


def assumptions(setting: Setting, seed: int, policies: Sequence[str]) -> list[str]:
    """The assumptions of this run beside those of docs/simulate.md, a sentence each."""
    jobs, start = setting.jobs, setting.history.start
    first, last = min(jobs.submit, default=0), max(jobs.submit, default=0)
    when = f", submitted from {_day(start + first)} to {_day(start + last)}" if start else ""
    cancelled = setting.history.cancelled
    left = f"; {cancelled:,} were cancelled before they ran and are left out" if cancelled else ""
    return [
        f"The history is {Path(setting.history.source).name}: {len(jobs):,} jobs{when}{left}.",
        f"Random choices begin with seed {seed}: the same seed gives the same figures.",
        *setting.told(policies),
    ]


def _day(when: int) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d}"


def machines(pools: Sequence[PoolModel]) -> Table:
    """The machines that jobs may get."""
    head = ("pool", "machines", "always there", "processors", "boot", "paid")
    rows = [
        (
            pool.name, f"{pool.machines:,}", f"{pool.standing:,}", f"{pool.procs:,}",
            _boot(pool.boot), text_of(pool.billing) if pool.public else "",
        )
        for pool in pools
    ]  # fmt: skip
    return head, rows


def _boot(boot: BootTimes) -> str:
    if len(boot.points) == 1:
        return f"{boot.seconds(1)} s"
    sizes = ", ".join(f"{size}: {boot.seconds(size)} s" for size, _ in boot.points)
    return f"by how many boot together: {sizes}"


def prices(pools: Sequence[PoolModel]) -> Table:
    """The offers that machines are bought from, with their prices."""
    found = list(_prices(pools))
    more = [("", f"and {len(found) - MOST} more", "", "", "")] if len(found) > MOST else []
    return ("pool", "type", "zone", "market", "$ an hour"), [*found[:MOST], *more]


def _prices(pools: Sequence[PoolModel]) -> Iterator[Sequence[str]]:
    for pool in pools:
        for sold in pool.offers:
            offer = sold.offer
            yield pool.name, offer.instance_type, offer.zone, str(offer.market), _price(sold)
        if not pool.offers and pool.price:
            yield pool.name, "", "", "on-demand", f"{pool.price:.4f}"


def _price(sold: Sold) -> str:
    curve = sold.market.curve.prices if sold.market else [sold.offer.price]
    low, high = min(curve), max(curve)
    return f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}, as it moved"


def months(runs: Runs, start: int) -> Table:
    """Cost and mean wait under each policy, by the month in which jobs were submitted."""
    head = ("month", "jobs", "core-hours", "policy", "cost", "mean wait")
    of_each = [by_month(outcome, start) for _, outcome in runs]
    rows = [
        [*_common(one, first=not number), runs[number][0], f"${one.cost or 0.0:,.2f}", _wait(one)]
        for month in zip(*of_each, strict=True)
        for number, one in enumerate(month)
    ]
    return head, rows


def accounts(runs: Runs, setting: Setting) -> Table:
    """Mean wait under each policy, by account: those with the most core-hours."""
    names = {number: name for name, number in (setting.history.accounts or {}).items()}
    of_first, *of_others = [by_account(outcome, names) for _, outcome in runs]
    others = [{part.name: part for part in parts} for parts in of_others]
    rows = [
        [*_common(one, first=not number), runs[number][0], _wait(one)]
        for first in of_first[:MOST]
        for number, one in enumerate([first, *(of[first.name] for of in others)])
    ]
    rest = of_first[MOST:]
    if rest:
        jobs, hours = sum(part.jobs for part in rest), sum(part.core_hours for part in rest)
        rows.append([f"{len(rest)} more", f"{jobs:,}", f"{hours:,.0f}", "", ""])
    return ("account", "jobs", "core-hours", "policy", "mean wait"), rows


def _common(part: Share, *, first: bool) -> list[str]:
    """The cells that do not depend on the policy: in the first row of several."""
    return (
        [part.name or "(none)", f"{part.jobs:,}", f"{part.core_hours:,.0f}"] if first else [""] * 3
    )


def _wait(part: Share) -> str:
    return duration(part.mean_wait)
