"""Options of ``simulate`` and ``plan``: how long machines boot and how the cloud bills them."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from slurm_elastic.cli.arguments import MAX_ARGUMENT, amount, count
from slurm_elastic.simulate.bills.billing import Billing, parse
from slurm_elastic.simulate.boot import BootTimes


class Reserved(NamedTuple):
    """Machines of a pool that are paid at all times; ``price`` is $/h for each machine."""

    pool: str
    machines: int
    price: float


def boot(text: str) -> tuple[tuple[int, float], ...]:
    """Parse ``120``, or boot times by batch size such as ``1:90,16:150``, for argparse.

    Returns pairs (machines that boot together, seconds).
    """
    sizes, times = [], []
    for point_text in text.split(","):
        size, colon, seconds = point_text.partition(":")
        sizes.append(count(size) if colon else 1)
        times.append(count(seconds if colon else size))
    points = tuple(zip(sizes, map(float, times), strict=True))
    try:
        BootTimes(points)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]}: {error}") from None
    return points


def billing(text: str) -> Billing:
    """Parse ``per_second(minimum=60)`` or ``hourly(refund=true, seconds=3600)``, for argparse."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def by_pool(text: str) -> tuple[str | None, float]:
    """Parse ``[POOL=]NUMBER``, for argparse. The pool is None if the number is for all pools."""
    pool, equals, number = text.rpartition("=")
    if equals and not pool:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not [POOL=]NUMBER")
    return pool or None, amount(number)


def reserved(text: str) -> Reserved:
    """Parse ``POOL=N@PRICE``, for argparse."""
    pool, _, terms = text.partition("=")
    machines, _, price = terms.partition("@")
    try:
        reservation = Reserved(pool, int(machines), float(price))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not POOL=MACHINES@PRICE") from None
    is_plausible = (
        1 <= reservation.machines <= MAX_ARGUMENT and 0 <= reservation.price <= MAX_ARGUMENT
    )
    if not pool or not is_plausible:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not POOL=MACHINES@PRICE")
    return reservation
