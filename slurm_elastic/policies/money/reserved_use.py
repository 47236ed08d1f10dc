"""How many machines use each reservation now. Pure.

The rule is the bill's (``policies.money.reservations``), for this moment instead of an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.reserved import TARGETED, Held, ReservationKind

_ORDER = {kind: n for n, kind in enumerate(ReservationKind)} | dict.fromkeys(TARGETED, -1)


class ReservedUse(Struct, frozen=True, kw_only=True):
    """A reservation, and the ``machines`` that it covers. ``dollars``: the part of a savings plan's
    commitment ($/h) that they use.
    """

    held: Held
    machines: int
    dollars: float = 0.0


def reserved_use(held: Iterable[Held], machines: Iterable[Machine]) -> tuple[ReservedUse, ...]:
    """The use of each reservation by these machines, in the order of the reservations."""
    reservations = list(held)
    uncovered = sorted(
        (m for m in machines if not m.has_ended and not m.is_off),
        key=lambda m: m.instance.launched,
    )
    used: dict[str, ReservedUse] = {}
    for reservation in sorted(reservations, key=lambda h: _ORDER[h.kind]):
        candidates = [m for m in uncovered if may_cover(reservation, m)]
        covered, dollars = _covered(reservation, candidates)
        uncovered = [m for m in uncovered if m not in covered]
        used[reservation.key] = ReservedUse(
            held=reservation, machines=len(covered), dollars=dollars
        )
    return tuple(used[reservation.key] for reservation in reservations)


def may_cover(held: Held, machine: Machine) -> bool:
    """Whether the reservation may cover the machine: a launch named it, or, if no launch must, the
    machine has the type and zone and is not spot.
    """
    instance = machine.instance
    if instance.cloud != held.cloud:
        return False
    if instance.reservation == held.name:
        return True
    return (
        held.kind not in TARGETED
        and instance.market is not Market.SPOT
        and held.covers_type(instance.instance_type, instance.zone)
    )


def _covered(held: Held, candidates: Sequence[Machine]) -> tuple[list[Machine], float]:
    """The machines that it covers, and their dollars ($/h). Machines launched on it come first."""
    by_age = sorted(candidates, key=lambda m: m.instance.reservation != held.name)
    if not held.is_savings_plan:
        return by_age[: held.count], 0.0
    covered, dollars = [], 0.0
    for machine in by_age:
        on_demand_price = max(machine.worst_price, machine.instance.price)
        on_demand_price -= machine.terms.disk_price
        price = held.machine_price(on_demand_price, machine.instance.instance_type)
        if dollars >= held.commit:
            break
        covered.append(machine)
        dollars = min(dollars + price, held.commit)
    return covered, dollars
