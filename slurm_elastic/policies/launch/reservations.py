"""When a reservation can take a machine, and how many. Pure.

A provider makes one offer for each type and zone that a reservation of its cloud covers
(``providers.base.offers``). The ranking asks here whether the reservation runs, whether it runs
long enough for the jobs, and how many of its machines are not in use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from slurm_elastic.model.causes.limits import ReservationUsed
from slurm_elastic.model.causes.misfits import ReservationEnds, ReservationNotRunning
from slurm_elastic.model.cluster import Offer, Usage
from slurm_elastic.model.reserved import Held

SLACK_S = 60.0
"""Seconds between the latest end of a job and the end of its machine, for boots that take a little
longer and for clocks that differ.
"""


def misfit(
    offer: Offer, needs_s: float, boot_s: float, now: float
) -> ReservationNotRunning | ReservationEnds | None:
    """Return why the offer's reservation cannot take a machine now; None if it can, or if the offer
    is of no reservation. The machine needs at most ``boot_s`` to register, and must stay for
    ``needs_s`` after that.
    """
    held = offer.held
    if held is None:
        return None
    machines_end_at = held.machines_end_at
    if not held.is_active(now):
        return ReservationNotRunning(
            reservation=held.name,
            begins_at=held.begins_at,
            ends_at=held.ends_at if machines_end_at is None else machines_end_at,
        )
    if machines_end_at is None or _lasts(held, now, boot_s + needs_s):
        return None
    return ReservationEnds(
        reservation=held.name,
        ends_at=machines_end_at,
        needs_s=None if math.isinf(needs_s) else needs_s,
    )


def serves_later(offer: Offer, needs_s: float, boot_s: float, now: float) -> bool:
    """Whether the offer's reservation has not begun, and will then run long enough for a machine
    that must stay for ``needs_s`` after its boot of at most ``boot_s``.
    """
    held = offer.held
    return (
        held is not None and held.begins_at > now and _lasts(held, held.begins_at, boot_s + needs_s)
    )


def _lasts(held: Held, start: float, seconds: float) -> bool:
    """Whether the cloud leaves a machine that starts at ``start`` alone for these ``seconds``."""
    end = held.machines_end_at
    return end is None or start + seconds + SLACK_S <= end


def room(offer: Offer, usage: Usage) -> tuple[int, ReservationUsed] | None:
    """Return how many more machines the offer's reservation covers, and this bound; None if the
    offer is of no reservation.
    """
    held = offer.held
    if held is None:
        return None
    machines = usage.nodes.get(held.key, 0)
    spent = usage.dollars_per_hour.get(held.key, 0.0)
    if held.is_savings_plan:
        # A billionth of slack against rounding, as for caps. A machine without a price uses nothing
        # of the plan.
        remaining = held.commit - spent
        price = offer.covered_price
        machines_left = math.floor(remaining / price + 1e-9) if price else 10**6
    else:
        machines_left = held.count - machines
    used = ReservationUsed(
        reservation=held.name,
        machines=machines,
        count=held.count,
        commit=held.commit,
        spent=spent,
    )
    return max(machines_left, 0), used


def levelled(
    needs: Mapping[int, float], ends: Collection[float], boot_s: float, now: float
) -> dict[int, float]:
    """Return the needs (seconds by job), each raised to the longest need that the same reservations
    can serve. So jobs with many different time limits need few launches. ``ends``: when the cloud
    ends the machines of its reservations that run now.
    """
    too_short = {
        job: sum(now + boot_s + need + SLACK_S > end for end in ends) for job, need in needs.items()
    }
    longest: dict[int, float] = {}
    for job, count in too_short.items():
        longest[count] = max(longest.get(count, 0.0), needs[job])
    # Jobs with the same ``count`` are too long for the same reservations, so one launch serves all.
    return {job: longest[count] for job, count in too_short.items()}


def split_by_need(
    nodes: Sequence[str], job_nodes: Mapping[int, Sequence[str]], needs: Mapping[int, float]
) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Split nodes into parts whose machines must stay equally long: (nodes, seconds), the shortest
    first. ``needs``: by job the seconds for which its machines must stay.

    Nodes that a chain of jobs shares stay together, because a job gets all its nodes in one
    decision or none.
    """
    part_of: dict[str, int] = {node: n for n, node in enumerate(nodes)}
    for of_job in job_nodes.values():
        joined = {part_of[node] for node in of_job if node in part_of}
        if len(joined) > 1:
            first = min(joined)
            part_of = {node: first if part in joined else part for node, part in part_of.items()}
    need_of = dict.fromkeys(part_of.values(), 0.0)
    for job, of_job in job_nodes.items():
        for node in of_job:
            if node in part_of:
                part = part_of[node]
                need_of[part] = max(need_of[part], needs.get(job, 0.0))
    by_need: dict[float, list[str]] = {}
    for node in nodes:
        by_need.setdefault(need_of[part_of[node]], []).append(node)
    return tuple((tuple(by_need[need]), need) for need in sorted(by_need))


def has_ends(offers: Collection[Offer]) -> bool:
    """Whether an offer is of a reservation at whose end the cloud ends the machines."""
    return any(o.held is not None and o.held.machines_end_at is not None for o in offers)
