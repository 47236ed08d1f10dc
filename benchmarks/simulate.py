"""How many jobs a second the simulator does, beside a bare EASY loop in the same Python and one
in C that is compiled in the same run.

Each case is what `slurm-elastic simulate` calls for such a site, books and figures with it; reading
the history and printing are left out. The bare loops have none of the simulator's features: no
machines that come and go, no bills, no prices. Every case is run several times, in turns with the
bare loop; the best of each counts, as the machine may be shared. AccaSim does the first history,
too; with ``--all`` it does each, and the histories that were not at hand while this was built are
done as well, as many as the directory has. The defaults of a site are measured too: machines that
jobs share, growth by a policy, several clouds.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from benchmarks import accasim_peer
from benchmarks.bare_c import bare_easy_in_c
from benchmarks.bare_easy import bare_easy
from benchmarks.report import Report, Row, at_least, bounded, compared, holds, noted, report, spread
from benchmarks.traces import VARIABLE, history, others
from slurm_elastic.policies.growth.capacity import SemiElastic, Slurm
from slurm_elastic.policies.growth.release import Delayed, Idle
from slurm_elastic.simulate.bills.billing import Curve, Hourly
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.queues import easy
from slurm_elastic.simulate.scenario import PoolModel, Scenario

HISTORIES = (("SDSC-SP2-1998-4.2-cln", 128, 1), ("SDSC-DS-2004-2.1-cln", 1664, 8))
SHORT_JOBS = (("KTH-SP2-1996-2.1-cln", 100, 1), ("lublin_256", 256, 1))
"""Histories of many short jobs, on which the bare loop has little to do."""
PEERS = HISTORIES[0][0]
SHORT = 5000
GOALS = {"elastic": 0.3, "semi": 0.25}
"""Shares of the bare loop's speed."""
SHORT_GOAL = 0.25
C_GOALS = {"static": 0.3, "packing": 0.3, "semi packing": 0.1, "clouds": None}
"""Shares of the speed of a bare loop in C. Several clouds have no goal yet."""
BOOT = BootTimes(((1, 126), (2, 186), (4, 252), (8, 270), (16, 300)))


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench simulate")
    parser.add_argument("--rounds", type=int, default=3, help="of each case (default 3)")
    parser.add_argument(
        "--peer-jobs", type=int, metavar="N", help="AccaSim does the first N jobs (default: all)"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave AccaSim out")
    parser.add_argument(
        "--all", action="store_true",
        help="AccaSim does each history, and all others of the directory are done, too",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name, nodes, procs in HISTORIES:
        path = history(name)
        if path is None:
            print(f"{name}: not at hand, its rows are left out (set ${VARIABLE})", file=sys.stderr)
            continue
        title, jobs = "-".join(name.split("-")[:2]), swf.load(path).jobs
        rows += of_history(title, jobs, nodes, procs, options)
        rows += beside_c(title, jobs, nodes, procs, options)
        if (options.all or name == PEERS) and not options.no_peer:
            rows += beside_accasim(title, jobs, nodes, options)
    for name, nodes, procs in SHORT_JOBS:
        path = history(name)
        if path is not None:
            title, jobs = "-".join(name.split("-")[:2]), swf.load(path).jobs
            rows += of_short_jobs(title, jobs, nodes, procs, options)
            if options.all and not options.no_peer:
                rows += beside_accasim(title, jobs, nodes, options)
    rows += spreads(rows, "histories")
    if options.all:
        rows += of_others(options)
    return report("simulate", rows)


def of_others(options: argparse.Namespace) -> Sequence[Row]:
    """Histories that nobody had while this was built, on as many nodes of one processor as they
    say, or as their largest job needs.
    """
    rows: list[Row] = []
    for name in others([known for known, _, _ in (*HISTORIES, *SHORT_JOBS)]):
        path = history(name)
        assert path is not None
        found = swf.load(path)
        said = found.header.get("MaxProcs", "")
        nodes = max(int(said) if said.isdecimal() else 1, *found.jobs.procs)
        rows += of_short_jobs(name, found.jobs, nodes, 1, options)
        if not options.no_peer:
            rows += beside_accasim(name, found.jobs, nodes, options)
    return [*rows, *spreads(rows, "histories that were not at hand while this was built")]


def spreads(rows: Sequence[Row], which: str) -> list[Row]:
    """Over these histories: least, median and most of what is compared on each."""
    found: list[Row] = []
    for what, unit in (
        ("elastic, spot", "of bare"), ("elastic, hourly leases", "of bare"),
        ("AccaSim's EASY with FirstFit", "times"), ("mean wait, AccaSim's", "times"),
    ):  # fmt: skip
        ratios = [row.ratio for row in rows if row.case.endswith(what) and row.ratio is not None]
        if len(ratios) > 1:
            found += spread(what, ratios, unit, which)
    return found


def agreed(name: str, jobs: Jobs, nodes: int) -> Row:
    """Whether the static EASY starts each job when the bare loop does."""
    pairs = zip(easy.starts(jobs, nodes), bare(jobs, nodes), strict=True)
    unlike = sum(ours != theirs for ours, theirs in pairs)
    title = f"{name} static EASY: starts unlike the bare loop's"
    return holds(title, unlike, f"of {len(jobs)}", ok=not unlike, goal="0")


def beside_accasim(name: str, jobs: Jobs, nodes: int, options: argparse.Namespace) -> Sequence[Row]:
    if options.peer_jobs:
        jobs = jobs.only(range(min(options.peer_jobs, len(jobs))))
    found = accasim_peer.rows(name, jobs, nodes, options.rounds)
    if isinstance(found, str):
        print(f"{found}: its rows are left out", file=sys.stderr)
        return ()
    return found


def of_history(
    name: str, jobs: Jobs, nodes: int, procs: int, options: argparse.Namespace
) -> list[Row]:
    first = jobs.only(range(SHORT))
    slices = [jobs.only(range(at, min(at + SHORT, len(jobs)))) for at in range(0, len(jobs), SHORT)]
    cases: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(jobs, nodes),
        "bare 5k": lambda: bare(first, nodes),
        "static": lambda: simulate(jobs, static(nodes)),
        "static 5k": lambda: simulate(first, static(nodes)),
        "static slices": lambda: [simulate(some, static(nodes)) for some in slices],
        "elastic": lambda: simulate(jobs, elastic(procs, jobs)),
        "elastic 5k": lambda: simulate(first, elastic(procs, first)),
        "semi": lambda: simulate(jobs, semi_elastic(procs)),
        "semi 5k": lambda: simulate(first, semi_elastic(procs)),
    }
    lengths = {case: SHORT if case.endswith("5k") else len(jobs) for case in cases}
    best = fastest(cases, options.rounds)
    speed = {case: lengths[case] / seconds for case, seconds in best.items()}
    rows = [at_least(f"{name} static EASY", speed["static"], speed["bare"], "jobs/s", 0.5)]
    for case, title in (("elastic", "elastic, spot"), ("semi", "elastic, hourly leases")):
        least = GOALS[case]
        rows.append(at_least(f"{name} {title}", speed[case], speed["bare"], "jobs/s", least))
    for case in ("bare", "static", "elastic", "semi"):
        long, short = speed[case], speed[f"{case} 5k"]
        title = f"{name} {case}: whole to first {SHORT}"
        goal = case != "bare"
        row = at_least(title, long, short, "jobs/s", 0.7)
        rows.append(row if goal else noted(title, long / short, "of its speed"))
    parts = speed["static"] / speed["static slices"]
    rows.append(noted(f"{name} static: whole to its {SHORT}s one by one", parts, "of their speed"))
    rows.append(bounded(f"{name} memory", memory(jobs, procs), 300, "bytes/job"))
    return [*rows, agreed(name, jobs, nodes)]


def beside_c(
    name: str, jobs: Jobs, nodes: int, procs: int, options: argparse.Namespace
) -> Sequence[Row]:
    """The defaults of a site beside the bare loop in C."""
    in_c = bare_easy_in_c()
    if in_c is None:
        print("no C compiler: the rows beside a loop in C are left out", file=sys.stderr)
        return ()
    first = jobs.only(range(SHORT))
    sites = {
        "static": static(nodes),
        "packing": packing(procs, Slurm()),
        "semi packing": packing(procs, SemiElastic()),
        "clouds": clouds(procs),
    }
    cases: dict[str, Callable[[], object]] = {
        "C": lambda: in_c(jobs.submit, jobs.run, jobs.limit, jobs.procs, nodes)
    }
    for case, site in sites.items():
        cases[case] = partial(simulate, jobs, site)
        cases[f"{case} 5k"] = partial(simulate, first, site)
    best = fastest(cases, options.rounds)
    floor = len(jobs) / best["C"]
    rows = [noted(f"{name} bare loop in C", floor, "jobs/s")]
    for case, goal in C_GOALS.items():
        speed, title = len(jobs) / best[case], f"{name} {case}: to the loop in C"
        row = compared(title, speed, floor, "jobs/s")
        rows.append(row if goal is None else at_least(title, speed, floor, "jobs/s", goal))
        if case != "static":
            short = SHORT / best[f"{case} 5k"]
            title = f"{name} {case}: whole to first {SHORT}"
            rows.append(at_least(title, speed, short, "jobs/s", 0.7))
    starts = easy.starts(jobs, nodes)
    found = in_c(jobs.submit, jobs.run, jobs.limit, jobs.procs, nodes)
    unlike = sum(ours != theirs for ours, theirs in zip(starts, found, strict=True))
    title = f"{name} static EASY: starts unlike those of the loop in C"
    return [*rows, holds(title, unlike, f"of {len(jobs)}", ok=not unlike, goal="0")]


def of_short_jobs(
    name: str, jobs: Jobs, nodes: int, procs: int, options: argparse.Namespace
) -> list[Row]:
    """The elastic cases on a history of many short jobs."""
    best = fastest(
        {
            "bare": lambda: bare(jobs, nodes),
            "elastic, spot": lambda: simulate(jobs, elastic(procs, jobs)),
            "elastic, hourly leases": lambda: simulate(jobs, semi_elastic(procs)),
        },
        options.rounds,
    )
    speed = {case: len(jobs) / seconds for case, seconds in best.items()}
    rows = [
        at_least(f"{name} {case}", speed[case], speed["bare"], "jobs/s", SHORT_GOAL)
        for case in best
        if case != "bare"
    ]
    return [*rows, agreed(name, jobs, nodes)]


def fastest(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Processor seconds of the best round of each case, the cases in turns."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for case, run in cases.items():
            gc.collect()
            before = time.process_time()
            run()
            best[case] = min(best[case], time.process_time() - before)
    return best


def bare(jobs: Jobs, nodes: int) -> Sequence[int]:
    return bare_easy(jobs.submit, jobs.run, jobs.limit, jobs.procs, nodes)


def static(nodes: int) -> Scenario:
    """The site's own nodes alone, as --compare none has it, with Slurm's bound on one look."""
    rack = PoolModel(name="static", machines=nodes, standing=nodes, public=False)
    return Scenario(pools=(rack,), depth=500)


def elastic(procs: int, jobs: Jobs) -> Scenario:
    """Slurm's own growth on spot machines, paid by the second, lost now and then."""
    begin, end = jobs.submit[0], jobs.submit[-1]
    points = [
        (when + later, machines)
        for when in range(begin, end + 1, 3 * 86400)
        for later, machines in ((0, 10**6), (2 * 86400, 0), (2 * 86400 + 3600, 10**6))
    ]
    market = SpotMarket(Curve.flat(0.6), available=points)
    return Scenario(
        pools=(
            PoolModel(
                name="cloud",
                machines=10**6,
                procs=procs,
                price=2.4,
                release=Idle(600),
                boot=BOOT,
                spot=market,
                check=60,
            ),
        ),
        growth=Slurm(),
    )


def semi_elastic(procs: int) -> Scenario:
    """SEC's: leases by the hour, a wait limit, releases at the lease's end."""
    pool = PoolModel(
        name="cloud",
        machines=10**6,
        procs=procs,
        price=2.4,
        billing=Hourly(),
        release=Delayed(before_end=60),
        boot=BOOT,
        check=60,
    )
    return Scenario(pools=(pool,), growth=SemiElastic())


def packing(procs: int, growth: Slurm | SemiElastic) -> Scenario:
    """What a site has by default: machines that jobs share, and the guard against useless ones."""
    cores = max(procs, 4)
    cloud = PoolModel(
        name="cloud", machines=10**6, procs=cores, shared=True, price=2.4, release=Idle(600),
        boot=BOOT, check=60,
    )  # fmt: skip
    return Scenario(pools=(cloud,), growth=growth, depth=500, guarded=True)


def clouds(procs: int) -> Scenario:
    """The same with three clouds of different prices, which each job uses in its own order."""
    (cloud,) = packing(procs, SemiElastic()).pools
    pools = (replace(cloud, name=f"cloud{n}", price=2.4 - 0.1 * n, machines=400) for n in range(3))
    return replace(packing(procs, Slurm()), pools=tuple(pools))


def memory(jobs: Jobs, procs: int) -> float:
    """Bytes that a run needs at its peak beside the history, a job."""
    tracemalloc.start()
    simulate(jobs.only(range(min(len(jobs), 20_000))), semi_elastic(procs))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / min(len(jobs), 20_000)
