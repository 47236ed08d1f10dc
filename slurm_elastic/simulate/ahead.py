"""When a job would start: the simulator run forward from a queue as it is, many times.

Each future draws how long the jobs that run and wait will really run (``habits``), and plays them
through first come, first served with EASY backfill (``easy``), which goes by their limits as Slurm
does. Later submissions are left out. The times of all futures together are the forecast.
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
WORK = 60_000
"""Jobs that are played through at most in all futures: about a second."""
LEAST_FUTURES = 10
ALIKE = 0.7
"""How often a job's run goes with those of its user's other jobs in the same future: a user's jobs
of one day are of one kind. By this, bands are as wide as they should be on public histories.
"""


class Running(Struct, frozen=True, kw_only=True):
    """A job that has run for ``elapsed`` seconds."""

    job: Asked
    elapsed: int


class Present(Struct, frozen=True, kw_only=True):
    """So many machines (or processors), who has them, and who waits for them, first to be served
    first.
    """

    machines: int
    running: tuple[Running, ...] = ()
    waiting: tuple[Asked, ...] = ()

    @property
    def used(self) -> int:
        """Machines that are taken."""
        return sum(one.job.size for one in self.running)


def starts(
    present: Present, wish: Asked, habits: Habits, seed: int = 0, futures: int = FUTURES
) -> tuple[int, ...]:
    """Seconds from now until ``wish``, the last in the queue, starts, in each future, ascending;
    none where there are not enough machines for it at all.
    """
    if wish.size > present.machines:
        return ()
    jobs = len(present.running) + len(present.waiting) + 1
    futures = max(min(futures, WORK // jobs), LEAST_FUTURES)
    rng = random.Random(seed)  # noqa: S311 - the same question has the same answer
    return tuple(sorted(_start(present, wish, habits, rng) for _ in range(futures)))


def by_limits(present: Present, wish: Asked) -> int | None:
    """The same by the limits alone, as Slurm estimates it; None where it never fits."""
    if wish.size > present.machines:
        return None
    runs = [max(one.job.limit - one.elapsed, 1) for one in present.running]
    return _played(present, wish, runs, [job.limit for job in present.waiting])


def quantile(values: Sequence[int], share: float) -> int:
    """The one of ascending values below which so great a share of them is."""
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
    """All are submitted now, those that run first; a job never runs beyond its limit."""
    jobs, sizes = Jobs(), array("q")
    for one, run in zip(present.running, runs, strict=True):
        left = max(one.job.limit - one.elapsed, run)
        jobs.append(Job(0, 0, run, left, one.job.size))
        sizes.append(one.job.size)
    for job, run in zip(present.waiting, waits, strict=True):
        if job.size <= present.machines:  # else it waits for ever, and Slurm passes it over
            jobs.append(Job(0, 0, run, max(job.limit, run), job.size))
            sizes.append(job.size)
    jobs.append(Job(0, 0, 1, max(wish.limit, 1), wish.size))
    sizes.append(wish.size)
    # What runs is more than there is where nodes went down meanwhile: they stay until its end.
    return easy.starts(jobs, max(present.machines, present.used), sizes)[len(jobs) - 1]
