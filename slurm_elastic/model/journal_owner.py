"""Whose journal this is: the host of its head, and since when it has every launch."""

from __future__ import annotations

from msgspec import Struct

MAX_CARDS = 64
"""Virtual functions of a card (SR-IOV) may get new addresses at each boot."""


class Host(Struct, frozen=True, kw_only=True):
    """A host as its journal recognises it. ``name``: for people. ``machine``: the text of
    /etc/machine-id. ``cards``: the addresses of the network cards, which a clone of a virtual
    machine does not share. An empty part is not known.
    """

    name: str = ""
    machine: str = ""
    cards: tuple[str, ...] = ()

    def may_be(self, other: Host) -> bool:
        """Whether both descriptions may be of one host: nothing that both know contradicts it."""
        if self.machine and other.machine and self.machine != other.machine:
            return False
        # One common card is enough: a card may be replaced, or appear late at boot.
        return not (self.cards and other.cards) or not set(self.cards).isdisjoint(other.cards)

    def seen_again(self, now: Host) -> Host:
        """The host as it describes itself ``now``, with the cards of earlier starts, too: a card
        may be late once, and at the next start another one may be broken.
        """
        earlier = [card for card in self.cards if card not in now.cards]
        cards = (*now.cards, *earlier)[:MAX_CARDS]
        return Host(name=now.name, machine=now.machine or self.machine, cards=tuple(sorted(cards)))


class JournalOwner(Struct, frozen=True, kw_only=True):
    """The head that a journal belongs to.

    ``knows_since``: the journal has every launch that this head made after that time (Unix time).
    ``origin``: the journal that these facts are about; a restored journal has another one.
    ``accepted``: ids of machines of another head that a person has given to this head.
    """

    knows_since: float
    origin: str = ""
    host: Host = Host()
    accepted: tuple[str, ...] = ()
