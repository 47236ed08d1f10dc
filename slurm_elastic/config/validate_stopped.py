"""Whether pools that keep stopped machines can: their cloud, markets and network. Pure."""

from __future__ import annotations

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import describe
from slurm_elastic.config.joining import Join, Network
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.validate import markets_used
from slurm_elastic.model import Market


def check_stopped(draft: Draft) -> None:
    """All complaints about ``stopped``. A stopped machine is started with what it was told at its
    launch, and the word by which it may open a tunnel has ended then.
    """
    join = draft.section("join", Join, Join()) or Join()
    network = join.network if join.network is not None and join.network.tunnels else None
    for i, pool, cloud in draft.pools_with_clouds:
        if not pool.stopped:
            continue
        at, found = ("pools", i, "stopped"), describe(pool.stopped)
        count = len(draft.nodes.get(i, ()))
        if not cloud.can_stop:
            expected = f"0: machines of provider {cloud.provider} cannot be stopped and started"
            draft.problems.add(at, found, expected)
        elif not markets_used(pool, cloud) - {Market.SPOT}:
            expected = "0: spot machines are not stopped; or a market beside spot in markets"
            draft.problems.add(at, found, expected)
        elif network is not None and cloud.by_user_data and _tunnels(network, cloud):
            expected = f"0: the tunnel (join.network) of cloud {cloud.name} is for one boot alone"
            draft.problems.add(at, found, expected)
        elif count and pool.stopped > count:
            expected = f"at most {count}, the number of nodes of the pool"
            draft.problems.add(at, found, expected)


def _tunnels(network: Network, cloud: CloudSettings) -> bool:
    return not network.clouds or cloud.name in network.clouds
