"""The rule of docs/costs.md in exact numbers: what a machine costs, and whose part that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

HOUR_S = 3600
LEAST_S = 60
"""Seconds that a machine costs at least, if it is billed by the second."""
MICRO = 1_000_000


class Use(NamedTuple):
    """A job has a share of a machine from ``begin`` to ``end`` (ms of Unix time)."""

    who: str
    begin: int
    end: int
    share: Fraction


class Paid(NamedTuple):
    """The paid life of a machine, or of a part of it (ms of Unix time).

    ``up``: its node registered; ``over``: its end was decided, or it ended; ``price`` is $/h.
    ``off``: it was stopped all the time.
    """

    begin: int
    end: int
    up: int
    over: int
    price: Fraction
    off: bool

    @property
    def micro(self) -> Fraction:
        """The micro-dollars of all of it."""
        return self.price * MICRO * (self.end - self.begin) / (HOUR_S * 1000)


def exact(dollars: float) -> Fraction:
    """A price, to a millionth of a micro-dollar."""
    return Fraction(round(dollars * 10**12), 10**12)


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def paid_end(begin: float, end: float, unit: float) -> float:
    """When the paid time ends: each begun unit is paid, and a minute at least."""
    lasts = max(end - begin, 0.0)
    if unit <= 1:
        return begin + max(lasts, float(LEAST_S))
    units = max(int(lasts // unit) + (lasts % unit > 0), 1)
    return begin + units * unit


def parts(
    paid: Paid, uses: Sequence[Use], drains: Sequence[tuple[int, int]]
) -> dict[str, Fraction]:
    """The micro-dollars by user of the machine's time, and by reason of unused time."""
    sums: defaultdict[str, Fraction] = defaultdict(Fraction)
    second = paid.price * MICRO / (HOUR_S * 1000)
    for begin, end in pairwise(_cuts(paid, uses, drains)):
        for who, share in _shares(paid, uses, drains, begin):
            sums[who] += second * (end - begin) * share
    return dict(sums)


def _cuts(paid: Paid, uses: Iterable[Use], drains: Iterable[tuple[int, int]]) -> list[int]:
    times = {paid.begin, paid.end, paid.up, paid.over}
    for use in uses:
        times |= {use.begin, use.end}
    for drain in drains:
        times |= {*drain}
    return sorted(time for time in times if paid.begin <= time <= paid.end)


def _shares(
    paid: Paid, uses: Iterable[Use], drains: Iterable[tuple[int, int]], time: int
) -> Iterator[tuple[str, Fraction]]:
    here = [use for use in uses if use.begin <= time < use.end]
    taken = sum((use.share for use in here), Fraction(0))
    for use in here:
        yield use.who, use.share / max(taken, Fraction(1))
    if taken < 1:
        yield _reason(paid, drains, time), 1 - taken


def _reason(paid: Paid, drains: Iterable[tuple[int, int]], time: int) -> str:
    if paid.off:
        return "stopped"
    if time >= paid.over:
        return "ending"
    if time < paid.up:
        return "boot"
    return "drain" if any(a <= time < b for a, b in drains) else "idle"
