"""Real programs of Debian on Slurm 24.11, each saved and moved at three random moments by CRIU.

Each runs once by itself and once under the launcher, in containers; its output is compared byte for
byte. The programs are data: tests/realcloud/docker/matrix/programs.toml.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.report import Report, holds, noted, report

TESTS = Path(__file__).resolve().parents[1] / "tests"
WORK = 0.9
"""The share of programs that is to go on as if nothing had been."""
IMPOSSIBLE = "impossible"
"""The class of programs that are there to be refused."""
NEVER = {
    "wrong": "wrong, and nobody says so",
    "lost": "begun anew",
    "late": "refused at the notice",
    "too few moves": "moved less often than is asked of it",
}


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench programs")
    parser.add_argument("--only", metavar="NAME", action="append", help="this program, or class")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, of each class in turn")
    parser.add_argument("--seed", type=int, default=1, help="of the sample and the moments")
    parser.add_argument("--lanes", type=int, default=3, help="programs at a time (default: 3)")
    parser.add_argument("--release", default="trixie", choices=("trixie", "forky"))
    parser.add_argument("--criu", choices=("forky",), help="CRIU of that Debian, not of --release")
    options = parser.parse_args(arguments)
    matrix = _matrix()
    wanted = [
        program
        for program in matrix.programs()
        if not options.only or {program.name, program.kind} & set(options.only)
    ]
    if not wanted:
        parser.error(f"no program or class is named {' or '.join(options.only)}")
    if options.sample:
        wanted = matrix.sample(wanted, options.sample, options.seed)
    found = _run(matrix, wanted, options)
    _show(found)
    return _sums(found)


def _matrix() -> Any:  # noqa: ANN401 - the world of the tests, which are no package
    sys.path.insert(0, str(TESTS))
    return importlib.import_module("realcloud.docker.program_matrix")


def _run(matrix: Any, wanted: Sequence[Any], options: argparse.Namespace) -> list[Any]:  # noqa: ANN401
    """The outcome of each; one line each on standard error as it is known."""
    engines = importlib.import_module("realcloud.docker.engine")

    def told(one: Any) -> None:  # noqa: ANN401
        print(
            f"{one.program.name}: {one.outcome}, moved {one.moves} times {one.why}", file=sys.stderr
        )

    with engines.running_engine() as engine:
        image = matrix.image(engine, options.release, matrix.programs())
        lanes = min(options.lanes, len(wanted))
        with matrix.matrix_world(engine, image, lanes, _criu(options.criu)) as world:
            found: list[Any] = world.try_all(wanted, options.seed, told)
            return found


def _criu(release: str | None) -> Path | None:
    """CRIU of that Debian, unpacked on this machine; none is the containers' own."""
    if release is None:
        return None
    script = TESTS / "machine" / "ckptroot" / "criu4"
    done = subprocess.run([script, release], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def _show(found: Sequence[Any]) -> None:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in ("program", "class", "outcome", "moves", "nodes", "why"):
        table.add_column(name, no_wrap=name in ("program", "outcome"))
    for one in found:
        why = one.why.partition(" [")[0][:160]
        words = (one.program.name, one.program.kind, one.outcome, str(one.moves))
        table.add_row(*words, " ".join(one.way), why)
    Console().print(table)


def _sums(found: Sequence[Any]) -> Report:
    counts = Counter(str(one.outcome) for one in found)
    share = counts["works"] / len(found)
    could = [one for one in found if one.program.kind != IMPOSSIBLE]
    works = sum(str(one.outcome) == "works" for one in could) / max(len(could), 1)
    clocks = [one for one in found if one.program.moves]
    thrice = sum(str(one.outcome) == "works" and len(set(one.way)) == 3 for one in clocks)
    rows = [
        noted("programs", len(found), "programs"),
        noted("moves", sum(one.moves for one in found), "moves"),
        holds("work byte for byte", share, "share", ok=share >= WORK, goal=f">= {WORK:g}"),
        holds(
            f"... of {len(could)} not of class {IMPOSSIBLE}",
            works,
            "share",
            ok=works >= WORK,
            goal=f">= {WORK:g}",
        ),
        holds(
            "moved three times in a row to clocks apart, of class clock",
            thrice,
            "programs",
            ok=thrice == len(clocks),
            goal=f"all {len(clocks)}",
        ),
        noted("refused by the probe", counts["refused"], "programs"),
        noted("not tried: too short, or fails by itself", counts["broken"], "programs"),
    ]
    rows += [
        holds(what, counts[outcome], "programs", ok=not counts[outcome], goal="0")
        for outcome, what in NEVER.items()
    ]
    return report("programs", rows)
