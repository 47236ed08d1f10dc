"""Replays a month's own jobs with and without public clouds, and under other policies.

The report of the month shows the result: the hours of waiting that the clouds avoided, and what
mean wait each budget would buy. The site's own configuration is simulated, too, so that both sides
of each comparison have the same errors.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.units import brief
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.setting import NONE, Setting
from slurm_elastic.simulate.studies.certainty import Interval
from slurm_elastic.simulate.studies.policy_search import search
from slurm_elastic.simulate.studies.search import Tried, apart, grid

MAX_POINTS = 8  # of the curve; more points would touch each other on a page
SEEDS = 3  # runs of the configuration, each with other random choices
BLOCKS = 28
"""The number of parts of the history, about a day each, from which the range is drawn at random."""
DRAWS = 1000
ROUNDS = 2
_LOW, _HIGH = 0.05, 0.95
_COMPARED_BY, _SEEDED_BY = 0.5, 0.6
"""The shares of the time after which the comparison and the other seeds must have ended."""
BOOT_KEY = "policies.expected_boot_time"
OVERLOAD_S = 86400
"""A shorter history says nothing about months: a few jobs submitted together always exceed it."""
OVERLOAD = (
    "the site's own machines are too few for this work: without clouds the queue would grow from "
    "month to month, and the hours of waiting avoided count only this month's jobs"
)


class CurvePoint(Struct, frozen=True, kw_only=True, rename={"mean_wait": "mean_wait_s"}):
    """The dollars that a policy costs on the history, and its mean wait (s)."""

    policy: str
    dollars: float
    mean_wait: float


class Replay(Struct, frozen=True, kw_only=True):
    """``configured``: under the site's configuration. ``without``: without public clouds (None:
    ``no_comparison`` says why not). ``never``: how many jobs would then never run.

    ``avoided``: hours of waiting that the clouds avoided, over the jobs that run in both cases, and
    the range in which 9 of 10 draws of the month's days and of the random choices lie. ``curve``:
    the shortest mean wait for each amount of money, cheapest first. ``tried``: the number of
    policies behind it. ``is_complete``: the time was enough for all of them. ``on_demand_pools``:
    pools that may buy spot machines, simulated at on-demand prices for want of spot prices.
    """

    jobs: int
    configured: CurvePoint
    without: CurvePoint | None
    never: int
    avoided: Interval | None
    curve: tuple[CurvePoint, ...]
    tried: int
    is_complete: bool
    no_comparison: str = ""
    on_demand_pools: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _TimeIsUp(Exception):  # noqa: N818 - no error: the replay goes on with its results so far
    """Raised out of a simulation when its time is over."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in the block after so many seconds. Only for a process's main thread.

    A signal is the only way to end a simulation in the middle: one with a long queue takes minutes
    between two arrivals of jobs.
    """

    def end(_: int, __: FrameType | None) -> NoReturn:
        raise _TimeIsUp

    earlier_handler = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier_handler)


def replay(setting: Setting, seconds: float) -> Replay:
    """Simulate for so many seconds at most. SlurmElasticError if they are too few to simulate the
    site's own configuration.
    """
    began_at = time.monotonic()

    def seconds_left(share: float) -> float:
        """Seconds until this share of the time is used."""
        return began_at + share * seconds - time.monotonic()

    scenario, start = setting.scenario(CONFIGURED), setting.history.start
    try:
        with _time_limit(seconds):
            outcomes = [simulate(setting.jobs, scenario, start)]
    except _TimeIsUp:
        raise SlurmElasticError(
            f"the simulation of {len(setting.jobs):,} jobs takes longer than {brief(seconds)}"
        ) from None
    configured = Tried(policy=CONFIGURED, figures=outcomes[0].figures)
    without, no_comparison = _without_clouds(setting, seconds_left(_COMPARED_BY))
    if without is not None:
        outcomes += _other_seeds(setting, outcomes[0], seconds_left(_SEEDED_BY))
    tried = [configured]
    never = 0
    if without is not None:
        never = max(configured.figures.jobs - without.figures.jobs, 0)
        if not never:  # else its mean wait is of other jobs
            tried.append(Tried(policy=NONE, figures=without.figures))
    is_complete = _search(setting, tried, seconds_left(1.0))
    curve = _thinned(apart(_front(tried), keep=(configured,)), MAX_POINTS)
    # The configuration may lie below the steps between the points that are left.
    curve = _front([*(point for point in curve if point is not configured), configured])
    avoided = avoided_hours(outcomes, without) if without else None
    return Replay(
        jobs=configured.figures.jobs,
        configured=_point(configured),
        without=_point(Tried(policy=NONE, figures=without.figures)) if without else None,
        never=never,
        avoided=avoided,
        curve=tuple(map(_point, curve)),
        tried=len(tried),
        is_complete=is_complete,
        no_comparison=no_comparison,
        notes=(
            *_boot_times(scenario),
            *setting.notes_for([CONFIGURED]),
            *(_overload(setting, without) if avoided and avoided.value > 0 else ()),
        ),
    )


def _other_seeds(setting: Setting, reference: RunResult, seconds: float) -> list[RunResult]:
    """Runs of the configuration with other random choices; no run if the configuration makes no
    random choice.
    """
    scenario, outcomes = setting.scenario(CONFIGURED), []
    with suppress(_TimeIsUp), _time_limit(seconds):
        for seed in range(1, SEEDS):
            other = replace(scenario, seed=scenario.seed + seed)
            outcome = simulate(setting.jobs, other, setting.history.start)
            if outcome.starts == reference.starts:
                break
            outcomes.append(outcome)
    return outcomes


def _without_clouds(setting: Setting, seconds: float) -> tuple[RunResult | None, str]:
    """The run without public clouds; None with the reason why there is none."""
    try:
        scenario = setting.scenario(NONE)
    except ConfigError:
        return None, "the site has no machines of its own, so without clouds no job would run"
    try:
        with _time_limit(seconds):
            return simulate(setting.jobs, scenario, setting.history.start), ""
    except _TimeIsUp:
        return None, (
            "the queue without clouds becomes too long to simulate in this time: the site's own "
            "machines are far too few for this work"
        )


def _boot_times(scenario: Scenario) -> tuple[str, ...]:
    """Notes with the boot times of the simulation, measured or assumed."""
    public = [pool for pool in scenario.pools if pool.public]
    pools_by_text: dict[str, list[str]] = {}
    for pool in sorted(public, key=lambda pool: pool.boot.seconds(1)):
        pools_by_text.setdefault(_boot_time(pool.boot), []).append(pool.name)
    if len(pools_by_text) == 1:
        return (f"each machine {next(iter(pools_by_text))}",)
    return tuple(
        f"each machine of {', '.join(pools)} {text}" for text, pools in pools_by_text.items()
    )


def _boot_time(boot: BootTimes) -> str:
    boot_s = brief(boot.seconds(1))
    if boot.measured:
        return f"boots in {boot_s}, the median of {boot.measured} measured boots"
    return f"is assumed to boot in {boot_s} ({BOOT_KEY})"


def _overload(setting: Setting, without: RunResult | None) -> tuple[str, ...]:
    """A note if the site's own machines could not do the work in the time of the history."""
    jobs = setting.jobs
    if without is None or not len(jobs) or jobs.submit[-1] - jobs.submit[0] < OVERLOAD_S:
        return ()
    work = sum(seconds * procs for seconds, procs in zip(jobs.run, jobs.procs, strict=True))
    room = sum(machines.pool.machines * machines.pool.procs for machines in without.pools)
    if work <= room * max(jobs.submit[-1] - jobs.submit[0], 1):
        return ()
    return (OVERLOAD,)


