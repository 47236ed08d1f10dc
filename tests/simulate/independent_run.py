"""``python -m tests.simulate.independent_run --scenarios 10000 --seed N``: so many random sites, on the
engine and on the independent simulator; the smallest ones on which they do not agree.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, given, seed, settings

from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.scaler import Grower
from slurm_elastic.simulate.scenario import Scenario
from tests.simulate import independent
from tests.simulate.independent_cases import cases, differences

GIVEN_UP = 5_000
LONG = 60

Bad = tuple[int, Jobs, Scenario, list[str]]


def main() -> int:
    """0 where all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3)
    options = parser.parse_args()
    Grower.patience = independent.GIVEN_UP = GIVEN_UP
    bad: list[Bad] = []
    ran = 0

    @seed(options.seed)
    @settings(
        max_examples=options.scenarios, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases())
    def compare(case: tuple[Jobs, Scenario]) -> None:
        nonlocal ran
        ran += 1
        found = compared(*case)
        if found:
            bad.append((len(case[0]) + 3 * len(case[1].pools), *case, found))

    compare()
    print(f"{ran} scenarios, seed {options.seed}: {len(bad)} are not the same")
    for _, jobs, scenario, found in sorted(bad, key=lambda one: one[0])[: options.show]:
        tell(jobs, scenario, found)
    return 1 if bad else 0


def compared(jobs: Jobs, scenario: Scenario) -> list[str]:
    """The results on which they do not agree, or the error of one of them."""
    try:
        with soon():
            return differences(jobs, scenario)
    except Exception:  # noqa: BLE001 - told with the scenario
        return [traceback.format_exc()]


@contextmanager
def soon() -> Iterator[None]:
    """Work that takes too long raises."""

    def late(*_: object) -> None:
        raise TimeoutError(f"this took over {LONG} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONG)
    try:
        yield
    finally:
        signal.alarm(0)


def tell(jobs: Jobs, scenario: Scenario, found: list[str]) -> None:
    """A scenario in which they differ, as it can be typed."""
    print("\njobs (submit, run, limit, procs, memory, gpus):")
    print(
        [
            (j.submit, j.run, j.limit, j.procs, j.memory, j.gpus)
            for j in map(jobs.__getitem__, range(len(jobs)))
        ]
    )
    for pool in scenario.pools:
        print(pool)
        for market in dict.fromkeys((pool.spot, *(sold.market for sold in pool.offers))):
            if market is not None:
                curve = market.curve
                print(f"  prices {curve.times} {curve.prices}, bid {market.bid}, {rooms(market)}")
    print(scenario)
    print("\n".join(found))


def rooms(market: object) -> list[tuple[int, int]]:
    """(second, machines to be had from then on)."""
    found, now = [], -1
    while now < 2**40:
        room, until = market.rooms(now)  # type: ignore[attr-defined]
        found.append((now, room))
        now = until
    return found


if __name__ == "__main__":
    sys.exit(main())
