"""Groups offers that were rejected for the same cause into one line. Pure.

A pool may have hundreds of offers, and each round of a request rejects most of them. The recorded
text grows with the number of causes only: two reasons have the same cause if they differ only in
numbers and in the names of types and zones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from slurm_elastic.base.one_line import one_line
from slurm_elastic.model.causes import AnyCause, Cause, Quoted
from slurm_elastic.model.causes.composed import NoOfferServes, OffersRefused
from slurm_elastic.model.cluster import Offer

MAX_CAUSE_LENGTH = 240
"""Maximum length of a recorded reason (characters): a cloud's error may fill a page."""
TOLD = 3
"""How many causes a sentence names; the detail of a decision has all."""
_NUMBER = re.compile(r"(?<!\w)\d+[smhd]\b(?: \d+[smh]\b)?|\d+(?:\.\d+)?")  # also ``1h 3m``


class Group(Struct, frozen=True, kw_only=True):
    """Offers rejected for one cause: the cause of the first offer, with quoted texts shortened."""

    cause: AnyCause
    offers: tuple[str, ...]

    @property
    def refused(self) -> OffersRefused:
        """The group as a part of a cause."""
        return OffersRefused(first_offer=self.offers[0], count=len(self.offers), cause=self.cause)

    @property
    def row(self) -> list[object]:
        """The group for the detail of a decision: reason, count, offers."""
        return [str(self.cause), len(self.offers), braces(self.offers)]


def grouped(causes: Iterable[tuple[Offer, AnyCause]]) -> tuple[Group, ...]:
    """Return the offers grouped by cause: the largest group first, groups of equal size in the
    order in which they came.
    """
    pairs = list(causes)
    # The longest name first, because one name may be the beginning of another.
    names = sorted({n for o, _ in pairs for n in (o.instance_type, o.zone)}, key=len, reverse=True)
    named = re.compile("|".join(re.escape(name) for name in names)) if names else None
    offers_by_kind: dict[object, tuple[AnyCause, list[str]]] = {}
    for offer, cause in pairs:
        kind = kind_of(cause, named)
        if kind not in offers_by_kind:
            offers_by_kind[kind] = with_short_quotes(cause), []
        offers_by_kind[kind][1].append(offer.key)
    groups = [Group(cause=cause, offers=tuple(keys)) for cause, keys in offers_by_kind.values()]
    return tuple(sorted(groups, key=lambda group: -len(group.offers)))


def no_offer_serves(groups: Sequence[Group]) -> NoOfferServes:
    """Return one cause for all groups: the largest groups with their causes, the others counted."""
    return NoOfferServes(
        groups=tuple(group.refused for group in groups[:TOLD]),
        more_offers=sum(len(group.offers) for group in groups[TOLD:]),
        more_causes=len(groups[TOLD:]),
    )


def kind_of(value: object, named: re.Pattern[str] | None = None) -> object:
    """Return a value that is equal for causes that differ only in numbers and in names of types and
    zones.
    """
    if isinstance(value, Struct):
        fields = (getattr(value, name) for name in value.__struct_fields__)
        return (type(value), *(kind_of(field, named) for field in fields))
    if isinstance(value, str):
        return generalised(named.sub("*", value) if named else value)
    if isinstance(value, tuple):
        return tuple(kind_of(item, named) for item in value)
    # Numbers are left out of the kind; a flag is not, although a bool is an int.
    return value if isinstance(value, bool) else None


def with_short_quotes(cause: AnyCause) -> AnyCause:
    """Return the cause with quoted texts shortened: a cloud's error may fill a page."""
    if isinstance(cause, Quoted):
        return Quoted(text=one_line(cause.text, MAX_CAUSE_LENGTH))
    fields = {name: getattr(cause, name) for name in cause.__struct_fields__}
    inner = {n: with_short_quotes(f) for n, f in fields.items() if isinstance(f, Cause)}
    return msgspec.structs.replace(cause, **inner) if inner else cause


def braces(keys: Iterable[str]) -> list[str]:
    """Return offer keys (``cloud/type/zone/market``) in short form, with shared parts written once,
    as a shell expands them: ``aws/{c5.large,m5.large}/a/{on-demand,spot}``.
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
    """Replace the numbers of a quoted text, so that the same cause at two times gives one text."""
    return _NUMBER.sub("#", text)


def _by_market(places: Iterable[str]) -> list[str]:
    """Return ``zone/market`` of one type, with zones of the same markets together."""
    markets: dict[str, list[str]] = {}
    for place in places:
        zone, _, market = place.partition("/")
        markets.setdefault(zone, []).append(market)
    zones: dict[tuple[str, ...], list[str]] = {}
    for zone, zone_markets in markets.items():
        zones.setdefault(tuple(zone_markets), []).append(zone)
    return [
        f"{_set(zone_names)}/{_set(zone_markets)}".rstrip("/")
        for zone_markets, zone_names in zones.items()
    ]


def _parts(key: str) -> tuple[str, str, str]:
    cloud, _, type_and_place = key.partition("/")
    kind, _, place = type_and_place.partition("/")
    return cloud, kind, place


def _set(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
