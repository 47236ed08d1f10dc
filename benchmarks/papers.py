"""Results of five papers about elastic clusters, reproduced: their figure beside the simulator's.

Numbers in front are those of the list of claims that docs/papers.md explains. Rows that need a
public job history are left out where it is not at hand (see docs/papers.md); nothing is tuned per
row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.papers_standin import ec3_figure, ec3_table, steady_or_on_demand, users_vary, vhec
from benchmarks.report import Report, Row, holds, noted, report, within
from benchmarks.traces import VARIABLE, data, history
from slurm_elastic.policies.checkpoint.checkpoint import Hour
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    OnDemand,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Flagged, IdleOrder
from slurm_elastic.policies.planning.portfolio import ReservedClass, allocate, breakeven
from slurm_elastic.simulate import easy, swf
from slurm_elastic.simulate.billing import Curve, Hourly
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.jobs import Job, Jobs
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario

HOUR = 3600
SP2, DATASTAR = "SDSC-SP2-1998-4.2-cln", "SDSC-DS-2004-2.1-cln"
NEVER_SHORT = 10**9
THREE_YEARS = 3 * 365 * 24
ON_DEMAND = 2.40
LIGHT = ReservedClass(name="3Y-Light", term=THREE_YEARS, upfront=2710, price=0.904)
MEDIUM = ReservedClass(name="3Y-Medium", term=THREE_YEARS, upfront=6378, price=0.54)


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench papers")
    groups: dict[str, Callable[[], list[Row]]] = {
        "exact": exact, "easy": plain_easy, "sec": sec, "standin": stand_ins,
    }  # fmt: skip
    parser.add_argument("--only", choices=tuple(groups), help="one group of rows")
    options = parser.parse_args(arguments)
    chosen = [options.only] if options.only else list(groups)
    return report("papers", [row for name in chosen for row in groups[name]()])


def exact() -> list[Row]:
    """The figures that arithmetic alone decides: boots, bills, break-even points, bursts."""
    rows = []
    for kind, configure, totals in (
        ("ready images", (196, 232, 337), (236, 277, 672)),
        ("plain images", (661, 698, 702), (701, 743, 1037)),
    ):
        for boot, extra, total in zip((40, 45, 335), configure, totals, strict=True):
            pool = PoolModel(name="p", machines=1, boot=BootTimes(((1, boot),), extra))
            wait = simulate(serial(0), Scenario(pools=(pool,))).starts[0]
            rows.append(within(f"1 EC3 node ready, {kind}", wait, total, "s", 0))
    rows.append(within("2 EC3 on demand, 27 h", bill(27, 0.087), 2.349, "$", 0))
    spot = long_job(29, 0.0081)
    rows.append(within("3 EC3 spot, 29 h", spot.figures.spot, 0.2349, "$", 0))
    rows.append(within("3 EC3 checkpoints", spot.figures.checkpoints, 29, "", 0))
    rows.append(within("5 EC3 on demand, 719 h", bill(719, 0.067), 48.17, "$", 0.005))
    light = breakeven(LIGHT, None, ON_DEMAND) * 100
    rows.append(within("16 SEC break-even 3Y-Light", light, 6.89, "%", 0.1))
    medium = breakeven(MEDIUM, LIGHT, ON_DEMAND) * 100
    rows.append(within("16 SEC break-even 3Y-Medium", medium, 38.34, "%", 0.1))
    return rows + elastic_site()


def elastic_site() -> list[Row]:
    """Elastic Site's machine counts and who is quicker: twenty jobs at once, ten jobs ten seconds
    apart.
    """
    first = Jobs(Job(i, 0, 60, 120, 1) for i in range(20))
    second = Jobs(Job(i, 10 * i, 180, 180, 1) for i in range(10))
    bursts, demand = elastic(first, Bursts(180)), elastic(first, OnDemand())
    rows = [
        within("19 Elastic Site bursts, batch of 20", bursts.launched, 6, "VMs", 0),
        within("19 Elastic Site on demand, batch of 20", demand.launched, 10, "VMs", 0),
        # Four rounds of 60 s on six machines against two on ten: only boots that take two rounds
        # longer for ten than for six would turn it, and those by batch are only drawn.
        holds("19 Elastic Site bursts end first, batch of 20 (boots by batch only drawn)",
              bursts.makespan, "s", ok=bursts.makespan < demand.makespan,
              goal=f"< {demand.makespan:.0f}"),
    ]  # fmt: skip
    bursts, demand = elastic(second, Bursts(180)), elastic(second, OnDemand())
    steady = elastic(second, SteadyStream(180))
    least = steady.overhead < min(bursts.overhead, demand.overhead)
    return [
        *rows,
        holds("19 Elastic Site bursts, 10 jobs (paper: 7)", bursts.launched, "VMs",
              ok=5 <= bursts.launched <= 8, goal="5 to 8"),
        within("19 Elastic Site on demand, 10 jobs", demand.launched, 10, "VMs", 0),
        holds("19 Elastic Site on demand is quicker, 10 jobs", demand.makespan, "s",
              ok=demand.makespan < bursts.makespan, goal=f"< {bursts.makespan:.0f}"),
        holds("19 Elastic Site steady is slowest, 10 jobs", steady.makespan, "s",
              ok=steady.makespan > bursts.makespan, goal=f"> {bursts.makespan:.0f}"),
        holds("19 Elastic Site steady has least overhead, 10 jobs", steady.overhead, "s", ok=least,
              goal="lowest"),
    ]  # fmt: skip


class Elastic(NamedTuple):
    """Machines launched, seconds until the last job ends, machine-seconds without a job."""

    launched: int
    makespan: float
    overhead: float


def elastic(jobs: Jobs, growth: AnyGrowth) -> Elastic:
    boot = BootTimes(((1, 94.0), (10, 174.0)))
    pool = PoolModel(name="p", machines=10, release=Flagged(), boot=boot, clock=Clock.READY)
    figures = simulate(jobs, Scenario(pools=(pool,), growth=growth)).figures
    used = figures.pools[0]
    return Elastic(used.launched, figures.makespan, (used.hours - used.busy_hours) * HOUR)


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


def sec() -> list[Row]:
    """SEC (SC'13) on SDSC DataStar, sixteen processors a machine."""
    path = missing(DATASTAR)
    if path is None:
        return []
    everything = swf.load(path).jobs
    jobs = everything.only([job for job, run in enumerate(everything.run) if run > 0])
    alone = datastar(jobs, Slurm(), release=AtOnce(), reuse=False)
    ours = datastar(jobs, SemiElastic())
    nowait = datastar(jobs, Slurm())
    base = alone.figures
    saving = (ours.figures.cost / base.cost - 1) * 100
    faster = (ours.figures.mean_wait / base.mean_wait - 1) * 100
    cheaper = (nowait.figures.cost / base.cost - 1) * 100
    hybrid, shares, counts = reserved(ours)
    # Nearer to Individual (0) than to our own hybrid.
    between = hybrid < nowait.figures.cost < base.cost and (
        base.cost - nowait.figures.cost < nowait.figures.cost - hybrid
    )
    rows = [
        within("9 SEC on-demand cost to Individual", saving, -13.3, "%", 6),
        within("10 SEC hybrid cost to Individual", (hybrid / base.cost - 1) * 100, -61.0, "%", 5),
        within("11 SEC wait to Individual", faster, -24.2, "%", 8),
        within("12 NoWait mean wait", nowait.figures.mean_wait, 82, "s", 20),
        holds("12 NoWait cost to Individual", cheaper, "%", ok=between, goal="nearer Individual"),
        within("13 SEC share of 3Y-Medium hours", shares[0], 73.66, "%", 6),
        within("13 SEC share of 3Y-Light hours", shares[1], 15.75, "%", 6),
        holds("13 SEC share on demand", shares[2], "%", ok=shares[2] <= 11, goal="<= 11"),
        noted("13 SEC 3Y-Medium machines (paper: 72)", counts[0], ""),
        noted("13 SEC 3Y-Light machines (paper: 40)", counts[1], ""),
    ]
    return rows + orders(jobs, base.cost, ours) + limits(jobs, base.cost, ours)


def stand_ins() -> list[Row]:
    """Rows whose inputs are only described (see ``papers_standin``)."""
    rows = ec3_table() + steady_or_on_demand() + vhec()
    directory, path = data(), missing(DATASTAR)
    if directory is not None:
        rows += ec3_figure(directory)
    if path is not None:
        rows += users_vary(swf.load(path).jobs)
    return rows


def orders(jobs: Jobs, base: float, ours: RunResult) -> list[Row]:
    """14: which idle machines jobs get."""
    found = {IdleOrder.MAX_MARGIN: ours}
    for order in IdleOrder:
        found.setdefault(order, datastar(jobs, SemiElastic(), order=order))
    costs = {order: (one.figures.cost / base - 1) * 100 for order, one in found.items()}
    waits = {order: one.figures.mean_wait for order, one in found.items()}
    cheapest = min(costs, key=costs.__getitem__)
    quickest = min(waits, key=waits.__getitem__)
    rows = [
        holds(
            "14 SEC max_margin is the cheapest order",
            costs[IdleOrder.MAX_MARGIN],
            "%",
            ok=cheapest is IdleOrder.MAX_MARGIN,
            goal="lowest",
        ),
        holds(
            "14 SEC min_margin waits least",
            waits[IdleOrder.MIN_MARGIN],
            "s",
            ok=quickest is IdleOrder.MIN_MARGIN,
            goal="lowest",
        ),
        holds(
            "14 SEC min_margin is the dearest order",
            costs[IdleOrder.MIN_MARGIN],
            "%",
            ok=max(costs, key=costs.__getitem__) is IdleOrder.MIN_MARGIN,
            goal="highest",
        ),
        holds(
            "14 SEC max_margin waits longest",
            waits[IdleOrder.MAX_MARGIN],
            "s",
            ok=max(waits, key=waits.__getitem__) is IdleOrder.MAX_MARGIN,
            goal="highest",
        ),
    ]
    for order in IdleOrder:
        rows.append(noted(f"14 SEC {order}: cost to Individual", costs[order], "%"))
        rows.append(noted(f"14 SEC {order}: mean wait", waits[order], "s"))
    return rows


def limits(jobs: Jobs, base: float, ours: RunResult) -> list[Row]:
    """15: the wait limit, and what counts as a short job."""
    by_limit = [
        datastar(jobs, SemiElastic(wait_limit=0)),
        ours,
        datastar(jobs, SemiElastic(wait_limit=3600)),
    ]
    by_short = [
        datastar(jobs, SemiElastic(short=0)),
        ours,
        datastar(jobs, SemiElastic(short=NEVER_SHORT)),
    ]
    rows = []
    for name, values, runs in (
        ("wait limit", ("0 s", "300 s", "3600 s"), by_limit),
        ("short", ("0", "1 h", "never"), by_short),
    ):
        costs = [(run.figures.cost / base - 1) * 100 for run in runs]
        waits = [run.figures.mean_wait for run in runs]
        falls = costs == sorted(costs, reverse=True)
        rises = waits == sorted(waits)
        rows += [
            holds(f"15 SEC cost falls with {name}", costs[-1], "%", ok=falls, goal="monotone"),
            holds(f"15 SEC wait rises with {name}", waits[-1], "s", ok=rises, goal="monotone"),
        ]
        for value, cost, wait in zip(values, costs, waits, strict=True):
            rows.append(noted(f"15 SEC {name} {value}: cost to Individual", cost, "%"))
            rows.append(noted(f"15 SEC {name} {value}: mean wait", wait, "s"))
    return rows


def datastar(
    jobs: Jobs,
    growth: AnyGrowth,
    *,
    order: IdleOrder = IdleOrder.MAX_MARGIN,
    release: AnyRelease | None = None,
    reuse: bool = True,
) -> RunResult:
    """SEC's cluster: hourly machines, boots by batch (its Table 2), released within the last minute
    of their hour, looked at each minute.
    """
    pool = PoolModel(
        name="cc2.8xlarge",
        machines=10**6,
        procs=16,
        price=ON_DEMAND,
        billing=Hourly(),
        release=release or Delayed(before_end=60),
        boot=BootTimes(((1, 126), (2, 186), (4, 252), (8, 270), (16, 300))),
        check=60,
        clock=Clock.READY,
    )
    if isinstance(pool.release, AtOnce):
        pool = replace(pool, check=1)
    return simulate(jobs, Scenario(pools=(pool,), growth=growth, order=order, reuse=reuse))


def reserved(run: RunResult) -> tuple[float, list[float], list[int]]:
    """Dollars with reserved machines, each class's share of the hours (%), machines of each class.

    With perfect foresight: the j-th machine gets the class that its share of busy hours is worth
    over the whole history; upfront payments count by the history's part of the term.
    """
    concurrent = run.machines_by_hour()
    hours = len(concurrent)
    above = [0] * (max(concurrent) + 2)
    for count in concurrent:
        above[count] += 1
    for rank in range(len(above) - 2, -1, -1):
        above[rank] += above[rank + 1]
    shares = [above[rank] / hours for rank in range(1, len(above) - 1)]
    medium = sum(share >= breakeven(MEDIUM, LIGHT, ON_DEMAND) for share in shares)
    light = sum(share >= breakeven(LIGHT, None, ON_DEMAND) for share in shares) - medium
    used = allocate(concurrent, [(medium, MEDIUM.price), (light, LIGHT.price)])
    cost = (
        medium * MEDIUM.upfront * hours / MEDIUM.term
        + light * LIGHT.upfront * hours / LIGHT.term
        + used[0] * MEDIUM.price
        + used[1] * LIGHT.price
        + used[2] * ON_DEMAND
    )
    return cost, [100 * part / sum(used) for part in used], [medium, light]


def missing(name: str) -> Path | None:
    path = history(name)
    if path is None:
        print(f"{name}: not at hand, its rows are left out (set ${VARIABLE})", file=sys.stderr)
    return path
