"""A machine's charge, split over the jobs that it ran and what nobody used of it. Pure.

**The rule** (``slurm-elastic/1``). A machine is paid from its launch on, each begun lease whole, at
the price at which it was bought. Hour by hour of UTC that charge is split: in each moment a job is
charged the largest of its shares of the machine's CPUs, memory and GPUs; where these shares are
more than the whole machine together, each in proportion. The rest is ``unused``, with the reason:
``boot`` until the node has registered, ``drain`` while it takes no jobs, ``ending`` from the
decision to end it until the end of what is paid, ``stopped`` while it is stopped, else ``idle``.

Money is in whole micro-dollars. Hours add up to the charge (``Lease.between``); an hour's
micro-dollars are handed out by the largest remainder, so parts add up to the hour. Points in time
are milliseconds of Unix time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeVar

METHOD = "slurm-elastic/1"
WHOLE = 1_000_000
"""Shares are in millionths of a machine."""
HOUR = 3_600_000
_PICO = 10**12
_SUFFIXES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}

Key = TypeVar("Key", bound=Hashable)


class Unused(StrEnum):
    """Why nobody used a machine that was paid."""

    BOOT = "boot"
    IDLE = "idle"
    DRAIN = "drain"
    ENDING = "ending"
    STOPPED = "stopped"


class Lease(NamedTuple):
    """The paid time of a machine, from ``begin`` to ``end``, at ``price`` ($/h). ``up``: since when
    its node was registered (``end``: never); ``over``: when it was decided to end it, or it ended.
    ``stopped``: all of that time it is.
    """

    begin: int
    end: int
    price: float
    up: int
    over: int
    stopped: bool = False

    def charged(self, until: int) -> int:
        """Micro-dollars from its beginning until then, rounded half up."""
        paid = max(min(until, self.end) - self.begin, 0)
        pico = round(self.price * _PICO) * paid
        unit = HOUR * 1_000_000  # pico-dollars times ms an hour, in a micro-dollar
        return (2 * pico + unit) // (2 * unit)

    def between(self, since: int, until: int) -> int:
        """Micro-dollars of that span."""
        # As a difference of two rounded sums, so that hours add up to the charge exactly.
        return self.charged(until) - self.charged(since)


class Use(NamedTuple):
    """Run number ``run`` has ``share`` of the machine from ``begin`` to ``end``."""

    run: int
    begin: int
    end: int
    share: int


class Drain(NamedTuple):
    """A span in which the machine's node took no jobs."""

    begin: int
    end: int


class Hour(NamedTuple):
    """A span within one hour of UTC: what it costs, and of that each run (by number) and each
    reason why nobody used it. ``weights``: by the same, milliseconds times millionths of it.
    """

    begin: int
    end: int
    micro: int
    parts: Mapping[int | Unused, int]
    weights: Mapping[int | Unused, int]


def paid_until(begin: float, end: float, lease: int, minimum: float) -> float:
    """The end of what is paid of a machine that runs from ``begin`` to ``end`` (s)."""
    seconds = max(end - begin, 0.0)
    if lease <= 1:
        return begin + max(seconds, minimum)
    return begin + max(-(-seconds // lease), 1) * lease


def share(allocated: str, nodes: int, cpus: int, memory: int, gres: Mapping[str, int]) -> int:
    """The largest share (millionths) that a job on ``nodes`` nodes, alike on each, has of one with
    so many CPUs, MiB and units of ``gres``; ``allocated`` is Slurm's ``cpu=4,mem=8G,gres/gpu=1``.
    At least one millionth, and the whole where Slurm tells nothing.
    """
    has = amounts(allocated)
    whole = {"cpu": cpus, "mem": memory} | {f"gres/{name}": n for name, n in gres.items()}
    parts = [has[name] / nodes / most for name, most in whole.items() if most and name in has]
    return min(max(round(max(parts) * WHOLE), 1), WHOLE) if parts else WHOLE


def amounts(tres: str) -> dict[str, float]:
    """``cpu=4,mem=8G,gres/gpu=1`` by name, memory in MiB; what is no number is left out."""
    found = {}
    for word in tres.split(","):
        name, _, text = word.partition("=")
        number = text.rstrip("KMGTP")
        if number.replace(".", "", 1).isdecimal():
            found[name] = float(number) * _SUFFIXES.get(text[len(number) :], 1.0)
    return found


def apportion(total: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """``total`` in whole parts by weight: by the largest remainder, of equal ones the first. The
    parts sum to ``total``; there must be a weight over 0.
    """
    whole = sum(weights.values())
    found = {key: total * weight // whole for key, weight in weights.items()}
    left = total - sum(found.values())
    if left:
        by_rest = sorted(weights, key=lambda key: -(total * weights[key] % whole))
        for key in by_rest[:left]:
            found[key] += 1
    return found


def split(
    lease: Lease, uses: Sequence[Use], drains: Sequence[Drain], since: int, until: int
) -> Iterator[Hour]:
    """The charge of what lies in the span, hour by hour."""
    begin, end = max(lease.begin, since), min(lease.end, until)
    cuts = _cuts(lease, uses, drains, begin, end)
    to_come = sorted(uses, key=lambda use: -use.begin)
    there: list[Use] = []
    weights: dict[int | Unused, int] = {}
    hour = begin
    for at, to in pairwise(cuts):
        while to_come and to_come[-1].begin <= at:
            there.append(to_come.pop())
        there = [use for use in there if use.end > at]
        for key, weight in _weights(lease, there, drains, at).items():
            weights[key] = weights.get(key, 0) + weight * (to - at)
        if to % HOUR == 0 or to == end:
            micro = lease.between(hour, to)
            yield Hour(hour, to, micro, apportion(micro, weights), weights)
            hour, weights = to, {}


def _cuts(
    lease: Lease, uses: Iterable[Use], drains: Iterable[Drain], begin: int, end: int
) -> list[int]:
    """Where something begins or ends, in order."""
    if begin >= end:
        return []
    found = {begin, end, lease.up, lease.over, *range(begin - begin % HOUR, end, HOUR)}
    for use in uses:
        found.update((use.begin, use.end))
    for drain in drains:
        found.update((drain.begin, drain.end))
    return sorted(at for at in found if begin <= at <= end)


def _weights(
    lease: Lease, there: Iterable[Use], drains: Iterable[Drain], at: int
) -> dict[int | Unused, int]:
    """Millionths of the machine from then on, with the uses that are there."""
    found: dict[int | Unused, int] = {use.run: use.share for use in there}
    used = sum(found.values())
    if used > WHOLE:
        return apportion(WHOLE, found)
    if used < WHOLE:
        found[_reason(lease, drains, at)] = WHOLE - used
    return found


def _reason(lease: Lease, drains: Iterable[Drain], at: int) -> Unused:
    if lease.stopped:
        return Unused.STOPPED
    if at >= lease.over:
        return Unused.ENDING
    if at < lease.up:
        return Unused.BOOT
    if any(drain.begin <= at < drain.end for drain in drains):
        return Unused.DRAIN
    return Unused.IDLE
