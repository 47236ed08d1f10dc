"""The reservations of the past, whatever the configuration says today. Pure.

An entry of the configuration describes one reservation as long as its name and its dates stay: a
changed price or count corrects it. An entry of the same name for other dates is another reservation
(a renewal), so the record of the earlier one stays. If an entry is removed before its end, the
reservation counts until then. If the entry, or its cloud, only has another name, the reservation
counts under the earlier name until then, and under the new name from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.reserved import Held, ReservationKind


class RecordedReservation(Struct, frozen=True, kw_only=True):
    """A begun reservation. ``removed_at``: when its entry was first missed before its end
    (Unix time).
    """

    held: Held
    removed_at: float | None = None

    @property
    def key(self) -> tuple[str, str, float]:
        """The identity of a record."""
        return self.held.cloud, self.held.name, self.held.begins_at


def records_after(
    records: Iterable[RecordedReservation], entries: Sequence[Held], now: float
) -> tuple[RecordedReservation, ...]:
    """Return the records as they are to be at ``now``, by begin. ``entries``: all reservations of
    the configuration.
    """
    records = tuple(records)
    former = [_if_removed(record, now) for record in _without_entry(records, entries)]
    begun = [
        RecordedReservation(held=_after_renaming(entry, records, former))
        for entry in entries
        if entry.begins_at <= now
    ]
    return tuple(sorted((*former, *begun), key=_place))


def counted_reservations(
    records: Iterable[RecordedReservation], entries: Sequence[Held], now: float
) -> dict[str, tuple[Held, ...]]:
    """Return the reservations that costs count, by cloud: the reservations of the configuration,
    and recorded reservations whose entry was removed.
    """
    records = tuple(records)
    former = [_if_removed(record, now) for record in _without_entry(records, entries)]
    current = (_after_renaming(entry, records, former) for entry in entries)
    by_cloud: dict[str, tuple[Held, ...]] = {}
    for held in (*map(_counted, former), *current):
        by_cloud[held.cloud] = (*by_cloud.get(held.cloud, ()), held)
    return by_cloud


def _without_entry(
    records: Iterable[RecordedReservation], entries: Sequence[Held]
) -> list[RecordedReservation]:
    return [r for r in records if not any(_is_same(entry, r.held) for entry in entries)]


def _is_same(entry: Held, held: Held) -> bool:
    """Whether the entry describes this reservation. Their dates may differ, because a person may
    correct them.
    """
    is_named = (entry.cloud, entry.name) == (held.cloud, held.name)
    return is_named and entry.begins_at < held.ends_at and held.begins_at < entry.ends_at


def _after_renaming(
    entry: Held, records: Iterable[RecordedReservation], former: Iterable[RecordedReservation]
) -> Held:
    """The entry's reservation, or its part after it got the entry's name. ``former``: the records
    without an entry.
    """
    own_begins = {r.held.begins_at for r in records if _is_same(entry, r.held)}
    renamed_at = [
        r.removed_at
        for r in former
        if r.removed_at is not None
        and (r.removed_at in own_begins if own_begins else _is_renamed(r.held, entry))
    ]
    begins_at = max(renamed_at, default=entry.begins_at)
    return _from(entry, begins_at) if entry.begins_at < begins_at < entry.ends_at else entry


def _is_renamed(held: Held, entry: Held) -> bool:
    """Whether only the name of the reservation, or of its cloud, differs. ``held`` may be a part of
    the reservation, if it was renamed before.
    """
    whole = replace(held, begins_at=entry.begins_at, upfront=entry.upfront)
    return entry in (replace(whole, cloud=entry.cloud), replace(whole, name=entry.name))


def _from(held: Held, begins_at: float) -> Held:
    """The reservation from that time on, at the same price per hour."""
    fraction = (held.ends_at - begins_at) / (held.ends_at - held.begins_at)
    return replace(held, begins_at=begins_at, upfront=held.upfront * fraction)


def _if_removed(record: RecordedReservation, now: float) -> RecordedReservation:
    if record.removed_at is not None or record.held.ends_at <= now:
        return record
    return replace(record, removed_at=now)


def _counted(record: RecordedReservation) -> Held:
    """The reservation, or its part before its entry was removed, at the same price per hour."""
    held, removed_at = record.held, record.removed_at
    if removed_at is None or removed_at >= held.ends_at:
        return held
    # A clock that was set back must not make the term negative.
    ends_at = max(removed_at, held.begins_at + 1)
    fraction = (ends_at - held.begins_at) / (held.ends_at - held.begins_at)
    # The cloud ends the machines of a block at the block's own end, not when the entry is
    # removed. So they still count, like machines of a capacity reservation.
    kind = ReservationKind.CAPACITY if held.kind is ReservationKind.BLOCK else held.kind
    return replace(held, ends_at=ends_at, upfront=held.upfront * fraction, kind=kind)


def _place(record: RecordedReservation) -> tuple[float, str, str]:
    return record.held.begins_at, record.held.cloud, record.held.name
