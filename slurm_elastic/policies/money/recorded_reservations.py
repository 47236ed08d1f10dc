"""The reservations of the past, whatever the configuration says today. Pure.

An entry of the configuration describes one reservation as long as its name and its dates stay: a
changed price or count corrects it. An entry of the same name for other dates is another reservation
(a renewal), so the record of the earlier one stays. If an entry is removed before its end, the
reservation counts until then.
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
    kept = [_if_removed(record, now) for record in _without_entry(records, entries)]
    begun = [RecordedReservation(held=entry) for entry in entries if entry.begins_at <= now]
    return tuple(sorted((*kept, *begun), key=_place))


def counted_reservations(
    records: Iterable[RecordedReservation], entries: Sequence[Held], now: float
) -> dict[str, tuple[Held, ...]]:
    """Return the reservations that costs count, by cloud: the reservations of the configuration,
    and recorded reservations whose entry was removed.
    """
    former = [_if_removed(record, now) for record in _without_entry(records, entries)]
    by_cloud: dict[str, tuple[Held, ...]] = {}
    for held in (*map(_counted, former), *entries):
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
