"""A machine's charge, split over the jobs that it ran and its unused time. Pure.

**The rule** (``slurm-elastic/1``). A machine is paid from its launch on, each begun lease in full,
at the price at which it was bought. The charge is split for each hour of UTC. In each moment a job
is charged the largest of its shares of the machine's CPUs, memory and GPUs. If these shares
together exceed the machine, each is reduced in proportion. The remainder is ``unused``, with a
reason: ``boot`` until the node has registered, ``drain`` while it takes no jobs, ``ending`` from
the decision to end it until the end of the paid time, ``stopped`` while it is stopped, else
``idle``. The part of a reservation that no machine used is ``reserved``
(``policies.money.reservations``).

Money is in whole micro-dollars. Hours add up to the charge (``PaidTime.between``), and the parts of
an hour add up to the hour, because its micro-dollars are distributed by the largest remainder.
Points in time are milliseconds of Unix time.
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
    """Why a paid machine was not used."""

    BOOT = "boot"
    IDLE = "idle"
    DRAIN = "drain"
    ENDING = "ending"
    STOPPED = "stopped"
    RESERVED = "reserved"


class PaidTime(NamedTuple):
    """The paid time of a machine, from ``begin`` to ``end``, at ``price`` ($/h). ``up``: when its
    node registered (``end``: never). ``over``: when its end was decided, or when it ended.
    ``stopped``: it was stopped all the time.
    """

    begin: int
    end: int
    price: float
    up: int
    over: int
    stopped: bool = False

    def charged(self, until: int) -> int:
        """Return the micro-dollars from ``begin`` to ``until``, rounded half up."""
        paid = max(min(until, self.end) - self.begin, 0)
        # Whole numbers: sums of floats would differ from the charge by a micro-dollar.
        pico = round(self.price * _PICO) * paid
        unit = HOUR * 1_000_000  # pico-dollars times ms an hour, in a micro-dollar
        return (2 * pico + unit) // (2 * unit)

    def between(self, since: int, until: int) -> int:
        """Return the micro-dollars of that span."""
        # A difference of two rounded sums, so that hours add up to the charge exactly.
        return self.charged(until) - self.charged(since)


class RunUse(NamedTuple):
    """Run number ``run`` has ``share`` of the machine from ``begin`` to ``end``."""

    run: int
    begin: int
    end: int
    share: int


class Drain(NamedTuple):
    """A span in which the machine's node took no jobs."""

    begin: int
    end: int


class CostHour(NamedTuple):
    """A span within one hour of UTC: its cost (``micro``), divided over runs (by number) and
    reasons for no use (``parts``). ``weights``: the same keys, in milliseconds times millionths of
    the machine.
    """

    begin: int
    end: int
    micro: int
    parts: Mapping[int | Unused, int]
    weights: Mapping[int | Unused, int]


def share(allocated: str, nodes: int, cpus: int, memory: int, gres: Mapping[str, int]) -> int:
    """Return the largest share (millionths) that a job on ``nodes`` equal nodes has of one node
    with so many CPUs, MiB and units of ``gres``. ``allocated``: Slurm's
    ``cpu=4,mem=8G,gres/gpu=1``. At least one millionth; the whole machine if Slurm reports nothing.
    """
    node_shares = [
        amount / nodes / whole
        for name, amount in amounts(allocated).items()
        if (whole := _whole_of(name, cpus, memory, gres))
    ]
    return min(max(round(max(node_shares) * WHOLE), 1), WHOLE) if node_shares else WHOLE


def _whole_of(name: str, cpus: int, memory: int, gres: Mapping[str, int]) -> int:
    """Return the amount of a TRES on a node. ``gres/gpu`` counts all types of GPUs: Slurm reports
    the type only if AccountingStorageTRES names it.
    """
    kind, _, gres_name = name.partition("/")
    if kind != "gres":
        return {"cpu": cpus, "mem": memory}.get(name, 0)
    return sum(
        count for key, count in gres.items() if key == gres_name or key.startswith(f"{gres_name}:")
    )


