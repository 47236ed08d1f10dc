"""Makes the machines of all pools of a scenario, with the limits that some of them share."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.simulate.boot_slots import Turns
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.shared_machines import SharedMachines


def machines_of(scenario: Scenario, jobs: Jobs) -> list[PoolMachines]:
    """The machines of a scenario's pools for these jobs, with their limits on booting: first each
    pool's own, then shared ones. If a limit is shared, idle machines go when they are due even if
    jobs wait, as with Slurm's SuspendTime.
    """
    found = [
        PoolMachines(pool, scenario.order, scenario.seed + index)
        for index, pool in enumerate(scenario.pools)
    ]
    for machines in found:
        if machines.pool.shared and scenario.reservations == 1 and scenario.reuse:
            machines.shared = SharedMachines(jobs, machines.pool)
        if machines.pool.max_booting is not None:
            machines.turns = (Turns(machines.pool.max_booting),)
    for cap in scenario.boot_caps:
        turns = Turns(cap.machines)
        for machines in found:
            if machines.pool.name in cap.pools:
                machines.turns = (*machines.turns, turns)
    limited = [machines for machines in found if machines.pool.limited]
    _share(scenario.limits, limited)
    for cloud, limits in scenario.cloud_limits.items():
        _share(limits, [one for one in limited if one.sold[0].offer.cloud == cloud])
    return found


def _share(limits: Limits, members: Sequence[PoolMachines]) -> None:
    """Note whether these pools, standing machines included, can reach the limits together."""

    def total(*markets: Market) -> int:
        offers = [(one.most, {sold.offer.market for sold in one.sold}) for one in members]
        return sum(most for most, own in offers if own & set(markets or Market))

    dollars = sum(one.most * max(one.rates) for one in members)
    reached = (
        (limits.nodes is not None and total() > limits.nodes)
        or (limits.spot is not None and total(Market.SPOT) > limits.spot)
        or (limits.on_demand is not None and total(Market.ON_DEMAND) > limits.on_demand)
        or (limits.dollars_per_hour is not None and dollars > limits.dollars_per_hour)
    )
    growing = [one for one in members if one.pool.machines > one.pool.standing]
    if reached and len(growing) > 1:
        for one in growing:
            # Another pool may need their place, also while jobs wait for this one.
            one.yields = True
