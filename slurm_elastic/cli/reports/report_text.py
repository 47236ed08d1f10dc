"""The sentences and tables of a simulation's report; ``cli.plots`` makes the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from slurm_elastic.cli.planning.simulate_tables import comparison_text, duration, unbought
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.outcome import Figures, RunResult
from slurm_elastic.simulate.scenario import PoolModel, Sold
from slurm_elastic.simulate.setting import Setting
from slurm_elastic.simulate.studies.breakdown import JobsShare, by_account, by_month
from slurm_elastic.simulate.studies.certainty import Choice, compared

MAX_ROWS = 20  # of accounts or offers in a table; the others are counted
Runs = Sequence[tuple[str, RunResult]]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # a head and its rows


def conclusion(runs: Runs, baseline: RunResult | None = None) -> list[str]:
    """The sentences at the top of the report.

    First the site without clouds and the policies that never bought a machine, then the cheapest
    policy and the one with the shortest mean wait, compared with the first.
    """
    never = [
        f"{sentence}." for sentence in unbought({name: outcome.figures for name, outcome in runs})
    ]
    if baseline:
        lacking = max(outcome.figures.jobs for _, outcome in runs) - baseline.figures.jobs
        unrun = f"; {lacking:,} jobs would never run" if lacking > 0 else ""
        never.insert(0, f"Without public clouds {_paid(baseline.figures)}{unrun}.")
    first_name, first_outcome = runs[0]
    if len(runs) == 1:
        return [*never, f"Under {first_name} {_paid(first_outcome.figures)}."]
    cheapest = min(runs, key=lambda run: run[1].figures.cost)
    quickest = min(runs, key=lambda run: run[1].figures.mean_wait)
    best = {cheapest[0]: "costs least", quickest[0]: "has the shortest mean wait"}
    if cheapest[0] == quickest[0]:
        best = {cheapest[0]: "costs least and has the shortest mean wait"}
    outcomes = dict(runs)
    sentences = never
    for name, merit in best.items():
        sentences.append(f"{name} {merit}: {_paid(outcomes[name].figures)}.")
        if name == first_name:
            continue
        # With one other policy nothing was chosen: the sentence names what the user gave.
        choice = Choice.CHOSEN if len(runs) > 2 else Choice.NAMED
        comparison = compared(outcomes[name], first_outcome, choice)
        sentences.append(f"Compared with {first_name}: {comparison_text(comparison)}.")
    return sentences


def _paid(figures: Figures) -> str:
    return (
        f"{figures.jobs:,} jobs cost ${figures.cost:,.2f}; mean wait {duration(figures.mean_wait)};"
        f" 95 % wait at most {duration(figures.p95_wait)}"
    )


def assumptions(setting: Setting, seed: int, policies: Sequence[str]) -> list[str]:
    """The assumptions of this run that docs/simulate.md does not list, one sentence each."""
    jobs, start = setting.jobs, setting.history.start
    first_submit, last_submit = min(jobs.submit, default=0), max(jobs.submit, default=0)
    when = (
        f", submitted from {_day(start + first_submit)} to {_day(start + last_submit)}"
        if start
        else ""
    )
    cancelled = setting.history.cancelled
    omitted = (
        f"; {cancelled:,} were cancelled before they ran and are left out" if cancelled else ""
    )
    return [
        f"The history is {Path(setting.history.source).name}: {len(jobs):,} jobs{when}{omitted}.",
        f"Random choices start from seed {seed}: the same seed gives the same figures.",
        *setting.notes_for(policies),
    ]


def _day(when: int) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d}"


def machines(pools: Sequence[PoolModel]) -> Table:
    """The table of the machines that jobs can get, by pool."""
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
    """The table of the offers that machines are bought from, with their prices."""
    offers = list(_prices(pools))
    hidden_row = (
        [("", f"and {len(offers) - MAX_ROWS} more", "", "", "")] if len(offers) > MAX_ROWS else []
    )
    return ("pool", "type", "zone", "market", "$ an hour"), [*offers[:MAX_ROWS], *hidden_row]


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
    """The table of cost and mean wait under each policy, by the month of submission."""
    head = ("month", "jobs", "core-hours", "policy", "cost", "mean wait")
    months_by_run = [by_month(outcome, start) for _, outcome in runs]
    rows = [
        [
            *_common(share, is_first=not number),
            runs[number][0],
            f"${share.cost or 0.0:,.2f}",
            _wait(share),
        ]
        for month in zip(*months_by_run, strict=True)
        for number, share in enumerate(month)
    ]
    return head, rows


def accounts(runs: Runs, setting: Setting) -> Table:
    """The table of the mean wait under each policy, for the accounts with most core-hours."""
    names = {number: name for name, number in (setting.history.accounts or {}).items()}
    of_first, *of_others = [by_account(outcome, names) for _, outcome in runs]
    shares_of_others = [
        {share_of_policy.name: share_of_policy for share_of_policy in shares_of_policy}
        for shares_of_policy in of_others
    ]
    rows = [
        [*_common(share, is_first=not number), runs[number][0], _wait(share)]
        for account in of_first[:MAX_ROWS]
        for number, share in enumerate(
            [account, *(shares[account.name] for shares in shares_of_others)]
        )
    ]
    hidden = of_first[MAX_ROWS:]
    if hidden:
        jobs, hours = (
            sum(share_of_policy.jobs for share_of_policy in hidden),
            sum(share_of_policy.core_hours for share_of_policy in hidden),
        )
        rows.append([f"{len(hidden)} more", f"{jobs:,}", f"{hours:,.0f}", "", ""])
    return ("account", "jobs", "core-hours", "policy", "mean wait"), rows


def _common(share: JobsShare, *, is_first: bool) -> list[str]:
    """The cells that do not depend on the policy. They are blank unless this is the account's first
    row.
    """
    return (
        [share.name or "(none)", f"{share.jobs:,}", f"{share.core_hours:,.0f}"]
        if is_first
        else [""] * 3
    )


def _wait(share: JobsShare) -> str:
    return duration(share.mean_wait)
