"""Lists the clouds whose machines open a tunnel to the head, and the address of each node in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.sections.joining import Enrol, Network
from slurm_elastic.policies.repair.tunnel_addresses import addresses_of


def clouds_with_tunnel(config: Config) -> frozenset[str]:
    """The clouds whose machines open a tunnel to the head."""
    network = config.join.network
    if network is None or not network.tunnels:
        return frozenset()
    return frozenset(c.name for c in config.clouds if uses(network, c))


def uses(network: Network, cloud: CloudSettings) -> bool:
    """Whether the network is for machines of that cloud."""
    return cloud.by_user_data and (not network.clouds or cloud.name in network.clouds)


def enrols(network: Network, cloud: CloudSettings) -> Enrol:
    """How the head learns the keys of that cloud's machines: by console, if it shows one."""
    if network.enrol is not None:
        return network.enrol
    return Enrol.CONSOLE if cloud.shows_console else Enrol.ONCE


def nodes_by_pool(config: Config) -> Mapping[str, Sequence[str]]:
    """The nodes of all pools with a tunnel, in an order that machines can compute, too."""
    clouds = clouds_with_tunnel(config)
    return {p.name: expand(compress(expand(p.nodes))) for p in config.pools if p.cloud in clouds}


def node_addresses(config: Config) -> Mapping[str, str]:
    """Each node's address in the tunnel. Empty if there is no tunnel."""
    network = config.join.network
    if network is None or not network.tunnels:
        return {}
    return addresses_of(network.subnet, nodes_by_pool(config))
