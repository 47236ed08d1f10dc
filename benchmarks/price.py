"""Forecasts of starts on three held-back months of public histories, beside an estimate by limits.

Each month is played through by the simulator. One job in so many has its start forecast at its
submission, from the jobs that run and wait then and from the habits of all jobs that had ended by
then. The reference takes time limits as run times, as Slurm's own estimate does.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Iterator, Sequence

from msgspec import Struct

from benchmarks.report import Report, Row, bounded, compared, holds, noted, report
from benchmarks.traces import history
from slurm_elastic.policies.launch.habits import Habits, RequestedJob
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.queues import easy
from slurm_elastic.simulate.studies import start_forecast
from slurm_elastic.simulate.studies.start_forecast import Present, RunningJob, quantile

MONTH = 30 * 86400
NEAR, EXACT, BAND = 60, 0.65, (0.75, 0.85)


class Month(Struct, frozen=True, kw_only=True):
    """A month of a history: after so many, on so many machines of so many processors."""

    name: str
    history: str
    after: int
    machines: int
    processors: int = 1
    partition: int | None = None
    every: int = 8


MONTHS = (
    Month(name="SP2", history="SDSC-SP2-1998-4.2-cln", after=12, machines=128),
    Month(name="KTH", history="KTH-SP2-1996-2.1-cln", after=7, machines=100),
    Month(
        name="DS", history="SDSC-DS-2004-2.1-cln", after=8, machines=171, processors=8, partition=2
    ),
)


class Forecast(Struct, frozen=True, kw_only=True):
    """Seconds from a job's submission to its start: what it was, what was told, what limits say."""

    was: int
    told: tuple[int, ...]
    limits: int


def main(arguments: Sequence[str]) -> Report:
    """All months that are at hand; with ``--slurmctld`` a slice of one on a real one, too."""
    parser = argparse.ArgumentParser(prog="scripts/bench price")
    parser.add_argument("--slurmctld", type=int, nargs="?", const=40, default=0, metavar="JOBS")
    parser.add_argument("--no-months", action="store_true", help="the real one alone")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for month in () if options.no_months else MONTHS:
        path = history(month.history)
        if path is not None:
            began = time.process_time()
            found = list(forecasts(swf.load(path).jobs, month))
            took = (time.process_time() - began) / max(len(found), 1)
            rows += _rows(month, found, took)
    path = history(MONTHS[0].history)
    if options.slurmctld and path is not None:
        rows += _on_slurmctld(swf.load(path).jobs, options.slurmctld)
    return report("price", rows)


def _on_slurmctld(jobs: Jobs, count: int) -> Iterator[Row]:
    # Not what the months need, which run without Slurm.
    from benchmarks.price_slurmctld import SLICE, cases, replayed

    machines = MONTHS[0].machines
    learnt = list(cases(jobs, SLICE - 3000, 3000, machines))
    found = replayed(learnt, list(cases(jobs, SLICE, count, machines)))
    yield noted("slurmctld: jobs", len(found), "jobs")
    yield noted("slurmctld: band", _held(found), "share")
    error, limits = _miss(found), _miss_by_limits(found)
    goal = 1.0 if error or limits else None  # where nobody waits both are right
    yield compared("slurmctld: mean error", error, limits, "s", at_most=goal)


def forecasts(jobs: Jobs, month: Month) -> Iterator[Forecast]:
    """The forecasts for every so many of the month's jobs, as each is submitted."""
    jobs, sizes = _on_machines(jobs, month)
    starts = easy.starts(jobs, month.machines, sizes)
    asked = [
        RequestedJob(size=size, limit=limit, user=str(user), account=str(account))
        for size, limit, user, account in zip(
            sizes, jobs.limit, jobs.user, jobs.account, strict=True
        )
    ]
    ends = [start + run for start, run in zip(starts, jobs.run, strict=True)]
    order, ended, habits = sorted(range(len(jobs)), key=ends.__getitem__), 0, Habits()
    begin = jobs.submit[0] + month.after * MONTH
    here: list[int] = []
    wanted = 0
    for number, now in enumerate(jobs.submit):
        if now >= begin + MONTH:
            return
        if now >= begin:
            wanted += 1
            if wanted % month.every == 1:
                while ends[order[ended]] <= now:
                    habits.add(asked[order[ended]], jobs.run[order[ended]])
                    ended += 1
                here = [one for one in here if ends[one] > now]
                present = _present(here, starts, asked, now, number, month.machines)
                wish = asked[number]
                limits = start_forecast.by_limits(present, wish)
                yield Forecast(
                    was=starts[number] - now,
                    told=start_forecast.starts(present, wish, habits, seed=number),
                    limits=limits or 0,
                )
        here.append(number)


def _on_machines(jobs: Jobs, month: Month) -> tuple[Jobs, array[int]]:
    def size(procs: int) -> int:
        return -(-procs // month.processors)

    kept = jobs.only([
        number for number in range(len(jobs))
        if month.partition in (None, jobs.partition[number])
        and size(jobs.procs[number]) <= month.machines
    ])  # fmt: skip
    return kept, array("q", [size(procs) for procs in kept.procs])


def _present(
    here: Sequence[int],
    starts: Sequence[int],
    asked: Sequence[RequestedJob],
    now: int,
    me: int,
    most: int,
) -> Present:
    """As it was just before job ``me`` came. Jobs that end in this second have ended."""
    began = [one for one in here if starts[one] < now or (starts[one] == now and one < me)]
    begun = set(began)
    return Present(
        machines=most,
        running=tuple(RunningJob(job=asked[one], elapsed=now - starts[one]) for one in began),
        waiting=tuple(asked[one] for one in here if one not in begun),
    )


def _rows(month: Month, found: Sequence[Forecast], took: float) -> Iterator[Row]:
    waited = [one for one in found if one.was > 0]
    near, held, name = _near(found), _held(found), month.name
    ok = near >= EXACT or BAND[0] <= held <= BAND[1]
    goal = f"{BAND[0]}-{BAND[1]}, or {EXACT} near"
    yield compared(f"{name}: within 60 s", near, _near_by_limits(found), "share")
    yield holds(f"{name}: band", held, "share", ok=ok, goal=goal)
    yield noted(f"{name}: band, waited", _held(waited), "share")
    error, limits = _miss(found), _miss_by_limits(found)
    yield compared(f"{name}: mean error", error, limits, "s", at_most=0.8)
    yield bounded(f"{name}: a forecast", took, 1.0, "s")


def _near(found: Sequence[Forecast]) -> float:
    hits = sum(abs(one.was - quantile(one.told, 0.5)) <= NEAR for one in found)
    return hits / max(len(found), 1)


def _near_by_limits(found: Sequence[Forecast]) -> float:
    return sum(abs(one.was - one.limits) <= NEAR for one in found) / max(len(found), 1)


def _held(found: Sequence[Forecast]) -> float:
    hits = sum(quantile(f.told, 0.1) <= f.was <= quantile(f.told, 0.9) for f in found)
    return hits / max(len(found), 1)


def _miss(found: Sequence[Forecast]) -> float:
    return sum(abs(f.was - quantile(f.told, 0.5)) for f in found) / max(len(found), 1)


def _miss_by_limits(found: Sequence[Forecast]) -> float:
    return sum(abs(f.was - f.limits) for f in found) / max(len(found), 1)
