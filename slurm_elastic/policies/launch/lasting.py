"""Whether a cloud has enough machines that stay as long as a job may run. Pure; slurm-elasticd and
the simulator decide by it.

A reservation may end its machines (EC2's capacity blocks). If a job that cannot end in time asks
for the cloud's machines all the same, the launch is refused and the pool is held for a while. The
shorter jobs behind it then get no machine either.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.misfits import ReservationEnds
from slurm_elastic.model.cluster import NodeRequest, Offer
from slurm_elastic.policies.launch.ranking import Scope, ceiling
from slurm_elastic.policies.launch.reservations import misfit, serves_later

Asked = Sequence[tuple[NodeRequest, Sequence[Offer]]]
"""The pools of one cloud that may serve a job: a request for all nodes of the pool, its offers."""


def early_end(
    asked: Asked, count: int, need_s: float, scope: Scope, now: float, *, may_wait: bool
) -> ReservationEnds | None:
    """Return the last end of a reservation that leaves fewer than ``count`` machines which stay for
    ``need_s`` after their boot (``scope.boot_s``). None if there are enough, or if a reservation's
    end is not the only obstacle. ``may_wait``: machines of a reservation that begins later count.
    """
    boot_s = scope.boot_s
    ends: list[ReservationEnds] = []
    lasting: list[tuple[NodeRequest, Sequence[Offer]]] = []
    for request, offers in asked:
        judged = [(offer, misfit(offer, need_s, boot_s, now)) for offer in offers]
        lasting_offers = [
            offer
            for offer, cause in judged
            if cause is None or (may_wait and serves_later(offer, need_s, boot_s, now))
        ]
        lasting.append((request, lasting_offers))
        ends += [
            cause
            for offer, cause in judged
            # If the reservation ends before any machine could boot, no other job loses anything,
            # and the nodes are held with that cause.
            if isinstance(cause, ReservationEnds) and misfit(offer, 0.0, boot_s, now) is None
        ]
    if not ends or not sum_ceilings(lasting, scope)[0] < count <= sum_ceilings(asked, scope)[0]:
        return None
    return max(ends, key=lambda end: end.ends_at)


def next_begin(asked: Asked, need_s: float, scope: Scope, now: float) -> float | None:
    """Return when the next reservation begins (Unix s) whose machines stay for ``need_s`` after
    their boot; None if no such reservation is known.
    """
    later = (
        offer.held.begins_at
        for _, offers in asked
        for offer in offers
        if offer.held is not None and serves_later(offer, need_s, scope.boot_s, now)
    )
    return min(later, default=None)


def sum_ceilings(asked: Asked, scope: Scope) -> tuple[int, AnyCause | None]:
    """Return how many nodes of these pools could ever be up together under the limits of ``scope``,
    and the bound that limits them.
    """
    total = 0
    limiting: AnyCause | None = None
    for request, offers in asked:
        room, bound = ceiling(request, offers, scope)
        total, limiting = total + room, limiting or bound
    return total, limiting
