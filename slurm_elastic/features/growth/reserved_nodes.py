"""Slurm's reservations of our nodes, in words. Pure, except for the head's time zone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.policies.launch.verdict import ReservedNodes

_DAY_S = 86400.0


def reservation_sentence(reservation: Reservation, nodes: Sequence[str], now: float) -> str:
    """Return whose reservation has which of our nodes, from when until when."""
    owner_names = [*reservation.owners, *(["maintenance"] if "MAINT" in reservation.flags else [])]
    owners = f" ({', '.join(owner_names)})" if owner_names else ""
    has = "has" if reservation.start <= now else "will have"
    times = f"from {when(reservation.start, now)} to {when(reservation.end, now)}"
    return f"reservation {reservation.name}{owners} {has} {compress(nodes)} {times}"


def reserved_nodes(
    reservations: Iterable[Reservation], nodes: Sequence[str], now: float
) -> tuple[ReservedNodes, ...]:
    """Return the reservations, present or future, over some of the ``nodes``."""
    return tuple(
        ReservedNodes(
            name=reservation.name, nodes=frozenset(own_nodes),
            start=reservation.start, end=reservation.end,
            text=reservation_sentence(reservation, own_nodes, now),
        )
        for reservation in reservations
        if (own_nodes := [name for name in nodes if name in reservation.nodes])
        and reservation.end > now
    )  # fmt: skip


def when(moment: float, now: float) -> str:
    """Return the head's local time with its zone; "" for 0, which is unknown.

    A time at least 12 hours away has its date.
    """
    if not moment:
        return ""
    form = "%H:%M %Z" if abs(moment - now) < _DAY_S / 2 else "%Y-%m-%d %H:%M %Z"
    return time.strftime(form, time.localtime(moment))
