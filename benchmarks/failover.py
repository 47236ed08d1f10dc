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
    options = parser.parse_args(arguments)
    return _sums(_run(options.kills, options.seed))


def _run(kills: int, seed: int) -> Any:  # noqa: ANN401 - the world of the tests, which are no package
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    heads = importlib.import_module("e2e.heads")
    failover = importlib.import_module("e2e.failover")
    ckpt = importlib.import_module("e2e.ckpt")
    with contextlib.contextmanager(heads.up)(**ckpt.SITE) as pair:
        told = failover.Failover(pair, seed, lambda said: print(said, file=sys.stderr))
        found = told.run(kills)
    print(
        *(f"{point}: {n}" for point, n in sorted(found.points.items())), sep="\n", file=sys.stderr
    )
    print(*found.wrong, sep="\n", file=sys.stderr)
    return found


def _sums(found: Any) -> Report:  # noqa: ANN401 - as above
    rows = [
        noted("strikes", sum(found.strikes.values()), "strikes"),
        noted("jobs", found.jobs, "jobs"),
        *(holds(what, len(w), "", ok=not w, goal="0") for what, w in found.zeros.items()),
        noted("jobs that Slurm forgot, or ended with its host", len(found.forgotten), "jobs"),
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
