"""Makes the machines of all pools of a scenario, with the limits that pools share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.simulate.boot_slots import BootTurns
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.shared_machines import SharedMachines

Make = Callable[[PoolModel, IdleOrder, int], PoolMachines]


def machines_of(scenario: Scenario, jobs: Jobs, make: Make = PoolMachines) -> list[PoolMachines]:
    """Return the machines of each pool, with the limits on booting: a pool's own limit, then shared
    limits. If pools share a limit, they release idle machines when due even if jobs wait, as Slurm
    does after SuspendTime. ``make`` makes the machines of a pool.
    """
    pools = [
        make(pool, scenario.order, scenario.seed + index)
        for index, pool in enumerate(scenario.pools)
    ]
    for machines in pools:
        if machines.pool.shared and scenario.reservations == 1 and scenario.reuse:
            machines.shared = SharedMachines(jobs, machines.pool)
        if machines.pool.max_booting is not None:
            machines.turns = (BootTurns(machines.pool.max_booting),)
    for cap in scenario.boot_caps:
        turns = BootTurns(cap.machines)
        for machines in pools:
            if machines.pool.name in cap.pools:
                machines.turns = (*machines.turns, turns)
    limited = [machines for machines in pools if machines.pool.limited]
    _mark_yielding(scenario.limits, limited)
    for cloud, limits in scenario.cloud_limits.items():
        _mark_yielding(
            limits,
            [
                pool_machines
                for pool_machines in limited
                if pool_machines.sold[0].offer.cloud == cloud
            ],
        )
    return pools


def _mark_yielding(limits: Limits, members: Sequence[PoolMachines]) -> None:
    """Set ``yields`` if these pools together, with their standing machines, can reach the
    limits.
    """

    def total(*markets: Market) -> int:
        offers = [
            (member.max_machines, {sold.offer.market for sold in member.sold}) for member in members
        ]
        return sum(
            count for count, markets_of_pool in offers if markets_of_pool & set(markets or Market)
        )

    dollars = sum(member.max_machines * max(member.rates) for member in members)
    reached = (
        (limits.nodes is not None and total() > limits.nodes)
        or (limits.spot is not None and total(Market.SPOT) > limits.spot)
        or (limits.on_demand is not None and total(Market.ON_DEMAND) > limits.on_demand)
        or (limits.dollars_per_hour is not None and dollars > limits.dollars_per_hour)
    )
    growing = [member for member in members if member.pool.machines > member.pool.standing]
    if reached and len(growing) > 1:
        for member in growing:
            # Another pool may need the room under the limit, even while jobs wait for this pool.
            member.yields = True
