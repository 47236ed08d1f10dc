"""The answer of the ranking to a request of nodes: which offers can serve it, and why not others.

``cluster`` has no causes: programs that run as root on machines need its values, and load none of
the causes for them.
"""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.base.units import money
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import NodeRequest, Offer


class Ranked(Struct, frozen=True, kw_only=True):
    """An offer that can serve up to ``room`` nodes of a request. ``bound``: the limit that prevents
    more, None if there is room for all nodes.
    """

    offer: Offer
    room: int
    bound: AnyCause | None = None

    @property
    def reason(self) -> str:
        """Why the offer has this rank, for people."""
        text = f"{self.offer.location}, {self.offer.market}, {money(self.offer.price)}/h"
        separator = ", " if self.offer.interruption_rate or self._payment else "; "
        return separator.join((text, self.notes)) if self.notes else text

    @property
    def notes(self) -> str:
        """The part of the reason that the offer's own columns in a table do not show."""
        rate = self.offer.interruption_rate
        rate_text = f"taken {rate:g} times an hour" if rate else ""
        bound = f"room is bounded: {self.bound}" if self.bound else ""
        return "; ".join(filter(None, (self._payment, rate_text, bound)))

    @property
    def _payment(self) -> str:
        """The part of a reservation's price by which the ranking goes, if it is not the whole."""
        added = self.offer.marginal_price
        if added >= self.offer.price:
            return ""
        return f"{money(added)}/h of it is not paid yet" if added else "paid already"


class Rejected(Struct, frozen=True, kw_only=True):
    """An offer that cannot serve a request now, and why."""

    offer: Offer
    cause: AnyCause

    @property
    def reason(self) -> str:
        """The cause for people."""
        return str(self.cause)


class Placement(Struct, frozen=True, kw_only=True):
    """The answer of the ranking: offers best first, and the rejected ones with reasons."""

    request: NodeRequest
    ranked: tuple[Ranked, ...]
    rejected: tuple[Rejected, ...]
