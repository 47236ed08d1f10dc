"""Decides which machines may reach the head: whose packets pass, and who may hand in a key. Pure.

``tunnel_addresses`` has the address that each node gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network

from msgspec import Struct

from slurm_elastic.model.memory import Launch, Machine, Tunnel, generation_time
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer

ENROLMENT_S = 600.0
"""Seconds after its launch in which a machine may use the key that allows enrolling only, unless
its cloud's ``resume_timeout`` is longer.
"""


class Enrolling(Struct, frozen=True, kw_only=True):
    """A machine whose key is not known yet, and the address that it will have."""

    generation: str
    node: str
    address: str


class Admission(Struct, frozen=True, kw_only=True):
    """``peers`` may reach the head, ``enrolling`` may enrol, and ``over`` are rows without a
    machine.
    """

    peers: tuple[TunnelPeer, ...]
    enrolling: tuple[Enrolling, ...]
    over: tuple[Tunnel, ...]


def admission(
    machines: Iterable[Machine],
    launches: Iterable[Launch],
    tunnels: Iterable[Tunnel],
    addresses: Mapping[str, str],
    clouds: frozenset[str],
    subnet: str | None = None,
    outside: Mapping[str, str] | None = None,
) -> Admission:
    """Decide who may reach the head now: machines of ``clouds`` through the tunnel, all others from
    their own addresses. A machine whose end is decided may not.

    ``addresses``: by node, in the tunnel. ``subnet``: the tunnel's; no address outside the tunnel
    may be in it. ``outside``: by machine id, its public or floating address. An open launch may
    have made machines that no list has shown yet, so its nodes may enrol.
    """
    # A machine loses its way to the head when its end is decided, not when the cloud has ended it.
    # Whether a list has it as stopped does not count: one list may be wrong, and a machine without
    # a peer cannot hand in its key again.
    serving = [m for m in machines if m.is_wanted]
    tunnel_machines = [m for m in serving if m.instance.cloud in clouds]
    launching = [row for row in launches if row.cloud in clouds]
    serving_keys = {(m.instance.generation, m.instance.node) for m in tunnel_machines}
    possible_keys = serving_keys | {
        (row.generation, node) for row in launching for node in row.nodes
    }
    tunnel_by_key = {(t.generation, t.node): t for t in tunnels}
    plain = [m.instance for m in serving if m.instance.cloud not in clouds]
    # The head sees the public address of a machine that reaches it through a router of its cloud.
    public_addresses = outside or {}
    plain_addresses = [
        address for i in plain for address in (i.address or "", public_addresses.get(i.id, ""))
    ]
    return Admission(
        peers=(
            *(
                TunnelPeer(address=t.address, key=t.key)
                for key, t in tunnel_by_key.items()
                if key in possible_keys
            ),
            *(
                TunnelPeer(address=address)
                for address in dict.fromkeys(plain_addresses)
                if _is_outside(address, subnet)
            ),
        ),
        enrolling=tuple(
            Enrolling(generation=generation, node=node, address=addresses[node])
            for generation, node in sorted(possible_keys - tunnel_by_key.keys())
            if node in addresses
        ),
        over=tuple(t for key, t in tunnel_by_key.items() if key not in possible_keys),
    )


def taken_addresses(addresses: Mapping[str, str], tunnels: Iterable[Tunnel]) -> dict[str, Tunnel]:
    """Return by node the tunnel of another node's machine at its address. ``addresses``: by node,
    according to the configuration, which may have changed since that machine enrolled.
    """
    moved = {t.address: t for t in tunnels if addresses.get(t.node) != t.address}
    if not moved:
        return {}
    return {node: moved[address] for node, address in addresses.items() if address in moved}


def _is_outside(address: str, subnet: str | None) -> bool:
    """Whether the address is an IPv4 address outside the tunnel. Clouds also report names and IPv6;
    such an address of one machine must not keep the hub from serving all others.
    """
    try:
        parsed = IPv4Address(address)
    except ValueError:
        return False
    return subnet is None or parsed not in IPv4Network(subnet)


def may_enrol_once(machine: Enrolling, now: float, resume_timeout: float) -> bool:
    """Whether the machine is young enough to use the key that allows enrolling only.
    ``resume_timeout``: for so long (s) a machine of its cloud may boot.
    """
    # A machine that boots slowly must not be shut out while its node is still waited for.
    return now < generation_time(machine.generation) + max(ENROLMENT_S, resume_timeout)


def newest(machines: Iterable[Enrolling], used_addresses: Iterable[str]) -> tuple[Enrolling, ...]:
    """Return the machines that may have their nodes' addresses, unless the address is in
    ``used_addresses``. If a node has several machines, the machine of the latest launch gets it.
    """
    by_age = sorted(machines, key=lambda machine: generation_time(machine.generation))
    # The latest launch of a node comes last, so it replaces the earlier ones in the dictionary.
    by_address = {machine.address: machine for machine in by_age}
    return tuple(
        machine for machine in by_address.values() if machine.address not in set(used_addresses)
    )
