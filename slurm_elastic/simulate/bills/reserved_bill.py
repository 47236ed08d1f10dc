"""The bill of a simulated site that holds reservations, by the rule of
``policies.money.reservations``: what the cloud bills, not the prices at which machines were bought.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.money.cost_split import HOUR
from slurm_elastic.policies.money.reservations import MachineHour, settle
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.outcome import RunResult, UnusedReservation, with_reserved_bill

_MICRO = 1_000_000
Lease = tuple[PoolMachines, int]  # a pool, and the number of one of its leases


def with_reservations(outcome: RunResult, held: Sequence[Held], origin: int) -> None:
    """Bill the outcome with these reservations (seconds of the history, whose second 0 is the Unix
    time ``origin``). They are paid from the first submission to the last event.
    """
    jobs, pools = outcome.jobs, outcome.pools
    if not held or not len(jobs):
        return
    begin = jobs.submit[0]
    ends = [end for machines in pools for _, end, _, _ in machines.leases.rows()]
    end = max(*outcome.ends, jobs.submit[-1], *ends)
    unused: list[UnusedReservation] = []
    for cloud in dict.fromkeys(row.cloud for row in held):
        on_unix_clock = [
            replace(row, begins_at=row.begins_at + origin, ends_at=row.ends_at + origin)
            for row in held
            if row.cloud == cloud
        ]
        hours, leases = _machine_hours(cloud, pools, origin)
        since, until = (1000 * (origin + second) for second in (begin, end))
        bill = settle(hours, on_unix_clock, since, until)
        _enter(leases, bill.micro)
        for row in bill.idle:
            begin_s = row.begin // 1000 - origin
            end_s = max(row.end // 1000 - origin, begin_s + 1)
            unused.append(UnusedReservation(begin_s, end_s, row.micro / _MICRO))
    with_reserved_bill(outcome, unused)


def _machine_hours(
    cloud: str, pools: Sequence[PoolMachines], origin: int
) -> tuple[list[MachineHour], list[Lease]]:
    """Return the paid hours of a cloud's machines except spot, older machines first, and the lease
    of each hour.
    """
    by_age: list[tuple[int, int, int]] = []
    for pool, machines in enumerate(pools):
        if machines.sold[0].offer.cloud == cloud and not machines.pool.standing:
            by_age += [
                (machines.batch_start[batch], pool, number)
                for number, batch in enumerate(machines.leases.batch)
                if not machines.batch_spot[batch]
            ]
    hours: list[MachineHour] = []
    leases: list[Lease] = []
    for _, pool, number in sorted(by_age):
        machines = pools[pool]
        paid_hours = list(_hours_of(machines, number, origin))
        count = machines.leases.count[number]
        hours += paid_hours * count
        leases += [(machines, number)] * len(paid_hours) * count
    return hours, leases


def _hours_of(machines: PoolMachines, number: int, origin: int) -> Iterator[MachineHour]:
    """Yield the paid hours of one machine of a lease."""
    leases = machines.leases
    batch, end, reclaimed = leases.batch[number], leases.end[number], leases.reclaimed[number]
    seconds, _ = leases.bill(batch, end, reclaimed=bool(reclaimed))
    offer = machines.sold[machines.batch_offer[batch]].offer
    begin = 1000 * (origin + machines.batch_start[batch])
    end_ms = begin + 1000 * seconds
    while begin < end_ms:
        until = min((begin // HOUR + 1) * HOUR, end_ms)
        yield MachineHour(
            begin=begin,
            end=until,
            micro=round(offer.price * (until - begin) * _MICRO / HOUR),
            instance_type=offer.instance_type,
            zone=offer.zone,
            # Not the worst price: a reservation may cost more than on demand.
            on_demand_price=offer.price if offer.on_demand_price is None else offer.on_demand_price,
            reservation="" if offer.held is None else offer.held.name,
            disk_price=offer.disk_price,
        )
        begin = until


def _enter(leases: Sequence[Lease], micro: Sequence[int]) -> None:
    """Enter what each lease really costs into the books of its pool."""
    sums: defaultdict[int, dict[int, int]] = defaultdict(dict)
    books = {id(machines): machines for machines, _ in leases}
    for (machines, number), cost in zip(leases, micro, strict=True):
        costs = sums[id(machines)]
        costs[number] = costs.get(number, 0) + cost
    for key, machines in books.items():
        machines.leases.reprice(
            {number: cost / _MICRO for number, cost in sums[key].items()},
            on_reservation=array("b", [sold.offer.held is not None for sold in machines.sold]),
        )
