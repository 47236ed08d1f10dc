"""Simulates several scenarios of one history, on all cores, and equal ones only once.

The figures are those of a serial run, in the order of the scenarios: a run depends on nothing but
its jobs and its scenario.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from msgspec.structs import replace

from slurm_elastic.policies.growth.release import Delayed, Idle
from slurm_elastic.simulate.engine import Progress, simulate
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.kept import KeptResults

MIN_JOBS = 2000
"""With fewer jobs a further process costs more than it saves."""


def figures_of(
    jobs: Jobs,
    scenarios: Sequence[Scenario],
    origin: int,
    advance: Progress | None = None,
    cores: int | None = None,
    kept: KeptResults | None = None,
) -> Iterator[Figures]:
    """Yield the figures of each scenario as soon as they and those before them are known.
    ``origin``: see ``simulate``. ``advance`` gets the number of jobs simulated since its last call.
    ``cores``: the processes at most; None: one for each core that this process may use. ``kept``:
    has figures that need no simulation, and gets the others. Raises SlurmElasticError as
    ``simulate``.
    """
    different: list[Scenario] = []
    places = [_place_of(plain(scenario), different) for scenario in scenarios]
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    resumed = [kept.get(scenario) if kept is not None else None for scenario in different]
    missing = [one for one, has in zip(different, resumed, strict=True) if has is None]
    workers = min(cores, len(missing)) if len(jobs) >= MIN_JOBS else 1
    run = _serially if workers <= 1 else _in_processes
    known: list[Figures] = []
    results = run(jobs, missing, origin, advance, workers)
    for place in places:
        while len(known) <= place:
            figures = resumed[len(known)]
            if figures is None:
                figures = next(results)
                if kept is not None:
                    kept.put(different[len(known)], figures)
            elif advance is not None:
                advance(len(jobs))
            known.append(figures)
        yield known[place]


def plain(scenario: Scenario) -> Scenario:
    """The scenario with the plainest names of its policies. Two scenarios with the same plain form
    have the same figures.
    """
    return replace(scenario, pools=tuple(map(_plain_pool, scenario.pools)))


def _plain_pool(pool: PoolModel) -> PoolModel:
    release = pool.release
    # ``Delayed.due`` counts the idle time alone where nothing is paid ahead.
    if isinstance(release, Delayed) and not (pool.public and pool.billing.lease > 1):
        return replace(pool, release=Idle(release.on_premises))
    return pool


def _place_of(scenario: Scenario, different: list[Scenario]) -> int:
    if scenario not in different:
        different.append(scenario)
    return different.index(scenario)


def _serially(
    jobs: Jobs, scenarios: Sequence[Scenario], origin: int, advance: Progress | None, _: int
) -> Iterator[Figures]:
    for scenario in scenarios:
        yield simulate(jobs, scenario, origin, advance).figures


def _in_processes(
    jobs: Jobs, scenarios: Sequence[Scenario], origin: int, advance: Progress | None, workers: int
) -> Iterator[Figures]:
    # Forked, so that the processes share the memory of the jobs.
    forked = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(
        workers, mp_context=forked, initializer=_take, initargs=(jobs, scenarios, origin)
    )
    try:
        for figures in pool.map(_simulated, range(len(scenarios))):
            if advance is not None:
                advance(len(jobs))
            yield figures
    finally:
        # An interrupted search waits for no run that has not begun.
        pool.shutdown(cancel_futures=True)


_work: tuple[Jobs, Sequence[Scenario], int]
"""In a forked process: what it simulates."""


def _take(*work: object) -> None:
    global _work
    # An interruption of the terminal reaches each process. The first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work = work  # type: ignore[assignment]


def _simulated(place: int) -> Figures:
    jobs, scenarios, origin = _work
    return simulate(jobs, scenarios[place], origin).figures
