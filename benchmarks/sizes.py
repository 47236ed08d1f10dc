"""Jobs of 0.1 to 8 GiB on Slurm 24.11, saved by CRIU and moved within a notice of two minutes.

Each job fills its memory, in containers, one and eight at a time as far as this machine has memory
and disk. It is saved beside its work; then its node gets a notice and is taken. A job whose save is
said to fit then must go on from that save, any other one from its last image.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, compared, holds, noted, report

TESTS = Path(__file__).resolve().parents[1] / "tests"
SIZES = (0.1, 1.0, 4.0, 8.0)
COUNTS = (1, 8)


def main(arguments: Sequence[str]) -> Report:
    world = _world()
    parser = argparse.ArgumentParser(prog="scripts/bench sizes")
    parser.add_argument("--sizes", nargs="+", type=_size, default=SIZES, metavar="GIB",
                        help="of a job's memory (0.1 1 4 8)")  # fmt: skip
    parser.add_argument("--counts", nargs="+", type=_count, default=COUNTS, metavar="N",
                        help=f"jobs at a time, at most {world.ROOM} (1 8)")  # fmt: skip
    parser.add_argument("--contents", nargs="+", choices=world.CONTENTS, default=world.CONTENTS,
                        metavar="CONTENT", help=" or ".join(world.CONTENTS))  # fmt: skip
    parser.add_argument("--notice", type=_seconds, default=world.NOTICE, metavar="SECONDS",
                        help="until the node is taken (120)")  # fmt: skip
    parser.add_argument("--release", default="trixie", choices=("trixie", "forky"))
    options = parser.parse_args(arguments)
    cases = [
        world.Case(int(size * 1024) * world.MIB, content, count)
        for size in options.sizes
        for count in options.counts
        for content in options.contents
    ]
    return report("sizes", _run(world, cases, options))


def _size(text: str) -> float:
    """GiB."""
    return _between(text, 1 / 1024, 1024.0, "a size in GiB")


def _seconds(text: str) -> float:
    return _between(text, 1.0, 3600.0, "a number of seconds")


def _count(text: str) -> int:
    most = _world().ROOM
    return int(_between(text, 1, most, f"a number of jobs up to {most}"))


def _between(text: str, least: float, most: float, what: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not least <= found <= most:
        raise argparse.ArgumentTypeError(f"{text}: expected {what}, {least:g} to {most:g}")
    return found


def _world() -> Any:  # noqa: ANN401 - the world of the tests, which are no package
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    return importlib.import_module("realcloud.docker.sizes_world")


def _run(world: Any, cases: Sequence[Any], options: argparse.Namespace) -> list[Row]:  # noqa: ANN401
    """The rows of each case that this machine can hold; one line a job on standard error."""
    engines = importlib.import_module("realcloud.docker.engine")
    rows, found = list[Row](), list[Any]()
    with engines.running_engine() as engine:
        image = engine.image(options.release)
        with world.sizes_world(engine, image) as running:
            for case in cases:
                why = case.lacks(tempfile.gettempdir())
                if why:
                    print(f"{case}: skipped: {why}", file=sys.stderr)
                    rows.append(noted(f"{case}: skipped, {why}", case.count, "jobs"))
                    continue
                some = running.attempt(case, options.notice)
                _tell(some)
                rows += _rows(case, some, options.notice)
                found += some
    return [*rows, *_sums(found)]


def _tell(found: Sequence[Any]) -> None:
    for one in found:
        says = "fits" if one.fits else "does not fit"
        print(
            f"{one.case}: job {one.job}: saved in {one.save:.1f} s, {one.size} bytes, stood still"
            f" {one.still:.1f} s; {one.predicted:.0f} s {says}; went on from image {one.image},"
            f" made in {one.late:.1f} s, in time {one.fresh}, whole {one.whole},"
            f" away {one.away:.1f} s; {one.why}",
            file=sys.stderr,
        )


def _rows(case: Any, found: Sequence[Any], notice: float) -> list[Row]:  # noqa: ANN401
    fit = [one for one in found if one.fits]
    rows = [
        noted(f"{case}: a save, slowest", max(one.save for one in found), "s"),
        noted(f"{case}: its image", max(one.size for one in found) / (1 << 30), "GiB"),
        noted(f"{case}: stood still for it", max(one.still for one in found), "s"),
        noted(f"{case}: said to fit into {notice:g} s", len(fit), f"of {len(found)} jobs"),
    ]
    made = [one for one in fit if one.late]
    if made:
        slowest = max(made, key=lambda one: one.late)
        rows += [
            compared(
                f"{case}: save at the notice / predicted", slowest.late, slowest.predicted, "s"
            ),
            noted(f"{case}: not at work", max(one.away for one in made), "s"),
        ]
    return rows


def _sums(found: Sequence[Any]) -> list[Row]:
    late = sum(one.fits and not one.fresh for one in found)
    rest = [one for one in found if not one.fits]
    kept = sum(one.image is not None for one in rest)
    return [
        noted("jobs", len(found), "jobs"),
        _none("said to fit, and not saved in time", late),
        holds("said not to fit, and went on from the last image", kept, "jobs",
              ok=kept == len(rest), goal=f"{len(rest)}"),
        _none("begun anew, or with other memory", sum(not one.whole for one in found)),
    ]  # fmt: skip


def _none(case: str, count: int) -> Row:
    return holds(case, count, "jobs", ok=not count, goal="0")
