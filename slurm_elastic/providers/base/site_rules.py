"""The least rules of a security group for machines (docs/network.md). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from slurm_elastic.config.site_place import SitePlace
from slurm_elastic.config.validation.validate_mounts import NFS_PORT

GROUP = "group"
"""In place of a network: the machines of the group."""


class FirewallRule(Struct, frozen=True, kw_only=True):
    """One permission. ``peer``: a network, or GROUP. ``ports``: None for all of all protocols."""

    direction: str
    protocol: str = "tcp"
    ports: tuple[int, int] | None = None
    peer: str
    purpose: str

    @property
    def key(self) -> str:
        """The key of this rule among the resources of a cloud."""
        ports = "all" if self.ports is None else "-".join(map(str, dict.fromkeys(self.ports)))
        protocol = "any" if self.ports is None else self.protocol
        return f"{self.direction}-{protocol}-{ports}-{self.peer.replace('/', '-')}"


def rules_of(place: SitePlace) -> tuple[FirewallRule, ...]:
    """The rules of the machines' group. All else is closed, in both directions."""
    rules = _tunnel(place) if place.tunnel_port is not None else _routed(place)
    # Two purposes may need the same ports of the same network.
    all_rules = (*_fabric(place), *rules, *_mounts(place))
    return tuple({rule.key: rule for rule in all_rules}.values())


def _fabric(place: SitePlace) -> Iterator[FirewallRule]:
    """Yield the rules for pools with ``rdma``. EFA's packets go from machine to machine, beside any
    tunnel, and a rule of ports or addresses does not cover them.
    """
    if any(pool.machine.rdma for pool in place.use.pools):
        for direction in ("ingress", "egress"):
            yield FirewallRule(
                direction=direction, peer=GROUP, purpose="the fabric of pools with rdma"
            )


def _mounts(place: SitePlace) -> Iterator[FirewallRule]:
    """Yield the rules for servers of ``join.mounts``: without them slurmd does not start."""
    for network in place.mount_networks:
        yield FirewallRule(
            direction="egress", ports=(NFS_PORT, NFS_PORT), peer=network,
            purpose="machines mount from the server",
        )  # fmt: skip


def _tunnel(place: SitePlace) -> Iterator[FirewallRule]:
    """Yield the rules for the tunnel. Nothing else needs to reach machines from outside the tunnel.

    Only the end that opens the tunnel needs a rule, because answers pass without a rule.
    """
    port = place.tunnel_port or 0
    if place.head_opens:
        for network in place.tunnel_networks:
            yield FirewallRule(
                direction="ingress", protocol="udp", ports=(port, port), peer=network,
                purpose="the head opens the tunnel",
            )  # fmt: skip
        return
    for network in place.tunnel_networks:
        yield FirewallRule(
            direction="egress", protocol="udp", ports=(port, port), peer=network,
            purpose="the tunnel to the head",
        )  # fmt: skip


def _routed(place: SitePlace) -> Iterator[FirewallRule]:
    networks = (*place.head_networks, *place.trusted_networks)
    for network in networks:
        for port in place.slurmd_ports:
            yield FirewallRule(
                direction="ingress", ports=(port, port), peer=network,
                purpose="slurmctld and srun reach slurmd",
            )  # fmt: skip
    for network in place.head_networks:
        if place.ssh_port is not None:
            ssh = (place.ssh_port, place.ssh_port)
            yield FirewallRule(
                direction="ingress", ports=ssh, peer=network,
                purpose="the head brings the munge key",
            )  # fmt: skip
        for ports in place.head_ports:
            yield FirewallRule(
                direction="egress", ports=ports, peer=network,
                purpose="slurmd reaches the head",
            )  # fmt: skip
    for network in networks:
        yield FirewallRule(
            direction="egress",
            ports=place.srun_ports,
            peer=network,
            purpose="tasks reach their srun",
        )
    of_nodes = [(port, port) for port in place.node_ports]
    ranges: list[tuple[int, int] | None] = [*of_nodes] or [None]
    for direction in ("ingress", "egress"):
        for node_ports in ranges:
            yield FirewallRule(
                direction=direction, ports=node_ports, peer=GROUP,
                purpose="machines of one job reach each other",
            )  # fmt: skip
