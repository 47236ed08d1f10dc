"""A benchmark of this tree beside the same one of an earlier commit, in alternating turns.

``scripts/bench --beside COMMIT NAME [options of NAME]`` clones COMMIT into the cache of the setup
scripts and runs the benchmark five times in each tree, one after the other, so that both meet the
same load of the machine. A case is worse if the median of the new turns lies beyond the range of
the old turns. Compared is the ratio to the benchmark's own peer or floor; a case without one is
compared by its value. Exit 0: no case is worse, 1: a case is worse, 2: wrong use.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import traces
from benchmarks.report import Report, Row

TURNS = 5
CACHE = Path("/var/cache/slurm-elastic")
REPOSITORY = Path(__file__).parents[1]


class Verdict(StrEnum):
    """How the new median lies to the range of the old turns."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"


class Comparison(Struct, frozen=True, kw_only=True):
    """One case of a benchmark in both trees; ``unit`` is "ratio" where the case has a reference."""

    case: str
    unit: str
    old_lowest: float
    old_highest: float
    new_median: float
    verdict: Verdict


def compare(old: Sequence[Report], new: Sequence[Report]) -> list[Comparison]:
    """The cases that every turn of both trees has, in the order of the first new turn."""
    old_rows = [{row.case: row for row in turn.rows} for turn in old]
    new_rows = [{row.case: row for row in turn.rows} for turn in new]
    shared = [
        case for case in new_rows[0] if all(case in rows for rows in (*old_rows, *new_rows[1:]))
    ]
    return [_compare_case(case, old_rows, new_rows) for case in shared]


def _compare_case(
    case: str, old: Sequence[Mapping[str, Row]], new: Sequence[Mapping[str, Row]]
) -> Comparison:
    turns = [rows[case] for rows in (*old, *new)]
    has_ratio = all(row.ratio is not None and row.reference for row in turns)
    values = [row.ratio if has_ratio and row.ratio is not None else row.ours for row in turns]
    before, after = values[: len(old)], statistics.median(values[len(old) :])
    lowest, highest = min(before), max(before)
    grew, shrank = after > highest, after < lowest
    worse, better = (shrank, grew) if _more_is_better(turns[-1]) else (grew, shrank)
    return Comparison(
        case=case,
        unit="ratio" if has_ratio else turns[-1].unit,
        old_lowest=lowest,
        old_highest=highest,
        new_median=after,
        verdict=Verdict.WORSE if worse else Verdict.BETTER if better else Verdict.SAME,
    )


def _more_is_better(row: Row) -> bool:
    return (row.goal or "").startswith("ratio >=") or "speed" in row.unit or row.unit.endswith("/s")


def unmatched(old: Sequence[Report], new: Sequence[Report]) -> list[str]:
    """The cases that are missing in a turn of either tree."""
    turns = [{row.case for row in turn.rows} for turn in (*old, *new)]
    everywhere = turns[0].intersection(*turns)
    return sorted(turns[0].union(*turns) - everywhere)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench --beside COMMIT", description=__doc__)
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("name", metavar="NAME", help="the benchmark")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of each tree (default {TURNS})")
    options, own_options = parser.parse_known_args(arguments)
    if options.turns < 1:
        parser.error(f"--turns: found {options.turns}, expected 1 or more")
    commit = resolve(options.commit)
    if commit is None:
        parser.error(f"COMMIT: found {options.commit!r}, expected a commit of this repository")
    earlier = clone(commit)
    old: list[Report] = []
    new: list[Report] = []
    for turn in range(1, options.turns + 1):
        for tree, reports in ((earlier, old), (REPOSITORY, new)):
            print(f"turn {turn} of {options.turns}: {tree}", file=sys.stderr, flush=True)
            reports.append(run(tree, options.name, own_options))
    comparisons = compare(old, new)
    show(f"{options.name} beside {options.commit}", comparisons, new[0].machine)
    for case in unmatched(old, new):
        print(f"not compared, because a turn lacks it: {case}")
    return 1 if any(c.verdict is Verdict.WORSE for c in comparisons) else 0


def resolve(commit: str) -> str | None:
    """The full hash; None if this repository has no such commit."""
    command = [
        "git",
        "rev-parse",
        "--quiet",
        "--verify",
        "--end-of-options",
        f"{commit}^{{commit}}",
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.stdout.strip() or None


def clone(commit: str) -> Path:
    """A clone at this commit. It and its environment stay in the cache for later comparisons."""
    place = CACHE / f"beside-{commit[:12]}"
    if not place.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", REPOSITORY, place], check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", commit], cwd=place, check=True)
    return place


def run(tree: Path, name: str, options: Sequence[str]) -> Report:
    """One turn. A benchmark that misses a goal ends with 1 and has a report all the same."""
    # Scripts of earlier commits do not compile the package, as every installation does. Where
    # Python writes no bytecode, each start of a program would then measure the compiler.
    compileall.compile_dir(tree / "slurm_elastic", quiet=1)
    with tempfile.TemporaryDirectory(prefix="beside-") as directory:
        file = Path(directory) / "report.json"
        command = [str(tree / "scripts" / "bench"), name, "--json", str(file), *options]
        done = subprocess.run(
            command, cwd=tree, env=environment(), capture_output=True, text=True, check=False
        )
        if not file.exists():
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return msgspec.json.decode(file.read_bytes(), type=Report)


def environment() -> dict[str, str]:
    """Ours, and where the histories are: beside the older tree's clone there are none."""
    directory = traces.data()
    return dict(os.environ) | ({traces.VARIABLE: str(directory)} if directory else {})


def show(title: str, comparisons: Sequence[Comparison], machine: str) -> None:
    """As a table on stdout."""
    table = Table(title=title, caption=machine, box=box.SIMPLE, title_justify="left")
    for name in ("case", "unit", "old turns", "new median", ""):
        table.add_column(name, justify="left" if name in ("case", "unit", "") else "right")
    for row in comparisons:
        old = f"{row.old_lowest:.4g} to {row.old_highest:.4g}"
        table.add_row(row.case, row.unit, old, f"{row.new_median:.4g}", str(row.verdict))
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
