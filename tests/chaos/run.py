"""Runs of seeds, one after the other; see ``scripts/chaos --help``."""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import math
import multiprocessing
import os
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.coverage import Coverage
from tests.chaos.drawn_site import driven_keys, is_drawn, is_optional, may_meet
from tests.chaos.kept import ALL, Kept, shrink
from tests.chaos.lie_weather import lying
from tests.chaos.order_weather import ordered
from tests.chaos.sites import DRAWN, two_heads

HOUR = 3600.0
SOON = 900.0
"""Seconds within which a stopped machine ends that should, once nothing is wrong any more."""
STORMY = 600.0
"""Seconds of a run in which things go wrong."""


class Outcome(NamedTuple):
    """The outcome of one seed: ``wrongs`` as (kind, words), and what was counted."""

    seed: int
    kind: str
    digest: str
    wrongs: Sequence[tuple[str, str]]
    struck: Counter[str]
    counts: Counter[str]
    dollars: Counter[str]
    trace: Sequence[str]
    features: frozenset[str]


def run(seed: int, *, keep: bool = False, kept: Kept = ALL) -> Outcome:
    """Chaos, then peace, then the books. ``kept``: only with these parts."""
    from tests.chaos.scheduler import StuckError
    from tests.chaos.stage import Stage
    from tests.chaos.weather import Weather
    from tests.oracle.oracle import Oracle

    stage = Stage(seed, keep=keep, kept=kept)
    oracle = Oracle(stage)
    kind = ", ".join(name for name, has in (
        (stage.kind, True), ("two heads", stage.pair is not None), ("lies", lying(seed)),
        ("orders", ordered(seed)),
    ) if has)  # fmt: skip
    try:
        weather = Weather(stage)
        stage.note(f"seed {seed}: {kind}, {weather.families}")
        try:
            storm(stage, weather, oracle)
            rest(stage, weather, oracle)
        except StuckError as error:
            stage.books.wrong("stuck", str(error))
        for task, error in stage.sched.errors:
            stage.books.wrong("thread died", f"{task.name}: {error!r}")
        return _outcome(stage, kind)
    finally:
        oracle.close()
        stage.close()


def storm(stage, weather, oracle) -> None:
    until = 1.5 * STORMY if stage.kept else STORMY
    while stage.sched.now < until and not stage.books.wrongs:
        stage.advance(5.0)
        weather.blow()
        oracle.look()


def rest(stage, weather, oracle) -> None:
    """All ends well, whatever was before."""
    if stage.books.wrongs:
        return
    weather.heal()
    healed = stage.sched.now
    if stage.orders is not None:
        stage.orders.reload_plain()  # before the calm configuration, which loosens the plain one
    stage.be_calm()
    if stage.orders is not None:
        _take_orders_back(stage)
    _settle_down(stage, oracle)
    if stage.keeps:
        weather.come_back()
        _settle_down(stage, oracle)
        stage.keep_stopped([0 for _ in stage.config.pools])
        _settle_down(stage, oracle)
    if not stage.books.wrongs:
        stage.books.settle(healed)
        oracle.settle(healed)


def _take_orders_back(stage) -> None:
    """First they come true, then nothing is ordered any more."""
    orders, deadline = stage.orders, stage.sched.now + HOUR
    while stage.sched.lives("operator"):
        stage.advance(5.0)
    while (trouble := orders.books.outstanding()) and not stage.books.wrongs:
        stage.advance(60.0, step=30.0)
        for owner in stage.owners:
            stage.start(owner)
        if stage.sched.now > deadline:
            stage.books.wrong("order", trouble)
    while not stage.books.wrongs and not orders.take_all_back():
        stage.advance(60.0, step=30.0)
        if stage.sched.now > deadline + HOUR:
            stage.books.wrong("order", "orders cannot be taken back")
    stage.release_held()


def _settle_down(stage, oracle) -> None:
    """Until nothing is left to be done."""
    from tests.chaos.books import KEPT

    held = stage.kind == "policies"  # a drawn site has no policy any more that holds nodes
    deadline = stage.sched.now + 6 * HOUR
    trouble, since = "it has just begun", stage.sched.now
    while trouble and not stage.books.wrongs and not stage.sched.errors:
        stage.advance(60.0, step=30.0)
        for owner in stage.owners:
            stage.start(owner)
        stage.slurm.let_go()
        oracle.rest()
        waiting = sorted(stage.slurm.queue())
        before = trouble
        trouble = f"jobs wait: {waiting}" if waiting else stage.books.trouble(held=held)
        since = since if trouble == before else stage.sched.now
        if trouble.startswith(KEPT) and stage.sched.now - since > SOON:
            stage.books.wrong("orphan", trouble)
        if stage.sched.now > deadline:
            stage.books.wrong("no rest", trouble)


