"""The peer of ``simulate``: AccaSim's EASY backfill with FirstFit, in its own environment.

It gets the very jobs that ours gets, as a history without memory (of which AccaSim knows nothing
unless its system has some); its time is that of the simulation alone, the history having been
parsed before. See ``accasim_probe``.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.environments import environment
from benchmarks.report import Row, at_least, compared
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.queues import easy

RELEASE = "1.1.3"
FASTER = 100
NEAR = 0.02
_LIMIT = 900.0
_PROBE = Path(__file__).with_name("accasim_probe.py")


class _Probed(Struct, frozen=True):
    """The output of ``accasim_probe``."""

    jobs: int
    seconds: float
    wait: float


def rows(name: str, jobs: Jobs, nodes: int, rounds: int) -> list[Row] | str:
    """Speed and mean wait of both on ``jobs``; or why AccaSim could not be run."""
    python = environment("accasim", RELEASE, f"accasim=={RELEASE}")
    if isinstance(python, str):
        return f"AccaSim cannot be installed ({python})"
    with tempfile.TemporaryDirectory(prefix="bench-accasim-") as directory:
        theirs = _run(python, jobs, nodes, Path(directory))
    if isinstance(theirs, str):
        return theirs
    if theirs.jobs != len(jobs):
        return f"AccaSim ran {theirs.jobs} of {len(jobs)} jobs"
    seconds, wait = _ours(jobs, nodes, rounds)
    what = f"{name}, {len(jobs)} jobs: static EASY, AccaSim's EASY with FirstFit"
    peer = len(jobs) / theirs.seconds
    return [
        at_least(what, len(jobs) / seconds, peer, "jobs/s", FASTER),
        _near(f"{name}, {len(jobs)} jobs: mean wait, AccaSim's", wait, theirs.wait),
    ]


def _near(case: str, ours: float, theirs: float) -> Row:
    """Ours beside AccaSim's, from which it may differ by a share."""
    row = compared(case, ours, theirs, "s")
    ok = abs(ours - theirs) <= NEAR * theirs
    return msgspec.structs.replace(row, goal=f"ratio 1 +- {NEAR:g}", ok=ok)


def _ours(jobs: Jobs, nodes: int, rounds: int) -> tuple[float, float]:
    """Processor seconds of the best round, and the mean wait."""
    best = math.inf
    for _ in range(rounds):
        before = time.process_time()
        starts = easy.starts(jobs, nodes)
        best = min(best, time.process_time() - before)
    return best, (sum(starts) - sum(jobs.submit)) / len(jobs)


def _run(python: Path, jobs: Jobs, nodes: int, directory: Path) -> _Probed | str:
    history = directory / "history.swf"
    with history.open("w") as file:
        file.writelines(f"{line}\n" for line in history_lines(jobs))
    command = [str(python), str(_PROBE), str(history), str(nodes), str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"AccaSim could not be run ({error})"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return f"AccaSim failed ({last})"
    return msgspec.json.decode(done.stdout, type=_Probed)


def history_lines(jobs: Jobs) -> list[str]:
    """The jobs in the Standard Workload Format; -1: not known."""
    columns = zip(jobs.number, jobs.submit, jobs.run, jobs.limit, jobs.procs, strict=True)
    return [
        f"{number} {submit} -1 {run} {procs} -1 -1 {procs} {limit} -1 1 -1 -1 -1 -1 -1 -1 -1"
        for number, submit, run, limit, procs in columns
    ]
