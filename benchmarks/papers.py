"""Results of five papers about elastic clusters, reproduced: their figure beside the simulator's.

Numbers in front are those of the list of claims that docs/papers.md explains. Rows that need a
public job history are left out where it is not at hand. A row whose own inputs decide its figure is
marked as an identity. A parameter that a paper does not print is varied, and its range is shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.papers_elastic_site import elastic_site
from benchmarks.papers_sec import breakevens, sec, users_vary
from benchmarks.papers_standin import ec3_figure, ec3_table, vhec
from benchmarks.report import Report, Row, identity, report, within
from benchmarks.traces import VARIABLE, data, history
from slurm_elastic.policies.checkpoint.checkpoint import Hour
from slurm_elastic.policies.growth.release import AtOnce
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.queues import easy
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

HOUR = 3600
SP2, DATASTAR = "SDSC-SP2-1998-4.2-cln", "SDSC-DS-2004-2.1-cln"


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench papers")
    groups: dict[str, Callable[[], list[Row]]] = {
        "exact": exact, "easy": plain_easy, "sec": semi_elastic, "standin": stand_ins,
    }  # fmt: skip
    parser.add_argument("--only", choices=tuple(groups), help="one group of rows")
    options = parser.parse_args(arguments)
    chosen = [options.only] if options.only else list(groups)
    return report("papers", [row for name in chosen for row in groups[name]()])


def exact() -> list[Row]:
    """The figures that need no history. The inputs of rows 1, 2, 3 and 5 are the paper's own sums,
    or its dollars divided by its price.
    """
    rows = []
    for kind, configure, totals in (
        ("ready images", (196, 232, 337), (236, 277, 672)),
        ("plain images", (661, 698, 702), (701, 743, 1037)),
    ):
        for boot, extra, total in zip((40, 45, 335), configure, totals, strict=True):
            pool = PoolModel(name="p", machines=1, boot=BootTimes(((1, boot),), extra))
            wait = simulate(serial(0), Scenario(pools=(pool,))).starts[0]
            rows.append(identity(f"1 EC3 node ready, {kind}", wait, total, "s"))
    rows.append(identity("2 EC3 on demand, 27 h", bill(27, 0.087), 2.349, "$"))
    spot = long_job(29, 0.0081)
    rows.append(identity("3 EC3 spot, 29 h", spot.figures.spot, 0.2349, "$"))
    rows.append(identity("3 EC3 checkpoints, one in each hour", spot.figures.checkpoints, 29, ""))
    rows.append(identity("5 EC3 on demand, 719 h", bill(719, 0.067), 48.17, "$", 0.005))
    return [*rows, *breakevens(), *elastic_site()]


def serial(run: int) -> Jobs:
    return Jobs([Job(1, 0, run, max(run, 1), 1)])


def bill(hours: int, price: float) -> float:
    pool = PoolModel(
        name="p", machines=1, price=price, billing=Hourly(), release=AtOnce(), clock=Clock.READY
    )
    return simulate(serial(hours * HOUR - 10), Scenario(pools=(pool,))).figures.cost


def long_job(hours: int, price: float) -> RunResult:
    """A job that holds a spot machine for so many hours, with a checkpoint of 160 s in each."""
    pool = PoolModel(
        name="p",
        machines=1,
        price=0.087,
        billing=Hourly(refund=True),
        release=AtOnce(),
        spot=SpotMarket(Curve.flat(price), bid=0.087),
        clock=Clock.READY,
    )
    how = Checkpoints(policy=Hour(margin=200), dump=160, restart=74, look=30)
    scenario = Scenario(pools=(pool,), checkpoints=how)
    return simulate(serial(hours * (HOUR - 160) - 10), scenario)


def plain_easy() -> list[Row]:
    """Plain EASY on 128 processors, against AccaSim's (EASY with first fit) on the same history."""
    path = missing(SP2)
    if path is None:
        return []
    jobs = swf.load(path).jobs
    starts = easy.starts(jobs, 128)
    waits = [start - submit for start, submit in zip(starts, jobs.submit, strict=True)]
    return [
        within("EASY jobs, SDSC-SP2", len(jobs), 54_044, "jobs", 0),
        within("EASY mean wait, SDSC-SP2", sum(waits) / len(waits), 21_516, "s", 430.3),
    ]


def semi_elastic() -> list[Row]:
    """SEC's rows, on its own history."""
    path = missing(DATASTAR)
    if path is None:
        return []
    jobs = swf.load(path).jobs
    return [*sec(jobs), *users_vary(jobs)]


def stand_ins() -> list[Row]:
    """Rows whose inputs are only described (see ``papers_standin``)."""
    directory = data()
    return [*ec3_table(), *vhec(), *(ec3_figure(directory) if directory is not None else ())]


def missing(name: str) -> Path | None:
    path = history(name)
    if path is None:
        print(f"{name}: not at hand, its rows are left out (set ${VARIABLE})", file=sys.stderr)
    return path
