"""How much later a job begins under the root part than without, from TaskProlog to its first line.

Jobs of method criu and of none run in turns on one node in a container.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report, noted, report

TESTS = Path(__file__).resolve().parents[1] / "tests"
PROLOG = '#!/bin/sh\necho "print begun $(date +%s.%N)"\n'
SCRIPT = "#!/bin/bash\necho first $(date +%s.%N)\n"
METHODS = ("none", "criu")


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench launcher")
    parser.add_argument("--rounds", type=int, default=20, help="jobs of each method (default 20)")
    rounds = parser.parse_args(arguments).rounds
    sys.path.insert(0, str(TESTS))
    engines = importlib.import_module("realcloud.docker.engine")
    world = importlib.import_module("realcloud.docker.criu_world").CriuWorld
    with engines.running_engine() as engine:
        image, conf = engine.image("trixie"), "TaskProlog=/shared/task-prolog\n"
        with world(engine, image, nodes=1, conf=conf) as running:
            delays = _delays(running, rounds)
    medians = {method: statistics.median(found) for method, found in delays.items()}
    rows = [
        noted(f"{method}: {what}", 1000 * value, "ms")
        for method, found in delays.items()
        for what, value in (
            ("least", min(found)),
            ("median", medians[method]),
            ("most", max(found)),
        )
    ]
    added = medians["criu"] - medians["none"]
    return report("launcher", [*rows, noted("added to a job's start", 1000 * added, "ms")])


def _delays(world: Any, rounds: int) -> dict[str, list[float]]:  # noqa: ANN401 - of the tests
    """By method, the seconds of each job; the first pair, which warms caches, is left out."""
    prolog = world.shared / "task-prolog"
    prolog.write_text(PROLOG)
    prolog.chmod(0o755)
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    for turn in range(rounds + 1):
        for method in METHODS:
            job = world.sbatch(SCRIPT, "-o", "out-%j", f"--comment=ckpt={method}")
            world.wait_job(job, "COMPLETED")
            times = dict(line.split()[:2] for line in world.output(job))
            if turn:
                found[method].append(float(times["first"]) - float(times["begun"]))
    return found
