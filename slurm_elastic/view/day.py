"""The last 24 hours as series: machines, dollars an hour, jobs. Pure.

``DayView`` as JSON is the document of ``slurm-elastic status --day --json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.model_ledger import Machine, Run
from slurm_elastic.model_slurm import SlurmJob

SPAN = 86400.0
STEP = 300.0
"""Seconds between two points."""


class DayView(Struct, frozen=True, kw_only=True):
    """A value for each of ``points``: the first at ``begin`` (Unix time), one each ``step`` s, the
    last one ``at``. By market: ``machines`` that were paid, and what they cost in ``dollars`` an
    hour. ``booting``: machines that had not registered yet. ``running``: jobs on our nodes.
    ``waiting``: jobs that wait now, from their submission on (None: Slurm did not say).
    ``private`` as in ``Facts``.
    """

    at: float
    begin: float
    step: float
    points: int
    machines: dict[str, list[int]]
    dollars: dict[str, list[float]]
    booting: list[int]
    running: list[int]
    waiting: list[int] | None = None
    private: tuple[str, ...] = ()
    version: int = 1


class _Series:
    """Sums of spans of time, by their beginnings and ends."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._changes = [0.0] * (int(SPAN / STEP) + 2)

    def add(self, since: float, until: float | None, value: float = 1.0) -> None:
        """It was so from ``since`` on, before ``until`` (None: it still is)."""
        first, end = self._index(since), len(self._changes) - 1
        self._changes[first] += value
        if until is not None:
            end = max(self._index(until), first)
        self._changes[end] -= value

    def values(self) -> list[float]:
        """The sum at each point."""
        total, found = 0.0, []
        for change in self._changes[:-1]:
            total += change
            found.append(round(total, 6))
        return found

    def counts(self) -> list[int]:
        """The same as whole numbers."""
        return [round(value) for value in self.values()]

    def _index(self, at: float) -> int:
        """The first point that is not before ``at``."""
        steps = math.ceil((at - self._begin) / STEP)
        return min(max(steps, 0), len(self._changes) - 1)


def day_view(
    machines: Sequence[Machine], runs: Iterable[Run], now: float, private: tuple[str, ...] = ()
) -> DayView:
    """By the machines and runs of which some part is within the last 24 hours."""
    begin = now - SPAN
    markets = sorted({str(machine.instance.market) for machine in machines})
    paid = {market: _Series(begin) for market in markets}
    dollars = {market: _Series(begin) for market in markets}
    booting, running = _Series(begin), _Series(begin)
    for machine in machines:
        one = machine.instance
        paid[one.market].add(one.launched, machine.ended)
        dollars[one.market].add(one.launched, machine.ended, one.price)
        up = [at for at in (machine.registered, machine.suspending, machine.ended) if at]
        booting.add(one.launched, min(up, default=None))
    for run in runs:
        running.add(run.begin, run.end)
    return DayView(
        at=now,
        begin=begin,
        step=STEP,
        points=int(SPAN / STEP) + 1,
        machines={market: series.counts() for market, series in paid.items()},
        dollars={market: series.values() for market, series in dollars.items()},
        booting=booting.counts(),
        running=running.counts(),
        private=private,
    )


def still_waiting(jobs: Iterable[SlurmJob], now: float) -> list[int]:
    """How many of the jobs that wait now had been submitted by each point."""
    found = _Series(now - SPAN)
    for job in jobs:
        if "PENDING" in job.states:
            found.add(job.submit, None, job.tasks)
    return found.counts()
