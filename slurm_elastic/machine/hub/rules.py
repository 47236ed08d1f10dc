"""The head's nftables rules (nft(8)): which machine may send to which port.

We write the text of the whole table, because the kernel accepts or refuses it as a whole. An
established connection alone is never enough: packets of a machine are dropped from the moment it is
no longer in the set ``live``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import TYPE_CHECKING

from slurm_elastic.policies.repair.tunnel_addresses import ENROL_PORT, TunnelPeer, head_address

if TYPE_CHECKING:  # as in ``service``
    from slurm_elastic.config.sections.joining import Network
    from slurm_elastic.machine.hub.ports import SlurmPorts

_TABLE = "slurm_elastic_hub"


def table_name(network: Network) -> str:
    """The name of this hub's table. Each hub of a host has a socket of its own, and needs a table
    of its own, because ``table`` replaces all rules of its table.
    """
    if network.has_default_socket:
        return _TABLE
    return f"{_TABLE}_{hashlib.sha256(network.socket.encode()).hexdigest()[:8]}"


def table(network: Network, peers: Sequence[TunnelPeer], slurm: SlurmPorts) -> str:
    """Return the nft commands that replace the table. ``slurm``: Slurm's ports on the head."""
    name = table_name(network)
    lines = [
        # nft cannot replace a table: add it (it may be missing), delete it, define it. One
        # transaction.
        f"table inet {name}",
        f"delete table inet {name}",
        f"table inet {name} {{",
        _set("live", "ipv4_addr", (p.address for p in peers if p.live)),
        _set("enrolling", "ipv4_addr", (p.address for p in peers if not p.live)),
    ]
    for trusted_set, version in (("trusted", 4), ("trusted6", 6)):
        trusted = [text for text in network.trusted_networks if ip_network(text).version == version]
        lines.append(_set(trusted_set, f"ipv{version}_addr", trusted, interval=True))
    lines.append(_set("routes", "ipv4_addr", network.routes, interval=True))
    of_tunnel = _into_head(network, slurm) if network.tunnels else ()
    lines.append(_chain("input", [*of_tunnel, *_closed(network, slurm)]))
    if network.tunnels:
        lines.append(_chain("forward", _through_head(network)))
    return "\n".join([*lines, "}", ""])


def _into_head(network: Network, slurm: SlurmPorts) -> Iterable[str]:
    """Let machines reach the head's ports that they need, and answer the head's connections.

    slurm-elasticd itself listens on the port for enrolment.
    """
    tunnel = f'iifname "{network.interface}"'
    yield f"{tunnel} ip saddr @enrolling tcp dport {ENROL_PORT} accept"
    # Before the accept rules, because the enrolment port may lie in srun's port range. It also
    # stops users of the head and jobs.
    yield f"ip daddr {head_address(network.subnet)} tcp dport {ENROL_PORT} drop"
    for ports in dict.fromkeys([slurm.slurmctld, slurm.srun, *map(str, network.head_ports)]):
        yield f"{tunnel} ip saddr @live tcp dport {ports} accept"
    yield f"{tunnel} ip saddr @live ct state established,related accept"
    yield f"{tunnel} ip saddr @live meta l4proto icmp accept"
    yield f"{tunnel} drop"


def _closed(network: Network, slurm: SlurmPorts) -> Iterable[str]:
    """Close the head's ports to all hosts except the head itself, the site's networks and live
    machines. Slurm's own ports are closed although ``head_ports`` may not have them.
    """
    if network.firewall is None:
        return
    yield 'iifname "lo" accept'
    # One set for all would be refused if ``head_ports`` has a port of the range SlurmctldPort.
    for ports in dict.fromkeys([slurm.slurmctld, *map(str, network.head_ports)]):
        yield from _closed_ports(f"tcp dport {ports}")
    if slurm.has_srun_range:
        # Connections that the head opens may get these ports, too, and need their answers.
        yield from _closed_ports(f"tcp dport {slurm.srun} tcp flags & (syn | ack) == syn")


def _closed_ports(match: str) -> Iterable[str]:
    yield f"{match} ip saddr @live accept"
    yield f"{match} ip saddr @trusted accept"
    yield f"{match} ip6 saddr @trusted6 accept"
    yield f"{match} drop"


def _through_head(network: Network) -> Iterable[str]:
    """Forward between machines, and between machines and the networks behind the head."""
    from_tunnel, to_tunnel = f'iifname "{network.interface}"', f'oifname "{network.interface}"'
    ports = ", ".join(map(str, network.node_ports))
    port_match = f" tcp dport {{ {ports} }}" if ports else ""
    live_pair = "ip saddr @live ip daddr @live"
    yield f"{from_tunnel} {to_tunnel} {live_pair}{port_match} accept"
    if ports:  # answers do not go to these ports
        yield f"{from_tunnel} {to_tunnel} {live_pair} ct state established,related accept"
    yield f"{from_tunnel} ip saddr @live ip daddr @routes accept"
    yield f"{to_tunnel} ip saddr @routes ip daddr @live accept"
    yield f"{from_tunnel} drop"
    yield f"{to_tunnel} drop"


def _set(name: str, kind: str, elements: Iterable[str], *, interval: bool = False) -> str:
    members = ", ".join(dict.fromkeys(elements))
    flags = " flags interval; auto-merge;" if interval else ""
    return (
        f"set {name} {{ type {kind};{flags}{f' elements = {{ {members} }};' if members else ''} }}"
    )


def _chain(hook: str, rules: Iterable[str]) -> str:
    inside = "\n".join(f"    {rule}" for rule in rules)
    return f"chain {hook} {{\n    type filter hook {hook} priority 0; policy accept;\n{inside}\n}}"
