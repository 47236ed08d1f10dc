"""The options of ``simulate`` and ``plan`` that say how machines boot and how they are paid."""

from __future__ import annotations

import argparse

from msgspec import Struct

from slurm_elastic.cli.arguments import MOST, count
from slurm_elastic.policies.policy_text import parse_policy
from slurm_elastic.simulate.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes


class Reserved(Struct, frozen=True):
    """Machines of a pool that are paid always, at $/h each."""

    pool: str
    machines: int
    price: float


def boot(text: str) -> tuple[tuple[int, float], ...]:
    """``120``, or by batch size ``1:90,16:150``: (machines, seconds)."""
    sizes, times = [], []
    for part in text.split(","):
        size, colon, seconds = part.partition(":")
        sizes.append(count(size) if colon else 1)
        times.append(count(seconds if colon else size))
    points = tuple(zip(sizes, map(float, times), strict=True))
    try:
        BootTimes(points)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]}: {error}") from None
    return points


def billing(text: str) -> Billing:
    """``per_second(minimum=60)`` or ``hourly(refund=true, seconds=3600)``, for argparse."""
    try:
        found: Billing = parse_policy(text, {"per_second": _per_second, "hourly": _hourly})
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def reserved(text: str) -> Reserved:
    """``POOL=N@PRICE``, for argparse."""
    pool, _, rest = text.partition("=")
    machines, _, price = rest.partition("@")
    try:
        found = Reserved(pool, int(machines), float(price))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not POOL=MACHINES@PRICE") from None
    if not pool or not 1 <= found.machines <= MOST or not 0 <= found.price <= MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not POOL=MACHINES@PRICE")
    return found


def _per_second(minimum: int = 60) -> PerSecond:
    if not isinstance(minimum, int) or minimum < 0:
        raise ValueError(f"minimum is {minimum!r}, expected whole seconds of 0 or more")
    return PerSecond(minimum)


def _hourly(refund: object = "true", seconds: int = 3600) -> Hourly:
    word = str(refund).lower()
    if word not in ("true", "false"):
        raise ValueError(f"refund is {refund!r}, expected true or false")
    if not isinstance(seconds, int) or seconds < 1:
        raise ValueError(f"seconds is {seconds!r}, expected whole seconds over 0")
    return Hourly(refund=word == "true", seconds=seconds)