def _outcome(stage, kind: str) -> Outcome:
    books = stage.books
    counts = Counter(
        machines=len(books.machines), jobs=len(books.jobs), completed=len(books.completed),
        fallen=len(books.fallen), spared=books.spared, turns=stage.sched.turns,
        seconds=int(stage.sched.now), saved=sum(c[0] == "checkpoint" for c in stage.saver.calls),
        requeues=sum(j.restarts for j in stage.slurm.queue().values()),
        keeping=stage.kept, two_heads=stage.pair is not None, drawn=stage.kind == DRAWN,
        **books.counts,
    )  # fmt: skip
    return Outcome(
        stage.seed, kind, stage.digest, tuple(books.wrongs), stage.struck, counts,
        books.dollars, stage.trace or (), stage.features,
    )  # fmt: skip


_wanted: list[Callable[[int], bool]] = []
"""Only seeds of which all of these hold are run."""
PART = 20
"""Seeds that a process runs at a time."""
MOST_A_SECOND = 20
"""Seeds that no core runs in a second: --hours never comes to the last one."""
_FORK = multiprocessing.get_context("fork")


def seeds(given: argparse.Namespace) -> Iterator[Outcome]:
    """In their order, while there is time, by so many processes."""
    ends = range(given.start, given.start + given.seeds + PART, PART)
    parts = [range(a, min(b, given.start + given.seeds)) for a, b in itertools.pairwise(ends)]
    until = time.monotonic() + given.seconds
    if given.jobs == 1 or len(parts) == 1:
        _alone(os.getpid, given)
        yield from itertools.chain.from_iterable(_runs(part, until) for part in parts)
        return
    each = functools.partial(_part, until=until)
    place = _FORK.Value("i", 0)
    with _FORK.Pool(given.jobs, _alone, (functools.partial(_next, place), given)) as pool:
        yield from itertools.chain.from_iterable(pool.imap(each, parts))


def _next(place: Any) -> int:
    with place.get_lock():
        place.value += 1
        return int(place.value)


def _alone(number: Callable[[], int], given: argparse.Namespace) -> None:
    """On one processor, as one thread runs at a time."""
    sabotage = given.sabotage
    kinds = (
        (given.two_heads, two_heads), (given.lies, lying), (given.orders, ordered),
        (given.drawn, is_drawn),
    )  # fmt: skip
    _wanted[:] = [is_so for asked, is_so in kinds if asked]
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[number() % len(processors)]})
    gc.disable()  # it takes a tenth of the time
    if given.oracle:
        from tests.oracle import oracle

        oracle.READ = oracle.CALM = 1.0
    if sabotage:
        from tests.chaos.sabotage import ALL
        from tests.chaos.stage import Stage

        ALL[sabotage](Stage)


def _part(part: range, until: float) -> Sequence[Outcome]:
    return list(_runs(part, until))


def _runs(part: range, until: float) -> Iterator[Outcome]:
    for seed in part:
        if time.monotonic() > until:
            return
        if all(is_so(seed) for is_so in _wanted):
            yield run(seed)
    gc.collect()


WRONGS = {
    "doubles": (
        "double",
        "bought without an intent",
        "bought unread",
        "launch given up",
        "bought",
        "started without an intent",
    ),
    "orphans": ("orphan", "no rest"),
    "calls and lines of a head that acts no more, or in doubt": ("fence",),
    "machines that a takeover ended": ("ended in a takeover",),
    "lost jobs": ("job lost", "node given up", "ended in use"),
    "jobs not started, or begun anew": ("not started", "progress lost"),
    "machines that their job cannot use": ("paid for nobody",),
    "spoilt images gone on from": ("spoilt image", "image of another job"),
    "limits passed": ("limit",),
    "spot machines where none may be bought": ("spot",),
    "orders that did not come true, or refused without need": ("order",),
    "machines of others ended": ("somebody else's",),
    "not accounted for": ("cents", "money"),
    "screens that say what is not so": ("screens",),
    "left after a calm hour": ("not calm",),
    "threads that died, stuck, unforeseen": ("thread died", "stuck", "unforeseen"),
}


COUNTED = {
    "keeping": "sites that keep stopped machines",
    "two_heads": "sites of two heads",
    "drawn": "sites drawn from the schema",
    "machines": "machines made",
    "stopped": "times one was stopped",
    "started": "times one was started",
    "spared": "times one was there that nobody could know of",
    "jobs": "jobs",
    "completed": "jobs completed",
    "fallen": "jobs that may not be requeued ended with their machine",
    "saved": "saves of jobs",
    "moments": "moments at which all screens were read",
    "unread": "moments at which the records could not be read",
    "calm": "calm hours after the last fault",
}


