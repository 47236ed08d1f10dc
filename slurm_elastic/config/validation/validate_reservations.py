"""Checks that the reservations of a cloud make sense by themselves and in their cloud. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_elastic.base.units import format_moment
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import describe, nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.reserved import TARGETED, ReservationKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_OF_MACHINES = ("type", "count")
_OF_PLANS = ("commit", "families")


def check_reservations(draft: Draft) -> None:
    """Report all problems of the reservations of all clouds."""
    for i, cloud in draft.clouds.items():
        path: KeyPath = ("clouds", i, "reservations")
        if cloud.reservations and cloud.location is not Location.PUBLIC:
            expected = "none: machines of a cloud on-premises are paid already"
            draft.problems.add(path, "reservations", expected)
            continue
        for n, reservation in enumerate(cloud.reservations):
            if not _NAME.fullmatch(reservation.name):
                expected = "letters, digits, '_' and '-', at most 40, a letter or digit first"
                draft.problems.add((*path, n, "name"), shown(reservation.name), expected)
            _kind(draft, (*path, n), cloud, reservation)
            _place(draft, (*path, n), cloud, reservation)
            _term(draft, (*path, n), reservation)
        for key in ("name", "id"):
            _once(draft, path, key, (getattr(r, key) for r in cloud.reservations))


def _kind(draft: Draft, path: KeyPath, cloud: CloudSettings, reservation: Reservation) -> None:
    """Report keys that the kind lacks, and keys that belong to another kind."""
    kind = reservation.kind
    is_plan = kind is ReservationKind.SAVINGS
    needed = [*(_OF_PLANS if is_plan else _OF_MACHINES)]
    foreign = [*(_OF_MACHINES if is_plan else _OF_PLANS)]
    if kind in TARGETED:
        needed += ["zone", "id"]
    else:
        foreign.append("id")
    if is_plan:
        foreign += ["zone", "upfront", "price"]
    for key in needed:
        if not getattr(reservation, key):
            draft.problems.add(path, f"no {key!r}", f"the key {key}, which kind {kind} needs")
    for key in foreign:
        value = getattr(reservation, key)
        if value:
            expected = f"no such key with kind {kind}"
            draft.problems.add((*path, key), describe(value), expected)
    if kind in TARGETED and not cloud.targets_reservations:
        others = (k for k in ReservationKind if k not in TARGETED)
        expected = f"one of {', '.join(others)}: provider {cloud.provider} cannot launch into it"
        draft.problems.add((*path, "kind"), shown(kind), expected)


def _place(draft: Draft, path: KeyPath, cloud: CloudSettings, reservation: Reservation) -> None:
    types, zones = cloud.shapes, cloud.known_zones
    if reservation.type and types and reservation.type not in types and not cloud.catalogued:
        expected = f"a type of cloud {cloud.name}: one of {', '.join(types)}"
        hint = nearest(reservation.type, types)
        draft.problems.add((*path, "type"), shown(reservation.type), expected, hint)
    if reservation.zone and zones and reservation.zone not in zones:
        expected = f"a zone of cloud {cloud.name}: one of {', '.join(zones)}"
        hint = nearest(reservation.zone, zones)
        draft.problems.add((*path, "zone"), shown(reservation.zone), expected, hint)


def _term(draft: Draft, path: KeyPath, reservation: Reservation) -> None:
    begins_at, ends_at = reservation.begins_at, reservation.ends_at
    if ends_at <= begins_at:
        expected = f"a date after from, {format_moment(begins_at)}"
        draft.problems.add((*path, "to"), format_moment(ends_at), expected)
        return
    machines_end_at = reservation.held("").machines_end_at
    if machines_end_at is not None and machines_end_at <= begins_at:
        expected = "more than 30 minutes after from: the cloud ends the machines 30 minutes earlier"
        draft.problems.add((*path, "to"), format_moment(ends_at), expected)


def _once(draft: Draft, path: KeyPath, key: str, words: Iterable[str | None]) -> None:
    seen: set[str] = set()
    for n, word in enumerate(words):
        if word and word in seen:
            draft.problems.add((*path, n, key), f"{shown(word)} again", "each one once in a cloud")
        seen.add(word or "")
