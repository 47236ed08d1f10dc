"""The parts of a run that are kept while it is made smaller."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.chaos.run import Outcome

MOST = 120
"""Numbers of jobs and faults that a run may have."""
MOST_RUNS = 300


class Kept(NamedTuple):
    """By number: the steps of the site's drawing, the jobs, and the faults. None: all of them."""

    steps: Collection[int] | None = None
    jobs: Collection[int] | None = None
    faults: Collection[int] | None = None


ALL = Kept()


Part = tuple[str, int]
"""A field of Kept, with a number in it."""


def shrink(seed: int, run: Callable[[Kept], Outcome]) -> int:
    """Print a small form of the seed's run that has the same kind of wrong. 1 if there is one."""
    wrongs = run(ALL).wrongs
    if not wrongs:
        print(f"seed {seed}: nothing is wrong")
        return 0
    kind = wrongs[0][0]
    runs = 0

    def fails(parts: Sequence[Part]) -> bool:
        nonlocal runs
        runs += 1
        return runs <= MOST_RUNS and any(k == kind for k, _ in run(_kept(parts)).wrongs)

    parts = [(field, n) for field in Kept._fields for n in range(MOST)]
    if not fails(parts):
        print(f"seed {seed}: {kind}: it takes more than {MOST} parts of a kind")
        return 1
    small = _kept(_smaller(parts, fails))
    print(f"seed {seed}: {kind}, after {runs} runs: --from {seed} --kept '{json.dumps(small)}'")
    for found, words in run(small).wrongs:
        print(f"  {found}: {words}")
    return 1


def _kept(parts: Sequence[Part]) -> Kept:
    return Kept(*(tuple(n for of, n in parts if of == field) for field in Kept._fields))


def _smaller(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Leave out ever smaller pieces while it still fails (Zeller's delta debugging)."""
    size = len(parts) // 2
    while size:
        begin = 0
        while begin < len(parts):
            fewer = [*parts[:begin], *parts[begin + size :]]
            if fails(fewer):
                parts = fewer
            else:
                begin += size
        size //= 2
    return parts