def amounts(tres: str) -> dict[str, float]:
    """Parse ``cpu=4,mem=8G,gres/gpu=1`` into amounts by name, memory in MiB. Values other than
    numbers are omitted.
    """
    amount_by_name = {}
    for word in tres.split(","):
        name, _, text = word.partition("=")
        number = text.rstrip("KMGTP")
        if number.replace(".", "", 1).isdecimal():
            amount_by_name[name] = float(number) * _SUFFIXES.get(text[len(number) :], 1.0)
    return amount_by_name


def apportion(total: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """Divide ``total`` into whole parts by weight with the largest-remainder method; of equal
    remainders the first wins. The parts sum to ``total``. At least one weight must be over 0.
    """
    whole = sum(weights.values())
    part_by_key = {key: total * weight // whole for key, weight in weights.items()}
    undistributed = total - sum(part_by_key.values())
    if undistributed:
        # ``sorted`` is stable, so of equal remainders the first key wins.
        by_rest = sorted(weights, key=lambda key: -(total * weights[key] % whole))
        for key in by_rest[:undistributed]:
            part_by_key[key] += 1
    return part_by_key


def split(
    lease: PaidTime, uses: Sequence[RunUse], drains: Sequence[Drain], since: int, until: int
) -> Iterator[CostHour]:
    """Yield the charge of the span from ``since`` to ``until``, hour by hour."""
    begin, end = max(lease.begin, since), min(lease.end, until)
    cuts = _cuts(lease, uses, drains, begin, end)
    # The earliest run last, so that ``pop`` takes it.
    to_come = sorted(uses, key=lambda use: -use.begin)
    current_uses: list[RunUse] = []
    weights: dict[int | Unused, int] = {}
    hour = begin
    for start, stop in pairwise(cuts):
        while to_come and to_come[-1].begin <= start:
            current_uses.append(to_come.pop())
        current_uses = [use for use in current_uses if use.end > start]
        for key, weight in _weights(lease, current_uses, drains, start).items():
            weights[key] = weights.get(key, 0) + weight * (stop - start)
        if stop % HOUR == 0 or stop == end:
            micro = lease.between(hour, stop)
            yield CostHour(hour, stop, micro, apportion(micro, weights), weights)
            hour, weights = stop, {}


def _cuts(
    lease: PaidTime, uses: Iterable[RunUse], drains: Iterable[Drain], begin: int, end: int
) -> list[int]:
    """Return the times at which something begins or ends, in order."""
    if begin >= end:
        return []
    # Also each full hour, because ``split`` completes an hour only at a cut.
    times = {begin, end, lease.up, lease.over, *range(begin - begin % HOUR, end, HOUR)}
    for use in uses:
        times.update((use.begin, use.end))
    for drain in drains:
        times.update((drain.begin, drain.end))
    return sorted(time for time in times if begin <= time <= end)


def _weights(
    lease: PaidTime, current_uses: Iterable[RunUse], drains: Iterable[Drain], start: int
) -> dict[int | Unused, int]:
    """Return the millionths of the machine from that time on, by run and by reason for no use."""
    weights: dict[int | Unused, int] = {use.run: use.share for use in current_uses}
    used = sum(weights.values())
    if used > WHOLE:
        return apportion(WHOLE, weights)
    if used < WHOLE:
        weights[_reason(lease, drains, start)] = WHOLE - used
    return weights


def _reason(lease: PaidTime, drains: Iterable[Drain], time: int) -> Unused:
    # The order matters: a machine whose end is decided may be drained, and counts as ending.
    if lease.stopped:
        return Unused.STOPPED
    if time >= lease.over:
        return Unused.ENDING
    if time < lease.up:
        return Unused.BOOT
    if any(drain.begin <= time < drain.end for drain in drains):
        return Unused.DRAIN
    return Unused.IDLE
