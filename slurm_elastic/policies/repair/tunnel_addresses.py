"""The tunnel's addresses and keys: which address a node has, and which peers the hub may get. Pure.

A node's address follows from the configuration alone, so that a machine can compute its own from
its pool and name. Each pool has its own block of the subnet; the block's place follows from the
pool's name. A pool that grows past a power of two moves. The ledger keeps the addresses of living
machines.

The hub runs as root and needs only this module, so nothing here needs the rows of the ledger.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_address

from msgspec import Struct

KEY_BYTES = 32
SMALLEST = 8
"""Addresses of the smallest block; the same number stays free at either end of the subnet."""
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
