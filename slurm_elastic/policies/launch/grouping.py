"""Offers told together: one line for all that were rejected for the same cause. Pure.

A pool may have hundreds of offers, and each round of a request has something to say about each. The
text that is kept grows with the number of causes: two reasons are of one cause where they differ in
numbers and in the names of types and zones only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from slurm_elastic.model.causes import AnyCause, Cause, Quoted
from slurm_elastic.model.causes.composed import NoOfferServes, OffersRefused
from slurm_elastic.model.cluster import Offer

LONGEST = 240
"""Characters that are kept of one reason: a cloud's error may be a page."""
TOLD = 3
"""Causes that a sentence names; the detail of a decision has more."""
_NUMBER = re.compile(r"(?<!\w)\d+[smhd]\b(?: \d+[smh]\b)?|\d+(?:\.\d+)?")  # also ``1h 3m``


class Group(Struct, frozen=True, kw_only=True):
    """Offers with one cause: that of the first of them, a cloud's own words shortened in it."""

    cause: AnyCause
    offers: tuple[str, ...]

    @property
    def refused(self) -> OffersRefused:
        """As a cause has it."""
        return OffersRefused(first=self.offers[0], count=len(self.offers), cause=self.cause)

    @property
    def row(self) -> list[object]:
        """As the detail of a decision has it: reason, how many, which."""
        return [str(self.cause), len(self.offers), braces(self.offers)]


def grouped(causes: Iterable[tuple[Offer, AnyCause]]) -> tuple[Group, ...]:
    """The offers by cause, the largest group first, then in the order in which they came."""
    pairs = list(causes)
    # The longest first, as one name may be the beginning of another.
    names = sorted({n for o, _ in pairs for n in (o.instance_type, o.zone)}, key=len, reverse=True)
    named = re.compile("|".join(re.escape(name) for name in names)) if names else None
    found: dict[object, tuple[AnyCause, list[str]]] = {}
    for offer, cause in pairs:
        kind = kind_of(cause, named)
        if kind not in found:
            found[kind] = with_short_quotes(cause), []
        found[kind][1].append(offer.key)
    groups = [Group(cause=cause, offers=tuple(keys)) for cause, keys in found.values()]
    return tuple(sorted(groups, key=lambda group: -len(group.offers)))


def no_offer_serves(groups: Sequence[Group]) -> NoOfferServes:
    """The causes of these groups in one; the smallest groups are only counted."""
    return NoOfferServes(
        groups=tuple(group.refused for group in groups[:TOLD]),
        more=sum(len(group.offers) for group in groups[TOLD:]),
        more_causes=len(groups[TOLD:]),
    )


def kind_of(value: object, named: re.Pattern[str] | None = None) -> object:
    """The same for two causes that differ in numbers and names of types and zones only."""
    if isinstance(value, Struct):
        fields = (getattr(value, name) for name in value.__struct_fields__)
        return (type(value), *(kind_of(field, named) for field in fields))
    if isinstance(value, str):
        return generalised(named.sub("*", value) if named else value)
    if isinstance(value, tuple):
        return tuple(kind_of(item, named) for item in value)
    return value if isinstance(value, bool) else None


def with_short_quotes(cause: AnyCause) -> AnyCause:
    """The cause, with texts of others in it shortened: a cloud's error may be a page."""
    if isinstance(cause, Quoted):
        return Quoted(text=shortened(cause.text))
    fields = {name: getattr(cause, name) for name in cause.__struct_fields__}
    inner = {n: with_short_quotes(f) for n, f in fields.items() if isinstance(f, Cause)}  # type: ignore[arg-type]
    return msgspec.structs.replace(cause, **inner) if inner else cause


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


def generalised(text: str) -> str:
    """A text of others without its numbers: the same cause at two times is one text."""
    return _NUMBER.sub("#", text)


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
    """At most so many characters: the middle is left out, because a text begins with what
    happened, and may end with what to do about it.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    end = most // 3
    return f"{line[: most - end - 3]}...{line[-end:]}"
