"""The facts of a configuration that decide which resources its site needs in a cloud, for
``init --make``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from ipaddress import IPv4Network, ip_address, ip_network
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.grants import GrantUse, use_of
from slurm_elastic.config.mounting import mounts_of, through_tunnel
from slurm_elastic.config.sections.joining import Network
from slurm_elastic.config.tunnel import uses

ANYWHERE = "0.0.0.0/0"
CIDR = "10.98.0.0/16"
"""The default addresses of a new network."""
_SLURMD_PORT = 6818
_NETWORK_BITS = range(16, 25)
"""A network of EC2 has at most 16 bits for hosts. A smaller one than /24 has no room for zones."""


class ResourceGroup(StrEnum):
    """The groups of resources that a site may lack."""

    NETWORK = "network"
    SECURITY_GROUP = "security-group"
    KEY_PAIR = "key-pair"
    LAUNCH_TEMPLATE = "launch-template"
    ROLE = "role"
    CREDENTIAL = "application-credential"


class SitePlace(Struct, frozen=True, kw_only=True):
    """The facts that a maker of resources needs. Addresses are networks such as ``10.1.2.3/32``.

    ``tunnel_port``: the head's UDP port if machines open a tunnel; ``tunnel_networks``: the head as
    machines see it from outside. ``head_opens``: the head opens the tunnel to that UDP port of
    machines. Without a tunnel: ``head_networks`` and ``trusted_networks``.
    ``head_ports``: the first and last port of each range; ``srun_ports`` likewise.
    ``mount_networks``: the servers of ``join.mounts`` that machines reach outside of a tunnel.
    ``looks_up_names``: machines look up the name of the head or of such a server. ``parts``: the
    parts to make.
    ``public_key``: of the key pair, "" if it does not exist yet. ``secret``: of the application
    credential, "" if it is not known. It is in no resource's properties.
    """

    cluster: Cluster
    use: GrantUse
    cidr: str = CIDR
    parts: frozenset[ResourceGroup] = frozenset(ResourceGroup)
    public_key: str = ""
    secret: str = ""
    external_network: str = ""
    tunnel_port: int | None = None
    tunnel_networks: tuple[str, ...] = ()
    head_opens: bool = False
    head_networks: tuple[str, ...] = ()
    trusted_networks: tuple[str, ...] = ()
    head_ports: tuple[tuple[int, int], ...] = ()
    srun_ports: tuple[int, int]
    mount_networks: tuple[str, ...] = ()
    node_ports: tuple[int, ...] = ()
    slurmd_ports: tuple[int, ...] = (_SLURMD_PORT,)
    ssh_port: int | None = None
    looks_up_names: bool = False


def place_of(
    config: Config,
    cloud: CloudSettings,
    expand: Callable[[str], Sequence[str]],
    addresses: Callable[[str], Sequence[str]],
    slurmctld_ports: tuple[int, int],
    srun_ports: tuple[int, int],
) -> SitePlace:
    """The facts about a cloud of the configuration. ``addresses``: the IPv4 addresses of a host
    name, empty if it has none. ``slurmctld_ports``, ``srun_ports``: the first and last port of
    each. ConfigError if the security group cannot be derived.
    """
    servers = [mount.server for mount in mounts_of(config, cloud)]
    pools = [pool for pool in config.pools if pool.cloud == cloud.name]
    place = SitePlace(
        cluster=config.cluster,
        use=use_of(config, cloud, expand),
        slurmd_ports=tuple(sorted({pool.slurmd_port or _SLURMD_PORT for pool in pools})),
        ssh_port=config.join.ssh.port if config.join.ssh is not None else None,
        srun_ports=srun_ports,
        mount_networks=_outside_tunnel(config, cloud, servers, addresses),
        looks_up_names=any(addresses(server) != [server] for server in servers),
    )
    network = config.join.network
    if network is not None and network.tunnels and uses(network, cloud):
        if network.head_opens:
            # The head's address as seen from outside is not known and may change.
            return replace(
                place, tunnel_port=network.udp_port, tunnel_networks=(ANYWHERE,), head_opens=True
            )
        host, _, port = (network.endpoint or "").rpartition(":")
        # The address behind a name may change, and the group would keep the old one.
        is_address = addresses(host) == [host]
        outside = f"{host}/32" if is_address else ANYWHERE
        return replace(
            place, tunnel_port=int(port), tunnel_networks=(outside,),
            looks_up_names=place.looks_up_names or not is_address,
        )  # fmt: skip
    if not config.join.heads:
        return place
    # The default of ``head_ports`` is slurmctld's usual port, which this site may not use.
    has_own_ports = network is not None and network.head_ports != Network().head_ports
    head_ports = set(network.head_ports) if network is not None and has_own_ports else set()
    head_addresses: list[str] = []
    hosts = [head.partition(":")[0] for head in config.join.heads]
    for head in config.join.heads:
        host, _, port = head.partition(":")
        head_ports |= {int(port)} if port else set()
        head_addresses += addresses(host) or _unresolved(host)
    first_port, last_port = slurmctld_ports
    head_ports -= set(range(first_port, last_port + 1))
    return replace(
        place,
        looks_up_names=place.looks_up_names or any(addresses(host) != [host] for host in hosts),
        head_networks=tuple(f"{address}/32" for address in dict.fromkeys(head_addresses)),
        trusted_networks=network.trusted_networks if network is not None else (),
        head_ports=(slurmctld_ports, *((port, port) for port in sorted(head_ports))),
        node_ports=network.node_ports if network is not None else (),
    )


def _outside_tunnel(
    config: Config,
    cloud: CloudSettings,
    servers: Sequence[str],
    addresses: Callable[[str], Sequence[str]],
) -> tuple[str, ...]:
    """The networks of the servers to which no tunnel leads."""
    network = config.join.network
    has_tunnel = network is not None and through_tunnel(network, cloud)
    inside = [ip_network(text) for text in network.inside] if network and has_tunnel else []
    heads = {head.partition(":")[0] for head in config.join.heads}
    networks: dict[str, None] = {}
    for server in dict.fromkeys(servers):
        its_addresses = addresses(server)
        outside = [
            address for address in its_addresses
            if not any(ip_address(address) in subnet for subnet in inside)
        ]  # fmt: skip
        # The addresses behind a name may change, and may differ in the cloud: machines look the
        # name up themselves. The group lists the heads' addresses for Slurm's ports, too.
        if its_addresses == [server] or (its_addresses and server in heads):
            networks |= dict.fromkeys(f"{address}/32" for address in outside)
        elif outside or not its_addresses:
            networks[ANYWHERE] = None
    return tuple(networks)


def require_reachable(
    config: Config, cloud: CloudSettings, addresses: Callable[[str], Sequence[str]]
) -> None:
    """ConfigError if the security group would list an address that no machine reaches."""
    # Machines of a cloud on this host, such as a sandbox's, reach its loopback addresses.
    if is_loopback_url(getattr(cloud, "endpoint", None) or ""):
        return
    network = config.join.network
    key, hosts = "join.head", [head.partition(":")[0] for head in config.join.heads]
    if network is not None and network.tunnels and uses(network, cloud):
        if network.head_opens:
            return
        endpoint = (network.endpoint or "").rpartition(":")[0]
        # A name is not resolved for the group: with a name its rule lists all addresses.
        is_address = addresses(endpoint) == [endpoint]
        key, hosts = "join.network.endpoint", [endpoint] if is_address else []
    for host in hosts:
        for address in addresses(host):
            if reason := why_no_address(address):
                shown = host if host == address else f"{host}, which is {address} on this host"
                raise ConfigError(
                    f"{key}: found {shown}, expected an address that machines reach, such as "
                    f"10.1.2.3, or the name of such an address: {reason}; nothing is changed"
                )


def why_no_address(host: str) -> str:
    """Why machines cannot reach the head at this address, "" if they may."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"{host} is no address: it has four numbers, each at most 255"
    is_unreachable = address.is_loopback or address.is_unspecified or address.is_multicast
    if is_unreachable or address.is_link_local or address.is_reserved:
        return f"no machine reaches {host}"
    return ""


