"""Two heads with a real pair of slurmctld, struck again and again while jobs arrive: what is lost.

Each strike kills the acting head, our services alone, its host, or lets our services or all of
the head stand still for a minute, at a step of a launch, a suspend, a save, a requeue or an order,
or at a random moment; the seed draws which.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.report import Report, holds, noted, report

ROOT = Path(__file__).resolve().parents[1]
SOON = 5.0
"""Seconds after slurmctld's takeover in which our services are to act."""


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench failover")
    parser.add_argument("--kills", type=int, default=300, help="strikes (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="draws strikes and jobs")
    parser.add_argument(
        "--lanes", type=int, default=1,
        help="pairs of heads that are struck side by side, each by a seed of its own (default: 1)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    counts = importlib.import_module("e2e.failover_counts")
    shares = [options.kills // options.lanes] * options.lanes
    shares[0] += options.kills - sum(shares)
    with ProcessPoolExecutor(options.lanes, mp_context=get_context("fork")) as pool:
        lanes = [pool.submit(_run, n, options.seed + i) for i, n in enumerate(shares)]
    told = [lane.result() for lane in lanes if not lane.exception()]
    return _sums(counts.together(told), len(lanes) - len(told))


def _run(kills: int, seed: int) -> Any:  # noqa: ANN401 - the world of the tests, which are no package
    heads, failover, ckpt = (
        importlib.import_module(f"e2e.{name}") for name in ("heads", "failover", "ckpt")
    )

    def say(said: str) -> None:
        print(f"seed {seed}: {said}", file=sys.stderr, flush=True)

    try:
        with contextlib.contextmanager(heads.up)(**ckpt.SITE) as pair:
            found = failover.Failover(pair, seed, say).run(kills)
    except BaseException as error:
        say(f"not counted to its end: {error}")
        raise
    for line in (*found.wrong, f"strikes: {sum(found.strikes.values())}"):
        say(line)
    return found


def _sums(found: Any, unended: int) -> Report:  # noqa: ANN401 - as above
    rows = [
        noted("strikes", sum(found.strikes.values()), "strikes"),
        *(noted(f"... at {point}", n, "strikes") for point, n in sorted(found.points.items())),
        holds("pairs not counted to their end", unended, "", ok=not unended, goal="0"),
        noted("jobs", found.jobs, "jobs"),
        *(holds(what, len(w), "", ok=not w, goal="0") for what, w in found.zeros.items()),
        noted("jobs that Slurm forgot, or ended with its host", len(found.forgotten), "jobs"),
        noted("jobs whose notice ended while nobody acted", len(found.unheard), "jobs"),
        noted(
            "lines of a head that woke, in files that nobody reads any more", len(found.late), ""
        ),
        noted("moves that we made", found.moved, "moves"),
        noted("runs that Slurm began again", found.repeated, "runs"),
        noted("jobs that Slurm held, as it had used their number twice", found.held, "jobs"),
        noted("slurmctld that hung as it gave control back", found.hung, "times"),
        noted("the journal's sum", found.journal, "$"),
        noted("... by the clouds' bill", found.journal / max(found.bill, 1e-9), "x"),
    ]
    if found.actions:
        slowest = max(found.actions)
        rows += [
            noted("Slurm's takeover, median", statistics.median(found.takeovers), "s"),
            noted("our services act after it, median", statistics.median(found.actions), "s"),
            holds("... and at most", slowest, "s", ok=slowest <= SOON, goal=f"<= {SOON:g}"),
        ]
    return report("failover", rows)
