"""Offers told together: one line for all that were rejected for the same cause. Pure.

A pool may have hundreds of offers, and each round of a request has something to say about each. The
text that is kept grows with the number of causes: two reasons are of one cause where they differ in
numbers and in the names of types and zones only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.base.units import counted
from slurm_elastic.model.cluster import Offer

LONGEST = 240
"""Characters that are kept of one reason: a cloud's error may be a page."""
TOLD = 3
"""Causes that a sentence names; the detail of a decision has more."""
DO = "; do: "
"""What stands in a reason before its remedy."""
_LEAST = 60
"""Characters of a cause that stay, however long its remedy is."""
_NUMBER = re.compile(r"(?<!\w)\d+[smhd]\b(?: \d+[smh]\b)?|\d+(?:\.\d+)?")  # also ``1h 3m``


class Group(Struct, frozen=True, kw_only=True):
    """Offers with one cause; ``reason`` is that of the first of them, in its own words."""

    reason: str
    offers: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The cause with whom it is about."""
        first, count = self.offers[0], len(self.offers)
        return f"{first}: {self.reason}" if count == 1 else f"{count} offers: {self.reason}"

    @property
    def row(self) -> list[object]:
        """As the detail of a decision has it: reason, how many, which."""
        return [self.reason, len(self.offers), braces(self.offers)]


def grouped(reasons: Iterable[tuple[Offer, str]]) -> tuple[Group, ...]:
    """The offers by cause, the largest group first, then in the order in which they came."""
    pairs = list(reasons)
    # The longest first, as one name may be the beginning of another.
    names = sorted({n for o, _ in pairs for n in (o.instance_type, o.zone)}, key=len, reverse=True)
    named = re.compile("|".join(re.escape(name) for name in names)) if names else None
    found: dict[str, tuple[str, list[str]]] = {}
    for offer, reason in pairs:
        cause = _NUMBER.sub("#", named.sub("*", reason) if named else reason)
        found.setdefault(cause, (shortened(reason), []))[1].append(offer.key)
    groups = [Group(reason=why, offers=tuple(keys)) for why, keys in found.values()]
    return tuple(sorted(groups, key=lambda group: -len(group.offers)))


def sentence(groups: Sequence[Group]) -> str:
    """The causes in one line; the smallest are only counted."""
    told = [group.sentence for group in groups[:TOLD]]
    rest = sum(len(group.offers) for group in groups[TOLD:])
    if rest:
        told.append(f"{rest} more for {counted(len(groups) - TOLD, 'other reason')}")
    return "; ".join(told)


def braces(keys: Iterable[str]) -> list[str]:
    """Offer keys (``cloud/type/zone/market``) with what they share written once, as a shell expands
    it: ``aws/{c5.large,m5.large}/a/{on-demand,spot}``.
    """
    by_type: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        cloud, kind, place = _parts(key)
        by_type.setdefault((cloud, kind), []).append(place)
    by_places: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (cloud, kind), places in by_type.items():
        by_places.setdefault((cloud, tuple(sorted(places))), []).append(kind)
    return [
        "/".join(part for part in (cloud, _set(sorted(kinds)), _set(_by_market(places))) if part)
        for (cloud, places), kinds in by_places.items()
    ]


def generalised(reason: str) -> str:
    """The reason without its numbers: the same cause told at two times is one text."""
    return _NUMBER.sub("#", reason)


def _by_market(places: Iterable[str]) -> list[str]:
    """``zone/market`` of one type, zones with the same markets together."""
    markets: dict[str, list[str]] = {}
    for place in places:
        zone, _, market = place.partition("/")
        markets.setdefault(zone, []).append(market)
    zones: dict[tuple[str, ...], list[str]] = {}
    for zone, some in markets.items():
        zones.setdefault(tuple(some), []).append(zone)
    return [f"{_set(of)}/{_set(some)}".rstrip("/") for some, of in zones.items()]


def _parts(key: str) -> tuple[str, str, str]:
    cloud, _, rest = key.partition("/")
    kind, _, place = rest.partition("/")
    return cloud, kind, place


def _set(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ",".join(names) + "}"


def shortened(text: str, most: int = LONGEST) -> str:
    """At most so many characters: the cause is cut, and what to do about it stays whole."""
    cause, then, remedy = " ".join(text.split()).partition(DO)
    room = max(most - len(then) - len(remedy), _LEAST)
    return (
        f"{cause}{then}{remedy}" if len(cause) <= room else f"{cause[: room - 3]}...{then}{remedy}"
    )
