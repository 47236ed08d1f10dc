"""The cost of reservations, and the machines that they cover. Pure.

**The rule.** A reservation costs its fixed price from its begin to its end, whether machines use it
or not: the upfront payment spread evenly over the term, and the price of each machine-hour (of a
savings plan: the commitment). The machines that it covers pay their part of that; the rest is
``unused: reserved``. So the sum is what the cloud bills.

The cloud decides for each clock hour (UTC) which machines are covered. A capacity reservation or
block covers the machines that were launched on it. Reserved instances cover any machine of their
type and zone that is not spot, up to their count times the hour; then savings plans cover machines
of their families, in dollars. Machines that were launched on the reservation come first, then the
older ones. The remaining time of a machine costs its price on demand.

Money is in whole micro-dollars. Points in time are milliseconds of Unix time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_elastic.base.billing import billed_dollars
from slurm_elastic.model.reserved import TARGETED, Held, ReservationKind
from slurm_elastic.policies.money.cost_split import HOUR, apportion

_MICRO = 1_000_000
_IDLE = -1
"""The key of the part of a reservation that no machine uses."""
_ORDER = {kind: n for n, kind in enumerate(ReservationKind)}
_ORDER |= dict.fromkeys(TARGETED, -1)
"""Which reservations cover machines first: those that a launch names, then as EC2 bills."""


class MachineHour(NamedTuple):
    """A paid span of a machine within one clock hour. ``micro``: its cost at the price at which the
    machine was bought. ``on_demand_price``: $/h. ``reservation``: the name in the machine's tags.
    ``is_covered``: whether a reservation may cover it; spot and stopped machines are never covered.
    ``disk_price``: the part of both prices for the disks ($/h), which no reservation covers.
    """

    begin: int
    end: int
    micro: int
    instance_type: str
    zone: str
    on_demand_price: float
    reservation: str = ""
    is_covered: bool = True
    disk_price: float = 0.0

    @property
    def ms(self) -> int:
        """The length of the span (ms)."""
        return self.end - self.begin


class IdleHour(NamedTuple):
    """The part of a reservation's price in one clock hour that no machine used."""

    held: Held
    begin: int
    end: int
    micro: int


class Settled(NamedTuple):
    """``micro``: what each machine-hour really costs, in the order of the input. ``idle``: the
    unused parts of the reservations. The sum of both is the bill.
    """

    micro: Sequence[int]
    idle: Sequence[IdleHour]


def charged(held: Held, until: int) -> int:
    """Return the fixed price of a reservation from its begin until ``until``. At its end this is
    the whole price to the micro-dollar.
    """
    begin, end = _ms(held.begins_at), _ms(held.ends_at)
    whole = round(held.fixed_per_hour * held.hours * _MICRO)
    elapsed, term = min(max(until - begin, 0), end - begin), end - begin
    return (2 * whole * elapsed + term) // (2 * term)


