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

MONTH = 30 * 86400  # seconds of a month if the history does not say when it began


class Share(Struct, frozen=True, kw_only=True):
    """The jobs of a month or an account: ``core_hours`` of those that ran, and their ``mean_wait``
    in seconds until the first start. ``cost``: dollars that were paid in that month; None for an
    account.
    """

    name: str
    jobs: int
    core_hours: float
    mean_wait: float
    cost: float | None = None


def by_month(outcome: RunResult, start: int) -> list[Share]:
    """By the calendar month (UTC) in which jobs were submitted, or by 30 days if ``start`` (the
    Unix time of the history's first second) is 0. What was paid after the last month counts as its.
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
        _part(name, among[number], outcome, cost)
        for number, ((_, name), cost) in enumerate(zip(edges, paid, strict=True))
    ]


def by_account(outcome: RunResult, names: Mapping[int, str]) -> list[Share]:
    """By account, most core-hours first; ``names`` has the names of the accounts' numbers."""
    among: defaultdict[int, list[int]] = defaultdict(list)
    for job, account in enumerate(outcome.jobs.account):
        among[account].append(job)
    found = [
        _part(
            names.get(account, "unknown" if account < 0 else str(account)), among_it, outcome, None
        )
        for account, among_it in among.items()
    ]
    return sorted(found, key=lambda part: (-part.core_hours, part.name))


def waits(outcome: RunResult) -> series.Steps:
    """For each wait in seconds, the share of the jobs that ran (0 to 1) that waited no longer."""
    found = sorted(
        began - submitted
        for submitted, began in zip(outcome.jobs.submit, outcome.starts, strict=True)
        if began >= 0
    )
    steps: series.Steps = []
    for number, wait in enumerate(found, 1):
        if steps and steps[-1][0] == wait:
            steps.pop()
        steps.append((wait, number / len(found)))
    return steps


def spent(steps: series.Steps, edges: Iterable[int | None]) -> list[float]:
    """Dollars paid by ``series.cost`` before each edge (since the one before); None is the end."""
    sums = [0.0, *(_until(steps, edge) for edge in edges)]
    return [after - before for before, after in pairwise(sums)]


def _until(steps: series.Steps, when: int | None) -> float:
    """Dollars paid until then; between two steps the cost rises evenly."""
    if not steps:
        return 0.0
    if when is None or when >= steps[-1][0]:
        return steps[-1][1]
    at = bisect_right(steps, (when, math.inf)) - 1
    if at < 0:
        return 0.0
    (begin, low), (end, high) = steps[at : at + 2]
    return low + (high - low) * (when - begin) / (end - begin)


def _edges(first: int, last: int, start: int) -> list[tuple[int, str]]:
    """The seconds of the run at which months begin, up to ``last``, each with the month's name."""
    if not start:
        count = (last - first) // MONTH + 1
        return [(first + n * MONTH, f"days {30 * n + 1} to {30 * n + 30}") for n in range(count)]
    month = datetime.fromtimestamp(start + first, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    found = []
    while (when := round(month.timestamp()) - start) <= last:
        found.append((when, f"{month:%Y-%m}"))
        month = (month + timedelta(days=31)).replace(day=1)
    return found


def _part(name: str, among: Sequence[int], outcome: RunResult, cost: float | None) -> Share:
    jobs, starts = outcome.jobs, outcome.starts
    ran = [job for job in among if starts[job] >= 0]
    waited = sum(starts[job] - jobs.submit[job] for job in ran)
    return Share(
        name=name,
        jobs=len(among),
        core_hours=sum(jobs.procs[job] * jobs.run[job] for job in ran) / 3600,
        mean_wait=waited / len(ran) if ran else 0.0,
        cost=cost,
    )
