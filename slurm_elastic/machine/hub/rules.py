"""nftables' rules of the head (nft(8)): who may send what. Writes the text of the whole table,
which the kernel accepts or refuses as a whole.

An established connection is never enough by itself: a machine that is no longer let in is silent
from that moment on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from slurm_elastic.config.joining import Network
from slurm_elastic.policies.repair.peers import ENROL_PORT, Peer, head_address

TABLE = "slurm_elastic_hub"


def table(network: Network, peers: Sequence[Peer], slurm: Sequence[str]) -> str:
    """The table, which replaces the present one. ``slurm`` are Slurm's own ports on the head
    (``6817``, ``60001-63000``).
    """
    lines = [
        f"table inet {TABLE}",
        f"delete table inet {TABLE}",
        f"table inet {TABLE} {{",
        _set("live", "ipv4_addr", (p.address for p in peers if p.live)),
        _set("enrolling", "ipv4_addr", (p.address for p in peers if not p.live)),
    ]
    for name, version in (("trusted", 4), ("trusted6", 6)):
        some = [text for text in network.trusted if ip_network(text).version == version]
        lines.append(_set(name, f"ipv{version}_addr", some, interval=True))
    lines.append(_set("routes", "ipv4_addr", network.routes, interval=True))
    inward = [*(_into_head(network, slurm) if network.tunnels else ()), *_closed(network)]
    lines.append(_chain("input", inward))
    if network.tunnels:
        lines.append(_chain("forward", _through_head(network)))
    return "\n".join([*lines, "}", ""])


def _into_head(network: Network, slurm: Sequence[str]) -> Iterable[str]:
    """Let machines reach what they need of the head, and answer what it asks them. At the port
    where they enrol, slurm-elasticd itself listens.
    """
    tunnel = f'iifname "{network.interface}"'
    yield f"{tunnel} ip saddr @enrolling tcp dport {ENROL_PORT} accept"
    # For users of the head and jobs of machines, too, and before the next rules: the port may be
    # among those that srun's get.
    yield f"ip daddr {head_address(network.subnet)} tcp dport {ENROL_PORT} drop"
    for ports in dict.fromkeys([*slurm, *map(str, network.ports)]):
        yield f"{tunnel} ip saddr @live tcp dport {ports} accept"
    yield f"{tunnel} ip saddr @live ct state established,related accept"
    yield f"{tunnel} ip saddr @live meta l4proto icmp accept"
    yield f"{tunnel} drop"


def _closed(network: Network) -> Iterable[str]:
    """Close the head's ports to all but itself, the site and live machines."""
    if network.firewall is None:
        return
    ports = f"tcp dport {{ {', '.join(map(str, network.ports))} }}"
    yield 'iifname "lo" accept'
    yield f"{ports} ip saddr @live accept"
    yield f"{ports} ip saddr @trusted accept"
    yield f"{ports} ip6 saddr @trusted6 accept"
    yield f"{ports} drop"


def _through_head(network: Network) -> Iterable[str]:
    """Forward between machines, and between them and the networks behind the head."""
    of, to = f'iifname "{network.interface}"', f'oifname "{network.interface}"'
    ports = ", ".join(map(str, network.node_ports))
    only = f" tcp dport {{ {ports} }}" if ports else ""
    both = "ip saddr @live ip daddr @live"
    yield f"{of} {to} {both}{only} accept"
    if ports:  # the answers to these
        yield f"{of} {to} {both} ct state established,related accept"
    yield f"{of} ip saddr @live ip daddr @routes accept"
    yield f"{to} ip saddr @routes ip daddr @live accept"
    yield f"{of} drop"
    yield f"{to} drop"


def _set(name: str, kind: str, elements: Iterable[str], *, interval: bool = False) -> str:
    some = ", ".join(dict.fromkeys(elements))
    flags = " flags interval; auto-merge;" if interval else ""
    return f"set {name} {{ type {kind};{flags}{f' elements = {{ {some} }};' if some else ''} }}"


def _chain(hook: str, rules: Iterable[str]) -> str:
    inside = "\n".join(f"    {rule}" for rule in rules)
    return f"chain {hook} {{\n    type filter hook {hook} priority 0; policy accept;\n{inside}\n}}"