def main() -> int:
    """Exit 1 where a seed failed."""
    given = _arguments()
    if given.sabotages:
        from tests.chaos.sabotage_table import lines

        print(*lines(), sep="\n")
        return 0
    if given.trace or given.kept:
        _alone(os.getpid, given)
        kept = Kept(*json.loads(given.kept)) if given.kept else ALL
        found = run(given.start, keep=given.trace, kept=kept)
        print("\n".join(found.trace))
        print(found.digest, *found.wrongs, sep="\n")
        return bool(found.wrongs)
    if given.shrink is not None:
        _alone(os.getpid, given)
        return shrink(given.shrink, lambda kept: run(given.shrink, kept=kept))
    began = time.monotonic()
    coverage = Coverage()
    struck: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    dollars: Counter[str] = Counter()
    failed: list[Outcome] = []
    done = 0
    for outcome in seeds(given):
        done += 1
        coverage.add(outcome.features, outcome.struck)
        struck += outcome.struck
        counts += outcome.counts
        dollars += outcome.dollars
        if given.digests:
            print(outcome.seed, outcome.digest)
        if outcome.wrongs:
            failed.append(outcome)
            for kind, words in outcome.wrongs:
                print(f"seed {outcome.seed} ({outcome.kind}): {kind}: {words}", flush=True)
            if given.sabotage:
                break
    if given.coverage:
        drawable = [f"{key.of}.{key.name}" for key in driven_keys() if is_optional(key)]
        print(*coverage.lines(drawable, may_meet), sep="\n")
    _tell(done, struck, counts, dollars, failed)
    spent = os.times()
    spent = spent.user + spent.system + spent.children_user + spent.children_system
    passed = time.monotonic() - began
    print(
        f"{passed:.0f} s, {done / passed:.1f} seeds a second, "
        f"{done / spent:.1f} a second of processor time"
    )
    return bool(failed)


def _tell(
    done: int, struck: Counter[str], counts: Counter[str], dollars: Counter[str],
    failed: Sequence[Outcome],
) -> None:  # fmt: skip
    hours, faults = counts["seconds"] / HOUR, sum(struck.values())
    print(f"{done} seeds, {hours:.0f} h of virtual time, {faults} faults and consequences:")
    for kind, count in sorted(struck.items()):
        print(f"  {count:8d}  {kind}")
    for kind, words in COUNTED.items():
        print(f"  {counts[kind]:8d}  {words}")
    for kind, value in sorted({"unaccounted": 0.0, **dollars}.items()):
        print(f"  ${value:10.2f}  {kind}")
    print("of all that:")
    kinds = Counter(kind for one in failed for kind, _ in one.wrongs)
    for words, of in WRONGS.items():
        print(f"  {sum(kinds[kind] for kind in of):8d}  {words}")
    seeds = ", ".join(str(one.seed) for one in failed) or "none"
    print(textwrap.fill(f"failing seeds: {seeds}", 80, subsequent_indent="  "))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, help="100, and with --hours as many as there is time for"
    )
    parser.add_argument("--from", type=int, default=1, dest="start", metavar="SEED")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no seed begins later")
    parser.add_argument("--hours", type=float, help="as --seconds")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)),
        help="processes, each on one core (default: all cores)",
    )  # fmt: skip
    parser.add_argument("--digests", action="store_true", help="print each seed's trace as a hash")
    parser.add_argument(
        "--two-heads", action="store_true", help="only the seeds whose site has two"
    )
    parser.add_argument("--lies", action="store_true", help="only the seeds whose world lies")
    parser.add_argument(
        "--drawn", action="store_true", help="only the seeds whose site is drawn from the schema"
    )
    parser.add_argument(
        "--sabotages", action="store_true", help="print which defects are found, and by what"
    )
    parser.add_argument("--orders", action="store_true", help="only the seeds with orders")
    parser.add_argument(
        "--oracle", action="store_true", help="judge screens and a calm hour in each run"
    )
    parser.add_argument("--coverage", action="store_true", help="print what met how often")
    parser.add_argument(
        "--shrink", type=int, metavar="SEED", help="find a small form of a drawn seed that fails"
    )
    parser.add_argument(
        "--kept", metavar="JSON", help="run the one with these steps, jobs and faults of --shrink"
    )
    parser.add_argument("--sabotage", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help="print all that happens in the one")
    given = parser.parse_args()
    if given.hours is not None:
        given.seconds = given.hours * HOUR
    if given.seeds is None:
        most = MOST_A_SECOND * given.jobs * given.seconds
        given.seeds = 100 if given.hours is None else math.ceil(most)
    return given


def in_its_own_process(module: str, run_it: Callable[[], int]) -> int:
    """With the disk's library loaded, and sets that always have the same order."""
    if "POWER_CUT_LIBRARY" in os.environ:
        return run_it()
    from tests.power_cut import build

    with tempfile.TemporaryDirectory(prefix="se-chaos-") as place:
        library = str(build(Path(place)))
        env = {
            **os.environ, "LD_PRELOAD": library, "POWER_CUT_LIBRARY": library, "PYTHONHASHSEED": "0",
        }  # fmt: skip
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        return os.spawnve(os.P_WAIT, sys.executable, command, env)


if __name__ == "__main__":
    sys.exit(in_its_own_process("tests.chaos.run", main))
