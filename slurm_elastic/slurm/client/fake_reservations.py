"""Reservations in the Slurm in memory, with the refusals of slurmctld."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.slurm.client.commands.reservation_commands import FLAGS

_SHARING = frozenset({"MAINT", "OVERLAP"})
"""Slurm grants nodes of other reservations to a request with either of these flags."""


def with_reservation(present: Sequence[Reservation], request: Reservation) -> list[Reservation]:
    """Add the requested reservation, or replace the present reservation of its name. SlurmError if
    slurmctld would refuse the request. slurmctld checks the flags of the request alone, not the
    flags of the present reservations (measured on 22.05).
    """
    kept = [reservation for reservation in present if reservation.name != request.name]
    if not request.flags & _SHARING and any(_overlap(request, other) for other in kept):
        text = "Requested reservation overlaps with another reservation"
        raise SlurmError(("scontrol", request.name), 1, text)
    return [*kept, request]


def with_other_nodes(
    present: Sequence[Reservation], name: str, nodes: Sequence[str]
) -> list[Reservation]:
    """Give our reservation ``name`` these nodes."""
    old = {reservation.name: reservation for reservation in present}.get(name)
    if old is None:
        raise SlurmError(("scontrol", name), 1, "Requested reservation is invalid")
    request = replace(old, nodes=tuple(nodes), flags=old.flags | FLAGS)
    return with_reservation(present, request)


def _overlap(request: Reservation, other: Reservation) -> bool:
    is_same_time = request.start < other.end and request.end > other.start
    return is_same_time and not other.is_partial and not {*request.nodes}.isdisjoint(other.nodes)
