"""The reservations that a site holds (``clouds.NAME.reservations``), on the clock of a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.reserved import Held
from slurm_elastic.providers.base.offers import reserved_offers
from slurm_elastic.simulate.availability import HistorySpan
from slurm_elastic.simulate.scenario import Sold


def held_in(config: Config, span: HistorySpan) -> tuple[tuple[Held, ...], list[str]]:
    """Return the reservations of all clouds in seconds of the history, and notes.

    A reservation that covers no second of the history begins with the history instead, as prices
    do: the question is what the history would cost with it.
    """
    reservations: list[Held] = []
    notes: list[str] = []
    for held in (held for cloud in config.clouds for held in cloud.held):
        begins_at, ends_at = held.begins_at - span.origin, held.ends_at - span.origin
        if ends_at <= span.begin or begins_at >= span.end:
            begins_at, ends_at = float(span.begin), span.begin + ends_at - begins_at
            notes.append(
                f"reservation {held.name} of cloud {held.cloud} begins with the history here, and"
                " lasts as long as its term"
            )
        reservations.append(replace(held, begins_at=begins_at, ends_at=ends_at))
    return tuple(reservations), notes


def sold_on(
    cloud: CloudSettings, pool: Pool, zones: Sequence[str], held: Iterable[Held]
) -> Iterator[Sold]:
    """Yield the offers for machines of the pool on these reservations."""
    by_name = {row.name: row for row in held if row.cloud == cloud.name}
    for offer in reserved_offers(cloud, pool, zones):
        reservation = None if offer.held is None else by_name.get(offer.held.name)
        if reservation is not None:
            yield Sold(offer=replace(offer, held=reservation))


def zones_of(cloud: str, held: Iterable[Held]) -> set[str]:
    """Return the zones for which the cloud's reservations are."""
    return {row.zone for row in held if row.cloud == cloud and row.zone}
