"""A simulation's result by month, by account and by wait. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from msgspec import Struct

from slurm_elastic.simulate import series
from slurm_elastic.simulate.outcome import RunResult

MONTH_S = 30 * 86400  # seconds of a month if the history does not say when it began


class JobsShare(Struct, frozen=True, kw_only=True):
    """The jobs of a month or an account. ``core_hours`` and ``mean_wait`` (seconds until the first
    start) cover only jobs that ran. ``cost``: the dollars paid in the month; None for an account.
    """

    name: str
    jobs: int
    core_hours: float
    mean_wait: float
    cost: float | None = None


def by_month(outcome: RunResult, start: int) -> list[JobsShare]:
    """Divide the jobs by the calendar month (UTC) of their submission.

    ``start``: the Unix time of the history's first second. If it is 0, months have 30 days. Costs
    after the last month count for the last month.
    """
    jobs = outcome.jobs
    if not len(jobs):
        return []
    edges = _edges(min(jobs.submit), max(jobs.submit), start)
    among: defaultdict[int, list[int]] = defaultdict(list)
    for job, submitted in enumerate(jobs.submit):
        among[bisect_right(edges, submitted, key=lambda edge: edge[0]) - 1].append(job)
    paid = spent(series.cost(outcome), [*(when for when, _ in edges[1:]), None])
    return [
        _share_of(name, among[number], outcome, cost)
        for number, ((_, name), cost) in enumerate(zip(edges, paid, strict=True))
    ]


def by_account(outcome: RunResult, names: Mapping[int, str]) -> list[JobsShare]:
    """Divide the jobs by account, most core-hours first. ``names``: account names by number."""
    among: defaultdict[int, list[int]] = defaultdict(list)
    for job, account in enumerate(outcome.jobs.account):
        among[account].append(job)
    shares = [
        _share_of(
            names.get(account, "unknown" if account < 0 else str(account)), members, outcome, None
        )
        for account, members in among.items()
    ]
    return sorted(shares, key=lambda share: (-share.core_hours, share.name))


def waits(outcome: RunResult) -> series.Steps:
    """Return for each wait (seconds) the share (0 to 1) of the started jobs that waited no
    longer.
    """
    sorted_waits = sorted(
        began - submitted
        for submitted, began in zip(outcome.jobs.submit, outcome.starts, strict=True)
        if began >= 0
    )
    steps: series.Steps = []
    for number, wait in enumerate(sorted_waits, 1):
        if steps and steps[-1][0] == wait:
            steps.pop()
        steps.append((wait, number / len(sorted_waits)))
    return steps


def spent(steps: series.Steps, edges: Iterable[int | None]) -> list[float]:
    """Return the dollars paid between each edge and the one before it. None stands for the end."""
    sums = [0.0, *(_dollars_until(steps, edge) for edge in edges)]
    return [after - before for before, after in pairwise(sums)]


def _dollars_until(steps: series.Steps, when: int | None) -> float:
    """Return the dollars paid until ``when``. Between two steps the cost rises evenly."""
    if not steps:
        return 0.0
    if when is None or when >= steps[-1][0]:
        return steps[-1][1]
    index = bisect_right(steps, (when, math.inf)) - 1
    if index < 0:
        return 0.0
    (begin, low), (end, high) = steps[index : index + 2]
    return low + (high - low) * (when - begin) / (end - begin)


def _edges(first_submit: int, last_submit: int, start: int) -> list[tuple[int, str]]:
    """Return (second, name) of each month that begins between ``first_submit`` and
    ``last_submit``.
    """
    if not start:
        count = (last_submit - first_submit) // MONTH_S + 1
        return [
            (first_submit + n * MONTH_S, f"days {30 * n + 1} to {30 * n + 30}")
            for n in range(count)
        ]
    month = datetime.fromtimestamp(start + first_submit, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    edges = []
    while (when := round(month.timestamp()) - start) <= last_submit:
        edges.append((when, f"{month:%Y-%m}"))
        month = (month + timedelta(days=31)).replace(day=1)
    return edges


def _share_of(name: str, among: Sequence[int], outcome: RunResult, cost: float | None) -> JobsShare:
    jobs, starts = outcome.jobs, outcome.starts
    ran = [job for job in among if starts[job] >= 0]
    waited = sum(starts[job] - jobs.submit[job] for job in ran)
    return JobsShare(
        name=name,
        jobs=len(among),
        core_hours=sum(jobs.procs[job] * jobs.run[job] for job in ran) / 3600,
        mean_wait=waited / len(ran) if ran else 0.0,
        cost=cost,
    )