def _search(setting: Setting, tried: list[Tried], seconds: float) -> bool:
    """Add policies to ``tried`` until the time is over. Return False if some are missing."""
    # Every growth policy with one release policy first, so that a search that ends early has tried
    # different ones.
    names = [name for first in range(4) for name in grid()[first::4]]
    try:
        with _time_limit(seconds):
            for result in search(setting, names, ROUNDS, cores=1):
                tried.append(result)  # noqa: PERF402 - extend would lose them when the time is up
    except _TimeIsUp:
        return False
    return True


def avoided_hours(outcomes: Sequence[RunResult], without: RunResult) -> Interval:
    """Return how many hours longer all jobs together wait ``without`` clouds, on average over the
    ``outcomes`` with clouds, and its range over random draws of the history's parts.
    """
    by_outcome = [_hours_by_block(outcome, without) for outcome in outcomes]
    value = sum(map(sum, by_outcome)) / len(by_outcome)
    # A fixed seed: the same history gives the same range.
    chance = random.Random(0)  # noqa: S311 - no secret
    totals = []
    for _ in range(DRAWS):
        hours = chance.choice(by_outcome)
        totals.append(sum(chance.choices(hours, k=len(hours))))
    totals.sort()
    return Interval(value=value, low=totals[int(_LOW * DRAWS)], high=totals[int(_HIGH * DRAWS) - 1])


def _hours_by_block(outcome: RunResult, without: RunResult) -> list[float]:
    """Hours that jobs wait longer ``without`` clouds, by the part of the history in which they were
    submitted.
    """
    submits = outcome.jobs.submit
    first_submit = min(submits, default=0)
    block_s = max((max(submits, default=0) - first_submit) // BLOCKS + 1, 1)
    hours = [0.0] * BLOCKS
    for submit, start, other in zip(submits, outcome.starts, without.starts, strict=True):
        if start >= 0 and other >= 0:
            hours[(submit - first_submit) // block_s] += (other - start) / 3600
    return hours


def _front(tried: Sequence[Tried]) -> list[Tried]:
    """The policies that no other beats in both cost and mean wait, cheapest first. Of equals
    the configuration stays. Unlike ``search.front`` it tells amounts below a cent apart.
    """

    def rank(candidate: Tried) -> tuple[float, float, bool]:
        figures = candidate.figures
        return round(figures.cost, 6), figures.mean_wait, candidate.policy != CONFIGURED

    best: list[Tried] = []
    for candidate in sorted(tried, key=rank):
        if not best or candidate.figures.mean_wait < best[-1].figures.mean_wait:
            best.append(candidate)
    return best


def _point(tried: Tried) -> CurvePoint:
    return CurvePoint(
        policy=tried.policy, dollars=tried.figures.cost, mean_wait=tried.figures.mean_wait
    )


def _thinned(points: Sequence[Tried], most: int) -> list[Tried]:
    """Return at most so many points, evenly spread over the list. The first, the last and the
    configuration's point always stay.
    """
    if len(points) <= most:
        return list(points)
    kept = {round(number * (len(points) - 1) / (most - 2)) for number in range(most - 1)}
    return [p for n, p in enumerate(points) if n in kept or p.policy == CONFIGURED]
