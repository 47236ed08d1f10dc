"""A bound on what a job with a deadline could cost on spot machines if all were known before.

The job must do its work by the deadline; with a price ``worth`` on each second of work in its place
(the Lagrangian of that rule) the dearest and the cheapest plan fall apart into ticks, and a walk
from the last tick to the first finds the best one. No plan costs less than the best such bound.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import ceil

STEPS = 14
"""Halvings of the range in which the best ``worth`` lies."""
_NOTHING = (0.0, 0.0)

Gain = tuple[float, float]
"""The worth of the work less what machines cost, and the seconds of work."""


def windows(
    counts: Sequence[int], look: float, deadline: float, starts: int, seed: int = 0
) -> Iterator[list[bool]]:
    """Whether spot machines are there at each tick, from the starts that ``tried`` takes first."""
    chance = random.Random(seed)
    ticks = int(deadline // look) + 2
    last = len(counts) - ticks
    for _ in range(starts):
        first = chance.randrange(last if last > 0 else len(counts))
        yield [counts[(first + tick) % len(counts)] > 0 for tick in range(ticks)]


def least(
    available: Sequence[bool],
    look: float,
    *,
    work: float,
    deadline: float,
    restart: float,
    price: float,
) -> float:
    """Seconds at the on-demand price that the job costs at least; arguments as of ``race``."""
    low, high, found = 0.0, 4.0, 0.0
    some = available[: ceil(deadline / look)]
    for _ in range(STEPS):
        worth = (low + high) / 2
        gain, done = _best(some, look, restart, price, worth)
        found = max(found, worth * work - gain)
        low, high = (worth, high) if done < work else (low, worth)
    return found


def _best(
    available: Sequence[bool], look: float, restart: float, price: float, worth: float
) -> Gain:
    """The gain of the best plan: it begins nothing that is lost, or left, while it restarts."""
    ticks, ways = len(available), max(ceil(restart / look), 1)
    rates = (price, 1.0)
    run = [(worth - rate) * look for rate in rates]
    begin = ways * look - restart
    start = [worth * begin - rate * ways * look for rate in rates]
    on: tuple[list[Gain], list[Gain]] = ([_NOTHING] * (ticks + 1), [_NOTHING] * (ticks + 1))
    waiting, up = _NOTHING, 0
    for tick in range(ticks - 1, -1, -1):
        up = up + 1 if available[tick] else 0
        after = tick + ways
        for market in (0, 1) if up >= ways else (1,):
            if after <= ticks:
                gain, done = on[market][after]
                waiting = max(waiting, (start[market] + gain, begin + done))
        for market in (0, 1):
            on[market][tick] = waiting
            if market or up:
                gain, done = on[market][tick + 1]
                on[market][tick] = max(waiting, (run[market] + gain, look + done))
    return waiting
