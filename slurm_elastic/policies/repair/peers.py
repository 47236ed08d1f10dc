"""Decides which machines may reach the head: its address in the tunnel, and whose packets pass.
Pure.

A node's address follows from the configuration alone, so that a machine can compute its own from
its pool and name. Each pool has its own block of the subnet; the block's place follows from the
pool's name. A pool that grows past a power of two moves. The ledger keeps the addresses of living
machines.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_address

from msgspec import Struct

from slurm_elastic.model.memory import Launch, Machine, Tunnel, generation_time

KEY_BYTES = 32
SMALLEST = 8
"""Addresses of the smallest block; the same number stays free at either end of the subnet."""
ENROLMENT_S = 600.0
"""Seconds after its launch in which a machine may use the key that allows enrolling only, unless
its cloud's ``resume_timeout`` is longer.
"""
ENROL_PORT = 51821
"""TCP port at the head's address in the tunnel, where a machine hands in its key."""


def enrolment_key(secret: str, node: str) -> str:
    """Return the private key with which a node's machine enrols (base64). ``programs/tunnel.py``
    computes the same key on the machine; it is clamped according to RFC 7748.
    """
    key_bytes = bytearray(hmac.new(secret.encode(), node.encode(), hashlib.sha256).digest())
    # Must match ``programs/tunnel.py`` byte for byte, or no machine can enrol.
    key_bytes[0] &= 248
    key_bytes[31] = key_bytes[31] & 127 | 64
    return base64.b64encode(bytes(key_bytes)).decode()


def is_public_key(text: str) -> bool:
    """Whether wg(8) takes the text as a public key. It refuses other spellings of the same bytes,
    which ``b64decode`` accepts, and with such a key the whole command that contains it.
    """
    try:
        key_bytes = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(key_bytes) == KEY_BYTES and base64.b64encode(key_bytes).decode() == text


class TunnelPeer(Struct, frozen=True, kw_only=True):
    """A machine that may reach the head from ``address``, through the tunnel with the public key
    ``key`` ("": without a tunnel). If not ``live``, the machine may only hand in its key.
    ``endpoint``: the ``ADDRESS:PORT`` outside of the tunnel that the head calls; "" if the head
    does not know any, or if machines open the tunnel.
    """

    address: str
    key: str = ""
    live: bool = True
    endpoint: str = ""


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
) -> Admission:
    """Decide who may reach the head now: machines of ``clouds`` through the tunnel, all others from
    their own address. A machine whose end is decided may not.

    ``addresses``: by node, in the tunnel. ``subnet``: the tunnel's; no address outside the tunnel
    may be in it. An open launch may have made machines that no list has shown yet, so its nodes may
    enrol.
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
    plain_addresses = [m.instance.address or "" for m in serving if m.instance.cloud not in clouds]
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


def _is_outside(address: str, subnet: str | None) -> bool:
    """Whether the address is an IPv4 address outside the tunnel. Clouds also report names and IPv6;
    such an address of one machine must not keep the hub from serving all others.
    """
    try:
        parsed = IPv4Address(address)
    except ValueError:
        return False
    return subnet is None or parsed not in IPv4Network(subnet)


def endpoint_of(address: str, port: int, inside: Iterable[str]) -> str:
    """Return where the head calls a machine outside of the tunnel, as wg(8) takes it; "" if it
    cannot. ``inside``: the networks to which the tunnel itself leads.
    """
    # One strange address in a cloud's list must not keep the hub from serving all others.
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    is_special = parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified
    if is_special or any(parsed in IPv4Network(network) for network in inside):
        return ""
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


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


def head_address(subnet: str) -> str:
    """Return the head's own address in the tunnel: the first of the subnet."""
    return str(IPv4Network(subnet)[1])


def addresses_of(subnet: str, pools: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the tunnel address of each node; ``pools`` has the nodes by pool. Raises ValueError if
    the subnet has no room.
    """
    network_start = int(IPv4Network(subnet).network_address)
    places = blocks(subnet, {name: len(nodes) for name, nodes in pools.items()})
    return {
        node: str(IPv4Address(network_start + places[name] + n))
        for name, nodes in pools.items()
        for n, node in enumerate(nodes)
    }


def blocks(subnet: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return, by pool, the offset of its block in the subnet. The order of ``sizes`` does not
    matter. Raises ValueError if there is no room.
    """
    subnet_size = IPv4Network(subnet).num_addresses
    used_ranges = [range(SMALLEST), range(subnet_size - SMALLEST, subnet_size)]
    placed: dict[str, int] = {}
    # The largest blocks first, because they find no place between small ones.
    for size, name in sorted(((-_block(n), name) for name, n in sizes.items())):
        # The place follows from the pool's name, so a new or removed pool moves only pools that
        # want the same place.
        free = _free(zlib.crc32(name.encode()), -size, subnet_size, used_ranges)
        if free is None:
            raise ValueError(f"no room for pool {name} in {subnet}")
        used_ranges.append(range(free, free - size))
        placed[name] = free
    return placed


def room_for(subnet: str, counts: Sequence[int]) -> bool:
    """Whether pools of these node counts fit into the subnet, whatever their names are."""
    # Blocks are aligned powers of two at places given by names, so half of the subnet may be lost
    # to gaps.
    half = IPv4Network(subnet).num_addresses // 2
    return sum(_block(count) for count in counts) <= half - SMALLEST


def _block(count: int) -> int:
    """Return the size of the block for ``count`` nodes: a power of two."""
    return max(SMALLEST, 1 << max(count - 1, 0).bit_length())


def _free(first_slot: int, size: int, subnet_size: int, used_ranges: Sequence[range]) -> int | None:
    """Return the first free offset at or after slot ``first_slot``, cyclically; None if there is
    none.
    """
    slots = subnet_size // size
    for step in range(slots):
        start = (first_slot + step) % slots * size
        if all(start + size <= used.start or used.stop <= start for used in used_ranges):
            return start
    return None