def is_loopback_url(url: str) -> bool:
    """Whether a service is on this host itself."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _unresolved(host: str) -> list[str]:
    raise ConfigError(
        f"join.head: this host cannot resolve {host}, expected a name with an IPv4 address: the "
        "security group lists the head's address"
    )


def require_network(cidr: str) -> None:
    """ConfigError if a new network cannot have these addresses."""
    try:
        network = ip_network(cidr)
    except ValueError:
        network = None
    if not isinstance(network, IPv4Network) or network.prefixlen not in _NETWORK_BITS:
        raise ConfigError(f"--cidr: found {cidr!r}, expected an IPv4 network such as {CIDR}")


def require_unused(config: Config, cidr: str) -> None:
    """ConfigError if the site uses addresses of this network already."""
    network, joining = ip_network(cidr), config.join.network
    used = (joining.subnet, *joining.routes, *joining.trusted_networks) if joining else ()
    for text in used:
        other = ip_network(text, strict=False)
        if isinstance(other, IPv4Network) and other.overlaps(network):
            raise ConfigError(f"--cidr: found {cidr}, expected a network apart from {text}")


def chosen_parts(left_out: Collection[str]) -> frozenset[ResourceGroup]:
    """All parts except ``left_out``."""
    return frozenset(ResourceGroup) - {ResourceGroup(name) for name in left_out}
