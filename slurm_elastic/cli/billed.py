"""The options of ``simulate`` and ``plan`` that say how machines boot and how they are paid."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from slurm_elastic.cli.arguments import MOST, count
from slurm_elastic.simulate.billing import Billing, parse
from slurm_elastic.simulate.boot import BootTimes


class Reserved(NamedTuple):
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
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
