"""From slurmctld's call to the last machine asked for: time, processor, calls, at 1 to 5000 nodes.

The program that slurmctld runs is compared with a Python that does nothing, the launches with one
bare RunInstances against the same emulated EC2 (the sandbox's), and the whole with AWS
ParallelCluster's slurm_resume against the same emulation of AWS. Slurm's commands answer at once.
The processor time is that of the program, the daemon from its rest on, and their children.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks import peer
from benchmarks.peer import Peer
from benchmarks.report import Report, Row, bounded, compared, median, noted, quantile, report
from benchmarks.resume_runs import PYTHON, Bench, Measured, Program, bench, drain, listening, timed

MAX_LAUNCH = 1000
"""Machines of one RunInstances."""
MAX_SCONTROL = 5
_ENV = {"PATH": "/sbin:/bin:/usr/sbin:/usr/bin"}


class Plan(Struct, frozen=True, kw_only=True):
    """How much to run: nodes to (runs of ours, runs of the peer), and runs of the program."""

    runs: dict[int, tuple[int, int]]
    program: int
    seconds: float


FULL = Plan(runs={1: (5, 3), 1000: (5, 3), 5000: (2, 1)}, program=100, seconds=150)
QUICK = Plan(runs={1: (1, 1), 20: (1, 1)}, program=5, seconds=60)


class Samples(Struct, kw_only=True):
    """The runs for one number of nodes."""

    ours: list[Measured]
    bare: list[float]
    same: list[float]
    peer: list[Measured]


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench resume_path")
    parser.add_argument("--quick", action="store_true", help="few nodes, one run of each")
    parser.add_argument(
        "--no-peer", action="store_true", help="ParallelCluster's figures of an earlier measurement"
    )
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    until = time.monotonic() + plan.seconds
    with tempfile.TemporaryDirectory(prefix="resume-path-") as name, bench(Path(name)) as place:
        rival = None if options.no_peer else open_peer(Path(name))
        rows = program_rows(Path(name), plan)
        for count, repeats in plan.runs.items():
            samples = sample(place, rival, count, repeats, until)
            for part in (launch_rows, call_rows, peer_rows):
                rows += part(count, samples)
        rows.append(many_jobs_row(place, rival, max(plan.runs)))
        rows.append(noted("daemon's start, once", middle(samples.ours, start_of), "s cpu"))
    return report("resume_path", rows)


def open_peer(directory: Path) -> Peer | None:
    """The peer; None, and a word on stderr, where it cannot be installed."""
    python = peer.install()
    if isinstance(python, Path):
        return Peer(python, directory)
    print(f"no ParallelCluster, earlier figures stand in: {python}", file=sys.stderr)
    return None


def nodes(count: int) -> str:
    """So many nodes in words."""
    return f"{count} node{'' if count == 1 else 's'}"


def nodes_of(count: int) -> list[str]:
    """The first nodes of the pool."""
    return [f"pub{n}" for n in range(1, count + 1)]


# What slurmctld runs.


def program_rows(directory: Path, plan: Plan) -> list[Row]:
    """The installed program, a job for each node, in turn with a Python that does nothing."""
    counts = list(plan.runs)
    few, most = min(counts), max(counts)
    bare, ours = program_times(directory, [*((n, n) for n in counts), (most, 1)], plan.program)
    rows = [
        compared(
            f"{nodes(count)}: program p{percent} / python3",
            quantile(ours[count, count], percent / 100),
            quantile(bare, percent / 100),
            "ms",
            at_most=3,
        )
        for count in counts
        for percent in (50, 95)
    ]
    # Slurm's own file about the jobs grows with their number: flat cannot be quite flat there.
    middles = {shape: median(times) for shape, times in ours.items()}
    one_job, many_jobs, least = middles[most, 1], middles[most, most], middles[few, few]
    return [
        *rows,
        compared(f"{most} / {few} nodes: program p50, 1 job", one_job, least, "ms", at_most=1.5),
        compared(f"{most} / {few} nodes: program p50", many_jobs, least, "ms", at_most=2),
    ]


def program_times(
    directory: Path, shapes: Sequence[tuple[int, int]], repeats: int
) -> tuple[list[float], dict[tuple[int, int], list[float]]]:
    """Wall clock (ms) of a bare Python, and of the program by (nodes, jobs)."""
    place = directory / "program"
    place.mkdir()
    program = Program(place)
    bare: list[float] = []
    ours: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    with listening(program.state) as wake:
        for _ in range(repeats + 1):
            bare.append(timed([PYTHON, "-I", "-c", "pass"], _ENV).wall * 1000)
            for count, jobs in shapes:
                ours[count, jobs].append(program.run(nodes_of(count), jobs).wall * 1000)
            program.forget()
            drain(wake)
    # The first fills the page cache.
    return bare[1:], {shape: times[1:] for shape, times in ours.items()}


# What the daemon does with it.


def sample(
    place: Bench, rival: Peer | None, count: int, repeats: tuple[int, int], until: float
) -> Samples:
    """Runs in turn, so that a busy moment of the machine meets all; fewer when it is late."""
    found = Samples(ours=[], bare=[], same=[], peer=[])
    for number in range(repeats[0]):
        if number and time.monotonic() > until:
            break
        found.bare.append(place.bare(count))
        found.ours.append(place.ours(nodes_of(count), jobs=1))
        found.same.append(place.bare_same(count))
        if number < repeats[1]:
            found.peer += attempt(rival, count, jobs=1)
    return found


def attempt(rival: Peer | None, count: int, jobs: int) -> list[Measured]:
    """A run of the peer, if there is one and it succeeds."""
    if rival is None:
        return []
    try:
        return [rival.run(count, jobs)]
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"ParallelCluster fails at {count} nodes: {error}", file=sys.stderr)
        return []


def launch_rows(count: int, samples: Samples) -> list[Row]:
    """Request to the last launch acknowledged."""
    launched = middle(samples.ours, lambda m: m.acknowledged)
    goal = 1.5 if count == MAX_LAUNCH else None
    bare, same = median(samples.bare), median(samples.same)
    return [
        compared(f"{nodes(count)}: launched / bare call", launched, bare, "s", at_most=goal),
        compared(f"{nodes(count)}: launched / bare, tagged", launched, same, "s"),
    ]


def call_rows(count: int, samples: Samples) -> list[Row]:
    """Calls, the most of any run."""
    launches = max(m.launches for m in samples.ours)
    scontrol = max(m.scontrol for m in samples.ours)
    limit = math.ceil(count / MAX_LAUNCH)
    return [
        bounded(f"{nodes(count)}: launch calls / limit", launches, limit, "calls"),
        bounded(f"{nodes(count)}: scontrol / limit", scontrol, MAX_SCONTROL, "calls"),
    ]


def peer_rows(count: int, samples: Samples) -> list[Row]:
    """All of it beside slurm_resume; without a counterpart for a number nobody measured."""
    known = peer.PUBLISHED.get(count)
    rivals = samples.peer or ([known] if known else [])
    name = "slurm_resume" if samples.peer else "slurm_resume, earlier"
    rows = []
    for what, value, unit, goal in _MEASURES:
        ours = middle(samples.ours, value)
        theirs = middle(rivals, value) if rivals else None
        rows.append(
            noted(f"{nodes(count)}: {what}", ours, unit)
            if theirs is None
            else compared(f"{nodes(count)}: {what} / {name}", ours, theirs, unit, at_most=goal)
        )
    return rows


def many_jobs_row(place: Bench, rival: Peer | None, count: int) -> Row:
    """As many jobs as nodes, where all else has one job of all nodes."""
    ours = place.ours(nodes_of(count), jobs=count)
    case = f"{nodes(count)}, {count} jobs: processor"
    theirs = attempt(rival, count, jobs=count)
    if not theirs:
        return noted(case, ours.cpu, "s cpu")
    return compared(f"{case} / slurm_resume", ours.cpu, theirs[0].cpu, "s cpu", at_most=0.5)


def middle(runs: Sequence[Measured], value: Callable[[Measured], float]) -> float:
    """The median of one thing measured."""
    return median([value(run) for run in runs])


def start_of(run: Measured) -> float:
    """The daemon's processor time before it came to rest."""
    return run.start_cpu


_MEASURES: Sequence[tuple[str, Callable[[Measured], float], str, float | None]] = (
    ("processor", lambda m: m.cpu, "s cpu", 0.5),
    ("outside the cloud", lambda m: m.outside, "s", None),
    ("all", lambda m: m.wall, "s", None),
    ("memory", lambda m: m.megabytes, "MB", None),
    ("AWS calls", lambda m: m.calls, "calls", None),
    ("Slurm commands", lambda m: m.scontrol + m.sinfo, "calls", None),
)
