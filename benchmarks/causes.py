"""Jobs on Slurm 24.11 with CRIU, each struck once by a cause: reclaim, limit, maintenance, ...

Each job counts, in containers, and is struck at a random moment by what takes its place: a
provider's notice, its own time limit, a maintenance, a job of higher priority, a drain with a date.
Its output is to have each step once, in order; work that was done twice is lost work.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, holds, noted, quantile, report

TESTS = Path(__file__).resolve().parents[1] / "tests"
WAVE = 10
"""Jobs of a cause that run side by side; a wave takes three minutes."""


def main(arguments: Sequence[str]) -> Report:
    world = _world()
    parser = argparse.ArgumentParser(prog="scripts/bench causes")
    parser.add_argument("--jobs", type=_jobs, default=40, metavar="N", help="of each cause (40)")
    parser.add_argument(
        "--causes", nargs="+", choices=world.CAUSES, default=world.CAUSES, metavar="CAUSE",
        help=f"these of {', '.join(world.CAUSES)}",
    )  # fmt: skip
    parser.add_argument("--wave", type=_jobs, default=WAVE, metavar="N", help="jobs side by side")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--release", default="trixie", choices=("trixie", "forky"))
    options = parser.parse_args(arguments)
    found = _run(world, options)
    rows = [row for cause in options.causes for row in _rows(cause, found)]
    return report("causes", [*rows, *_sums(found)])


def _jobs(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of jobs")
    return number


def _world() -> Any:  # noqa: ANN401 - the world of the tests, which are no package
    sys.path.insert(0, str(TESTS))
    return importlib.import_module("realcloud.docker.causes_world")


def _run(world: Any, options: argparse.Namespace) -> list[Any]:  # noqa: ANN401
    """The outcome of each; one line each on standard error as it is known."""
    engines = importlib.import_module("realcloud.docker.engine")

    def told(one: Any) -> None:  # noqa: ANN401
        print(
            f"{one.cause}: job {one.job} {one.state}, struck {one.struck}, image {one.image},"
            f" begun {one.begun}, missing {one.missing}, lost {one.lost:.1f} s, restarts"
            f" {one.restarts}, save {one.save:.2f} s, away {one.away:.1f} s; {one.why}",
            file=sys.stderr,
        )

    room = min(options.wave, options.jobs)
    with engines.running_engine() as engine:
        image = engine.image(options.release)
        with world.causes_world(engine, image, options.causes, room=room) as running:
            found: list[Any] = running.strike_all(options.jobs, options.seed, told)
            return found


def _rows(cause: str, found: Iterable[Any]) -> list[Row]:
    some = [one for one in found if one.cause == cause]
    struck = sum(one.struck for one in some)
    images = sum(one.image for one in some)
    return [
        holds(
            f"{cause}: struck by it", struck, "jobs", ok=struck == len(some), goal=f"{len(some)}"
        ),
        holds(
            f"{cause}: went on from an image", images, "jobs", ok=images == len(some),
            goal=f"{len(some)}",
        ),
        _none(f"{cause}: begun anew", sum(one.begun != 1 for one in some), "jobs"),
        _none(f"{cause}: wrong output", sum(not one.whole for one in some), "jobs"),
        _none(f"{cause}: work done twice", sum(one.lost for one in some), "s"),
        holds(
            f"{cause}: Slurm's restarts", sum(one.restarts for one in some), "restarts",
            ok=all(one.restarts == 1 for one in some), goal="one a job",
        ),
        noted(f"{cause}: a save, median", quantile([one.save for one in some], 0.5), "s"),
        noted(f"{cause}: not at work, median", quantile([one.away for one in some], 0.5), "s"),
    ]  # fmt: skip


def _sums(found: Sequence[Any]) -> list[Row]:
    return [
        noted("jobs", len(found), "jobs"),
        _none("lost", sum(one.begun != 1 or not one.image for one in found), "jobs"),
        _none("wrong", sum(not one.whole for one in found), "jobs"),
        _none("steps missing, twice or out of order", sum(one.missing for one in found), "steps"),
        _none("work lost beyond the save's own time", sum(one.lost for one in found), "s"),
        noted("a save, 95 %", quantile([one.save for one in found], 0.95), "s"),
    ]


def _none(case: str, count: float, unit: str) -> Row:
    return holds(case, count, unit, ok=not count, goal="0")
