"""Forecasts when a job would start, by many simulations from the present queue.

Each simulation is a possible future, with run times drawn for the running and waiting jobs
(``habits``). The jobs pass through first come, first served with EASY backfill (``easy``), which
plans with time limits as Slurm does. Jobs submitted later are left out. The start times in all
futures are the forecast.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.policies.launch.habits import Habits, RequestedJob
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.queues import easy

FUTURES = 40
MAX_SIMULATED_JOBS = (
    60_000  # the maximum of simulated jobs over all futures, which takes about a second
)
MIN_FUTURES = 10
SAME_QUANTILE_SHARE = 0.7
"""The probability that a job uses the same quantile as its user's other jobs in the same future,
because a user's jobs of one day are similar. With this value the forecast's bands have the right
width on public histories.
"""


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job that has run for ``elapsed`` seconds."""

    job: RequestedJob
    elapsed: int


class Present(Struct, frozen=True, kw_only=True):
    """The number of machines (or processors), the running jobs, and the waiting jobs in order."""

    machines: int
    running: tuple[RunningJob, ...] = ()
    waiting: tuple[RequestedJob, ...] = ()

    @property
    def used(self) -> int:
        """The number of machines in use."""
        return sum(entry.job.size for entry in self.running)


def starts(
    present: Present, wish: RequestedJob, habits: Habits, seed: int = 0, futures: int = FUTURES
) -> tuple[int, ...]:
    """Return the seconds until ``wish`` starts in each future, ascending; empty if it is too
    large.
    """
    if wish.size > present.machines:
        return ()
    jobs = len(present.running) + len(present.waiting) + 1
    futures = max(min(futures, MAX_SIMULATED_JOBS // jobs), MIN_FUTURES)
    rng = random.Random(seed)  # noqa: S311 - the same question has the same answer
    return tuple(sorted(_start(present, wish, habits, rng) for _ in range(futures)))


def by_limits(present: Present, wish: RequestedJob) -> int | None:
    """Return the seconds until ``wish`` starts if all jobs run to their limits, as Slurm estimates
    it. None if it never fits.
    """
    if wish.size > present.machines:
        return None
    runs = [max(entry.job.limit - entry.elapsed, 1) for entry in present.running]
    return _simulate_future(present, wish, runs, [job.limit for job in present.waiting])


def quantile(values: Sequence[int], share: float) -> int:
    """Return the value below which ``share`` of the ascending ``values`` lies."""
    return values[min(int(share * len(values)), len(values) - 1)]


def _start(present: Present, wish: RequestedJob, habits: Habits, rng: random.Random) -> int:
    days: dict[str, float] = {}

    def draw(job: RequestedJob, elapsed: int) -> int:
        place = rng.random()
        if rng.random() < SAME_QUANTILE_SHARE:
            place = days.setdefault(job.user, place)
        return habits.remaining(job, elapsed, place)

    runs = [draw(entry.job, entry.elapsed) for entry in present.running]
    return _simulate_future(present, wish, runs, [draw(job, 0) for job in present.waiting])


def _simulate_future(
    present: Present, wish: RequestedJob, runs: Sequence[int], waits: Sequence[int]
) -> int:
    """Simulate a future and return the start of ``wish``. All jobs are submitted at second 0, the
    running jobs first. A limit is raised if the drawn run time is longer.
    """
    jobs, sizes = Jobs(), array("q")
    for entry, run in zip(present.running, runs, strict=True):
        limit = max(entry.job.limit - entry.elapsed, run)
        jobs.append(Job(0, 0, run, limit, entry.job.size))
        sizes.append(entry.job.size)
    for job, run in zip(present.waiting, waits, strict=True):
        if job.size <= present.machines:  # Slurm skips a job that can never fit
            jobs.append(Job(0, 0, run, max(job.limit, run), job.size))
            sizes.append(job.size)
    jobs.append(Job(0, 0, 1, max(wish.limit, 1), wish.size))
    sizes.append(wish.size)
    # After nodes went down, more may be in use than exist. Count them until their jobs end.
    return easy.starts(jobs, max(present.machines, present.used), sizes)[len(jobs) - 1]