def settle(hours: Sequence[MachineHour], held: Sequence[Held], since: int, until: int) -> Settled:
    """Return what the hours of a cloud's machines cost with its reservations, from ``since`` until
    ``until``. The hours of older machines come first.
    """
    by_hour: defaultdict[int, list[int]] = defaultdict(list)
    for index, hour in enumerate(hours):
        by_hour[hour.begin // HOUR].append(index)
    starts = set(by_hour)
    for reservation in held:
        begin, end = _span(reservation, since, until)
        starts.update(range(begin // HOUR, -(-end // HOUR)) if begin < end else ())
    ordered = sorted(held, key=lambda h: (_ORDER[h.kind], -max(h.families.values(), default=0.0)))
    bills = _Bills(hours)
    idle: list[IdleHour] = []
    for start in sorted(starts):
        for reservation in ordered:
            begin, end = _span(reservation, max(since, start * HOUR), (start + 1) * HOUR)
            end = min(end, until)
            if begin >= end:
                continue
            unused = bills.cover(reservation, begin, end, by_hour.get(start, ()))
            if unused:
                idle.append(IdleHour(reservation, begin, end, unused))
    return Settled([bills.micro_of(index, held) for index in range(len(hours))], idle)


class _Bills:
    """How much each machine-hour pays to reservations, and for how long they cover it."""

    def __init__(self, hours: Sequence[MachineHour]) -> None:
        self._hours = hours
        self._covered = [0] * len(hours)
        self._paid = [0] * len(hours)

    def cover(self, held: Held, begin: int, end: int, indices: Sequence[int]) -> int:
        """Divide the price of the reservation in that span over the machine-hours that it covers.
        Return the part that no machine uses.
        """
        total = charged(held, end) - charged(held, begin)
        left = round(held.commit * _MICRO) * (end - begin)
        left = left if held.is_savings_plan else held.count * (end - begin)
        weights: dict[int, int] = {}
        for index in self._candidates(held, indices):
            hour = self._hours[index]
            rate = 1
            if held.is_savings_plan:
                type_price = hour.on_demand_price - hour.disk_price
                price = held.machine_price(type_price, hour.instance_type)
                rate = round(price * _MICRO)
            overlap = min(hour.end, end) - max(hour.begin, begin)
            affordable = left // rate if rate else HOUR
            ms = min(hour.ms - self._covered[index], max(overlap, 0), affordable)
            if ms > 0:
                weights[index] = ms * rate
                left -= ms * rate
                self._covered[index] += ms
                added = held.marginal_price + hour.disk_price
                self._paid[index] += round(added * ms * _MICRO / HOUR)
        weights[_IDLE] = left
        # ``apportion`` divides by the sum of the weights.
        if not sum(weights.values()):
            return total
        parts = apportion(total, weights)
        for index, micro in parts.items():
            if index != _IDLE:
                self._paid[index] += micro
        return parts[_IDLE]

    def micro_of(self, index: int, held: Sequence[Held]) -> int:
        """Return what the machine-hour costs: its part of reservations, and the time that none of
        them covers.
        """
        hour, covered = self._hours[index], self._covered[index]
        reservation = _reservation_of(hour.reservation, hour.begin, held)
        if reservation is None:
            # Bought on demand or on spot, or on a reservation that has left the configuration.
            return self._paid[index] + round(hour.micro * (hour.ms - covered) / max(hour.ms, 1))
        uncovered = hour.ms - covered
        if reservation.kind is ReservationKind.BLOCK:
            # The cloud has ended the machine at the end of the block at the latest; our record of
            # the end may be a little later.
            uncovered = 0
        elif reservation.kind is ReservationKind.CAPACITY:
            # The same for a machine that another one has replaced. After the end of the reservation
            # the machine runs on.
            after_ms = hour.end - max(hour.begin, _ms(reservation.ends_at))
            uncovered = min(uncovered, max(after_ms, 0))
        return self._paid[index] + round(hour.on_demand_price * uncovered * _MICRO / HOUR)

    def _candidates(self, held: Held, indices: Iterable[int]) -> list[int]:
        matching = []
        for index in indices:
            hour = self._hours[index]
            is_own = hour.reservation == held.name
            if held.kind in TARGETED:
                matches = is_own
            else:
                matches = hour.is_covered and held.covers_type(hour.instance_type, hour.zone)
            if matches:
                matching.append((not is_own, index))
        return [index for _, index in sorted(matching)]


class ReservedLease(NamedTuple):
    """A machine that was launched on ``reservation``, paid from ``begin`` to ``end`` (Unix s) by
    ``payers`` (parts by account). ``price``: its true price there, ``on_demand_price``: after the
    reservation's end ($/h). ``disk_price``: the part of both for its disks ($/h).
    """

    reservation: str
    payers: Mapping[str, int]
    begin: float
    end: float
    price: float
    on_demand_price: float
    disk_price: float = 0.0


def spent_on(
    leases: Sequence[ReservedLease],
    held: Sequence[Held],
    since: float,
    now: float,
) -> list[tuple[Mapping[str, int], float]]:
    """Return who paid how many dollars for a cloud's reservations and the machines launched on
    them, from ``since`` until ``now``. The parts that these did not use have no payer.

    Budgets count this. It differs from ``settle`` in one case: a machine bought on demand counts at
    its own price, also if the cloud lets a reservation cover it. So a budget mostly counts too
    much. It counts too little if that machine takes the place of one that was launched on another
    reservation of the same type: then the other one's price is due, too.
    """
    used: defaultdict[tuple[str, float], float] = defaultdict(float)
    paid: list[tuple[Mapping[str, int], float]] = []
    for lease in leases:
        begin = max(lease.begin, since)
        reservation = _reservation_of(lease.reservation, _ms(lease.begin), held)
        if reservation is None:
            paid.append((lease.payers, billed_dollars(lease.price, max(lease.end - begin, 0.0))))
            continue
        # The price of a reservation is due by time, also if its machines are billed by the hour.
        end = min(lease.end, reservation.ends_at, now)
        on_it = max(end - begin, 0.0)
        after = max(lease.end - max(begin, reservation.ends_at), 0.0)
        if reservation.kind is ReservationKind.BLOCK:
            after = 0.0
        beside = reservation.marginal_price + lease.disk_price
        covered_price = max(lease.price - beside, 0.0)
        used[reservation.name, reservation.begins_at] += billed_dollars(covered_price, on_it)
        paid.append(
            (
                lease.payers,
                billed_dollars(lease.price, on_it) + billed_dollars(lease.on_demand_price, after),
            )
        )
    for reservation in held:
        bill = charged(reservation, _ms(now)) - charged(reservation, _ms(since))
        on_it = used[reservation.name, reservation.begins_at]
        paid.append(({}, max(bill / _MICRO - on_it, 0.0)))
    return paid


def _reservation_of(name: str, time_ms: int, held: Sequence[Held]) -> Held | None:
    """The reservation of that name at that time. A renewed reservation may have the name of an
    earlier reservation.
    """
    named = sorted((h for h in held if h.name == name), key=lambda h: h.begins_at)
    begun = [h for h in named if _ms(h.begins_at) <= time_ms]
    return next(iter([*begun[-1:], *named]), None)


def _span(held: Held, since: int, until: int) -> tuple[int, int]:
    return max(_ms(held.begins_at), since), min(_ms(held.ends_at), until)


def _ms(time_s: float) -> int:
    return round(time_s * 1000)
