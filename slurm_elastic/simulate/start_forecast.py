"""Forecasts when a job would start, by running the simulator forward from the present queue many
times.

For each future we draw how long the running and waiting jobs will really run (``habits``). They go
through first come, first served with EASY backfill (``easy``), which plans by time limits as Slurm
does. Jobs that are submitted later are left out. The start times in all futures together are the
forecast.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.simulate import easy
from slurm_elastic.simulate.habits import Asked, Habits
from slurm_elastic.simulate.jobs import Job, Jobs

FUTURES = 40
WORK = 60_000  # how many jobs are simulated at most, over all futures: about a second
LEAST_FUTURES = 10
ALIKE = 0.7
"""How often a job's run is drawn at the same place as its user's other jobs in the same future, as
a user's jobs of one day are of one kind. With this value the forecast's bands are as wide as they
should be on public histories.
"""


class Running(Struct, frozen=True, kw_only=True):
    """A job that has run for ``elapsed`` seconds."""

    job: Asked
    elapsed: int


class Present(Struct, frozen=True, kw_only=True):
    """The machines (or processors), the jobs that have them, and those that wait, in order."""

    machines: int
    running: tuple[Running, ...] = ()
    waiting: tuple[Asked, ...] = ()

    @property
    def used(self) -> int:
        """How many machines are taken."""
        return sum(one.job.size for one in self.running)


def starts(
    present: Present, wish: Asked, habits: Habits, seed: int = 0, futures: int = FUTURES
) -> tuple[int, ...]:
    """Seconds until ``wish`` starts, one a future, ascending; none if it is too large."""
    if wish.size > present.machines:
        return ()
    jobs = len(present.running) + len(present.waiting) + 1
    futures = max(min(futures, WORK // jobs), LEAST_FUTURES)
    rng = random.Random(seed)  # noqa: S311 - the same question has the same answer
    return tuple(sorted(_start(present, wish, habits, rng) for _ in range(futures)))


def by_limits(present: Present, wish: Asked) -> int | None:
    """The same if every job ran to its limit, as Slurm estimates it; None if it never fits."""
    if wish.size > present.machines:
        return None
    runs = [max(one.job.limit - one.elapsed, 1) for one in present.running]
    return _played(present, wish, runs, [job.limit for job in present.waiting])


def quantile(values: Sequence[int], share: float) -> int:
    """The value below which that share of the ascending ``values`` lies."""
    return values[min(int(share * len(values)), len(values) - 1)]


def _start(present: Present, wish: Asked, habits: Habits, rng: random.Random) -> int:
    days: dict[str, float] = {}

    def draw(job: Asked, elapsed: int) -> int:
        place = rng.random()
        if rng.random() < ALIKE:
            place = days.setdefault(job.user, place)
        return habits.remaining(job, elapsed, place)

    runs = [draw(one.job, one.elapsed) for one in present.running]
    return _played(present, wish, runs, [draw(job, 0) for job in present.waiting])


def _played(present: Present, wish: Asked, runs: Sequence[int], waits: Sequence[int]) -> int:
    """All jobs are submitted now, running ones first. None runs beyond its limit."""
    jobs, sizes = Jobs(), array("q")
    for one, run in zip(present.running, runs, strict=True):
        left = max(one.job.limit - one.elapsed, run)
        jobs.append(Job(0, 0, run, left, one.job.size))
        sizes.append(one.job.size)
    for job, run in zip(present.waiting, waits, strict=True):
        if job.size <= present.machines:  # otherwise it waits for ever, and Slurm skips it
            jobs.append(Job(0, 0, run, max(job.limit, run), job.size))
            sizes.append(job.size)
    jobs.append(Job(0, 0, 1, max(wish.limit, 1), wish.size))
    sizes.append(wish.size)
    # If nodes went down, more are in use than there are: they count until their jobs end.
    return easy.starts(jobs, max(present.machines, present.used), sizes)[len(jobs) - 1]
