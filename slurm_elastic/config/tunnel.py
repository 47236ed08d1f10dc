"""The part of a configuration that the tunnel to machines goes by: whose machines have one, and
which address each node has in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.joining import Enrol, Network
from slurm_elastic.policies.repair.peers import addresses_of


def clouds_with_tunnel(config: Config) -> frozenset[str]:
    """The clouds whose machines open a tunnel to the head."""
    network = config.join.network
    if network is None or not network.tunnels:
        return frozenset()
    return frozenset(
        c.name
        for c in config.clouds
        if c.by_user_data and (not network.clouds or c.name in network.clouds)
    )


def enrols(network: Network, cloud: CloudSettings) -> Enrol:
    """How its machines' keys come to the head: by the console, where it shows that."""
    if network.enrol is not None:
        return network.enrol
    return Enrol.CONSOLE if cloud.shows_console else Enrol.ONCE


def nodes_by_pool(config: Config) -> Mapping[str, Sequence[str]]:
    """The nodes of all pools with a tunnel, in the order that machines can find out."""
    clouds = clouds_with_tunnel(config)
    return {p.name: expand(compress(expand(p.nodes))) for p in config.pools if p.cloud in clouds}


def node_addresses(config: Config) -> Mapping[str, str]:
    """By node, its address in the tunnel; empty without one."""
    network = config.join.network
    if network is None or not network.tunnels:
        return {}
    return addresses_of(network.subnet, nodes_by_pool(config))
