"""Capacity reservations, capacity blocks and reserved instances of the emulated EC2: how many
machines they have left, when they end, and what they cost. moto ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.ec2.api import Ec2Call
from slurm_elastic.sandbox.ec2.faults import Ec2Error, FaultTarget

BLOCK_LEAD_S = 1800.0
"""EC2 begins to end the machines of a capacity block this long before the block's end. The number
is written here a second time on purpose, so that a mistake in the product's number shows.
"""
BLOCK = "capacity-block"
"""The market of a launch into a block, and the lifecycle of its machines."""
_TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
_MARKET = "InstanceMarketOptions.MarketType"


class EmulatedReservation(Struct, frozen=True, kw_only=True):
    """``count`` machines of a type in a zone, from ``begins_at`` until ``ends_at`` (Unix time).
    ``upfront``: dollars for all of them; ``price``: $/h for each at all times. ``kind``:
    ``capacity-block``, ``capacity-reservation`` or ``reserved-instances``, which are only on the
    bill.
    """

    id: str
    kind: str
    type: str
    zone: str
    count: int
    begins_at: float
    ends_at: float
    upfront: float = 0.0
    price: float = 0.0

    def bill(self, now: float) -> int:
        """The price until ``now`` in micro-dollars. The upfront payment is spread over the term."""
        term = self.ends_at - self.begins_at
        elapsed = min(max(now - self.begins_at, 0.0), term)
        whole = self.upfront + self.price * self.count * term / 3600
        return round(whole * elapsed / term * 1_000_000)


class ReservationView(Struct, frozen=True, kw_only=True):
    """A reservation in the control API's answer. ``used``: its machines that are neither
    stopped nor terminated.
    """

    id: str
    kind: str
    count: int
    used: int
    micro_dollars: int


class Reservations:
    """The reservations of the account, and the machines launched into each. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, EmulatedReservation] = {}
        self._machines: dict[str, str] = {}

    def add(self, reservation: EmulatedReservation) -> None:
        """Buy a reservation, or replace the one with its id."""
        if reservation.ends_at <= reservation.begins_at or reservation.count < 1:
            raise SandboxError(f"reservation {reservation.id!r} has no time or no machines")
        self._held[reservation.id] = reservation

    def targeted(self, call: Ec2Call) -> bool:
        """Whether the launch names a reservation."""
        return bool(call.params.get(_TARGET)) or call.params.get(_MARKET) == BLOCK

    def refusal(self, call: Ec2Call, target: FaultTarget, now: float) -> Ec2Error | None:
        """Return EC2's error for a launch that names a reservation; None if it fits."""
        id_ = call.params.get(_TARGET, "")
        held = self._held.get(id_)
        if held is None or held.kind == "reserved-instances":
            text = f"The capacity reservation '{id_}' does not exist."
            return Ec2Error("InvalidCapacityReservationId.NotFound", 400, text)
        if (call.params.get(_MARKET) == BLOCK) is not (held.kind == BLOCK):
            text = "The market type does not fit the capacity reservation."
            return Ec2Error("InvalidParameterCombination", 400, text)
        if (target.type, target.zone) != (held.type, held.zone):
            text = "The capacity reservation is for another instance type or zone."
            return Ec2Error("InvalidParameterCombination", 400, text)
        if not held.begins_at <= now < _machines_end_at(held):
            text = "The capacity reservation is not active."
            return Ec2Error("InsufficientInstanceCapacity", 500, text)
        return None

    def room(self, call: Ec2Call, placed: Iterable[str]) -> int:
        """Return how many more machines fit into the reservation that the launch names."""
        id_ = call.params[_TARGET]
        return self._held[id_].count - self._used(id_, placed)

    def launched(self, call: Ec2Call, ids: Iterable[str]) -> str:
        """Note the machines of a launch. Return the lifecycle of its machines; "": on demand."""
        id_ = call.params.get(_TARGET, "")
        if not id_:
            return ""
        self._machines |= dict.fromkeys(ids, id_)
        return BLOCK if self._held[id_].kind == BLOCK else ""

    def over(self, now: float) -> set[str]:
        """Return the machines of blocks that EC2 ends by ``now``."""
        ended = {
            held.id
            for held in self._held.values()
            if held.kind == BLOCK and now >= _machines_end_at(held)
        }
        return {machine for machine, id_ in self._machines.items() if id_ in ended}

    def views(self, placed: Iterable[str], now: float) -> tuple[ReservationView, ...]:
        """Return the reservations with their use and their price until now."""
        placed = set(placed)
        return tuple(
            ReservationView(
                id=held.id,
                kind=held.kind,
                count=held.count,
                used=self._used(held.id, placed),
                micro_dollars=held.bill(now),
            )
            for held in self._held.values()
        )

    @property
    def machines(self) -> Mapping[str, str]:
        """The reservation of each machine that was launched into one."""
        return self._machines

    def _used(self, id_: str, placed: Iterable[str]) -> int:
        return sum(self._machines.get(machine) == id_ for machine in placed)


def _machines_end_at(held: EmulatedReservation) -> float:
    return held.ends_at - BLOCK_LEAD_S if held.kind == BLOCK else held.ends_at
