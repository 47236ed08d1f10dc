"""The charges of machines in clouds with reservations: what the cloud bills, not what each machine
was bought at (``policies.money.reservations``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_elastic.model.cluster import Market
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.money.cost_split import CostHour, apportion
from slurm_elastic.policies.money.reservations import IdleHour, MachineHour, settle
from slurm_elastic.state.ledger import Machine


class Charge(NamedTuple):
    """The charges of one machine in the span (micro-dollars), hour by hour. ``is_settled``: its
    cloud has reservations, which may have changed the price of each hour.
    """

    machine: Machine
    micro: int
    hours: Sequence[CostHour]
    is_settled: bool = False


class SettledCloud(NamedTuple):
    """The charges of a cloud's machines by their place in the list, and its idle reservations."""

    charges: Mapping[int, Charge]
    idle: Sequence[IdleHour]


def settled(
    held_by_cloud: Mapping[str, Sequence[Held]],
    bought: Sequence[Charge],
    since: int,
    until: int,
) -> Iterator[SettledCloud]:
    """Yield the charges of each cloud with reservations, at the prices that the cloud bills from
    ``since`` until ``until`` (ms). ``bought``: the charges of all machines at the prices at which
    they were bought.
    """
    for cloud, held in held_by_cloud.items():
        indices = [n for n, charge in enumerate(bought) if charge.machine.instance.cloud == cloud]
        pieces = [
            _machine_hour(bought[n].machine, hour) for n in indices for hour in bought[n].hours
        ]
        settlement = settle(pieces, held, since, until)
        micro = iter(settlement.micro)
        repriced = {}
        for n in indices:
            hours = tuple(
                hour._replace(micro=(cost := next(micro)), parts=apportion(cost, hour.weights))
                for hour in bought[n].hours
            )
            whole = sum(hour.micro for hour in hours)
            repriced[n] = Charge(bought[n].machine, whole, hours, is_settled=True)
        yield SettledCloud(repriced, settlement.idle)


def _on_demand_price(machine: Machine) -> float:
    instance = machine.instance
    if machine.is_off:
        return machine.worst_price
    highest = max(machine.worst_price, instance.price)
    if not instance.reservation or instance.price < highest:
        return highest
    # A reservation may cost more per hour than the machine on demand. The highest price of the
    # machine is then the reservation's.
    known = machine.terms.on_demand_price
    return highest if known is None else min(known, highest)


def _machine_hour(machine: Machine, hour: CostHour) -> MachineHour:
    instance = machine.instance
    return MachineHour(
        begin=hour.begin,
        end=hour.end,
        micro=hour.micro,
        instance_type=instance.instance_type,
        zone=instance.zone,
        on_demand_price=_on_demand_price(machine),
        reservation="" if machine.is_off else instance.reservation,
        is_covered=not machine.is_off and instance.market is not Market.SPOT,
        disk_price=machine.terms.disk_price,
    )
