"""Drawn sites on a real slurmctld, one after the other in lanes; see ``scripts/chaos --help``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.real import place

MOST_S = 420.0
"""Seconds after which a site is ended from outside."""
KEPT = Path(".pytest_cache") / "real"


class Outcome(NamedTuple):
    """The outcome of one seed, as the process of its site wrote it."""

    seed: int
    wrongs: Sequence[tuple[str, str]]
    struck: Counter[str]
    counts: Counter[str]
    seconds: float
    differences: Counter[str]
    features: Sequence[str]


class Lanes:
    """Runs sites side by side. ``directory`` is where what failed is kept."""

    def __init__(self, release: str, opt: Path | None, directory: Path) -> None:
        self._release, self._opt, self._dir = release, opt, directory

    def run(self, seed: int, *, until: float = float("inf")) -> Outcome | None:
        """None if there is no time left."""
        if time.monotonic() > until:
            return None
        out = self._dir / f"{self._release}-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        words = [sys.executable, "-m", "tests.real.one", str(seed), str(out)]
        began = time.monotonic()
        process = place.start(place.command(self._release, self._opt, words), out / "run.out")
        try:
            process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        found = self._outcome(seed, out, time.monotonic() - began)
        if not found.wrongs:
            for path in out.iterdir():
                if path.name not in ("outcome.json", "trace"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return found

    def _outcome(self, seed: int, out: Path, seconds: float) -> Outcome:
        try:
            found: dict[str, Any] = json.loads((out / "outcome.json").read_text())
        except (OSError, ValueError):
            last = (out / "run.out").read_text().strip().splitlines()[-1:] or [
                "it has said nothing"
            ]
            found = {"wrongs": [("site", last[0])]}
        return Outcome(
            seed, [(k, w) for k, w in found["wrongs"]], Counter(found.get("struck", {})),
            Counter(found.get("counts", {})), seconds, Counter(found.get("differences", {})),
            found.get("features", ()),
        )  # fmt: skip


def outcomes(given: argparse.Namespace, opt: Path | None) -> Iterator[Outcome]:
    lanes = Lanes(given.slurm, opt, KEPT.resolve())
    run = partial(lanes.run, until=time.monotonic() + given.seconds)
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(run, range(given.start, given.start + given.seeds)):
            if outcome is not None:
                yield outcome


def main() -> int:
    """Exit 1 where a site failed."""
    given = _arguments()
    began, done, failed = time.monotonic(), list[Outcome](), list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="se-real-", dir="/var/tmp") as directory:
        opt = place.unpack(given.slurm, Path(directory))
        for outcome in outcomes(given, opt):
            done.append(outcome)
            print(f"seed {outcome.seed}: {outcome.seconds:.0f} s", flush=True)
            for kind, words in outcome.wrongs:
                print(f"seed {outcome.seed}: {kind}: {words}", flush=True)
            if outcome.wrongs:
                failed.append(outcome)
    _tell(given.slurm, done, failed, time.monotonic() - began)
    return bool(failed)


def _tell(release: str, done: Sequence[Outcome], failed: Sequence[Outcome], seconds: float) -> None:
    sums = {
        "faults, orders and changes of jobs": sum((o.struck for o in done), Counter()),
        "in all": sum((o.counts for o in done), Counter()),
        "differences between the fake of Slurm and Slurm": sum(
            (o.differences for o in done), Counter()
        ),
    }
    print(f"{len(done)} sites on Slurm {release} in {seconds:.0f} s")
    for words, counts in sums.items():
        print(f"{words}:")
        for kind, count in sorted(counts.items()):
            print(f"  {count:8d}  {kind}")
    print(f"failing seeds: {', '.join(str(one.seed) for one in failed) or 'none'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos --real", description=__doc__)
    parser.add_argument("--real", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--slurm", choices=(place.DEBIAN, "25.11"), default=place.DEBIAN)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--from", type=int, default=1, dest="start", metavar="SEED")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no site begins later")
    parser.add_argument("--jobs", type=int, default=2, help="sites side by side")
    return parser.parse_args()


if __name__ == "__main__":
    if os.getuid() != 0:
        sys.exit("scripts/chaos --real starts slurmds, which needs root")
    sys.exit(main())
