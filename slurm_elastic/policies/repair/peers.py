"""Who may reach the head: which machine has which address in the tunnel, and whose packets pass.
Pure.

A node's address follows from the configuration alone, so that a machine can tell its own by its
pool and name. Each pool has a block of the subnet to itself, whose place comes from the pool's
name. Pools that grow past a power of two move; the ledger keeps what living machines have.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec import Struct

from slurm_elastic.model.cluster import STANDING
from slurm_elastic.model.memory import Launch, Machine, Tunnel, generation_time

SMALLEST = 8
"""Addresses of the smallest block; as many are kept at either end of the subnet."""
ENROLMENT = 600.0
"""Seconds after its launch for which a machine may use the key that is good for enrolling only."""
ENROL_PORT = 51821
"""TCP, at the head's address in the tunnel: where a machine hands in its key."""


def enrolment_key(word: str, node: str) -> str:
    """The private key by which the machine of a node enrols; as ``programs/tunnel.py`` makes it,
    clamped as RFC 7748 has it.
    """
    raw = bytearray(hmac.new(word.encode(), node.encode(), hashlib.sha256).digest())
    raw[0] &= 248
    raw[31] = raw[31] & 127 | 64
    return base64.b64encode(bytes(raw)).decode()


class Peer(Struct, frozen=True, kw_only=True):
    """A machine that may reach the head from ``address``, by the tunnel whose other end has the
    public key ``key`` ("": without one). Not ``live``: it may hand in its key, and nothing else.
    """

    address: str
    key: str = ""
    live: bool = True


class Enrolling(Struct, frozen=True, kw_only=True):
    """A machine whose key is not known yet, and the address that it will have."""

    generation: str
    node: str
    address: str


class Admission(Struct, frozen=True, kw_only=True):
    """``peers`` are to be let in, ``enrolling`` may enrol; the rows ``over`` are of no machine."""

    peers: tuple[Peer, ...]
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
    """Who may reach the head now. Machines of ``clouds`` by the tunnel, of all others from
    the address that they have; a machine whose end is decided not any more.

    ``addresses``: by node, in the tunnel, whose ``subnet`` nobody else's address is in. A machine
    of an open launch may be there unseen.
    """
    serving = [m for m in machines if m.is_wanted and m.instance.state in STANDING]
    mine = [m for m in serving if m.instance.cloud in clouds]
    launching = [row for row in launches if row.cloud in clouds]
    there = {(m.instance.generation, m.instance.node) for m in mine}
    may_be = there | {(row.generation, node) for row in launching for node in row.nodes}
    known = {(t.generation, t.node): t for t in tunnels}
    plain = [m.instance.address or "" for m in serving if m.instance.cloud not in clouds]
    return Admission(
        peers=(
            *(Peer(address=t.address, key=t.key) for key, t in known.items() if key in may_be),
            *(Peer(address=one) for one in dict.fromkeys(plain) if _is_outside(one, subnet)),
        ),
        enrolling=tuple(
            Enrolling(generation=generation, node=node, address=addresses[node])
            for generation, node in sorted(may_be - known.keys())
            if node in addresses
        ),
        over=tuple(t for key, t in known.items() if key not in may_be),
    )


def _is_outside(address: str, subnet: str | None) -> bool:
    """Whether it is an address of IPv4 that is not the tunnel's. Clouds have names and IPv6, too:
    one machine's must not keep the hub from all the others.
    """
    try:
        found = IPv4Address(address)
    except ValueError:
        return False
    return subnet is None or found not in IPv4Network(subnet)


def may_enrol_once(one: Enrolling, now: float) -> bool:
    """Whether the key that is good for enrolling only still is."""
    return now < generation_time(one.generation) + ENROLMENT


def newest(some: Iterable[Enrolling], taken: Iterable[str]) -> tuple[Enrolling, ...]:
    """Machines that may have the addresses of their nodes, which are not ``taken``: of one node the
    machine of the latest launch.
    """
    by_age = sorted(some, key=lambda one: generation_time(one.generation))
    # Of one node the latest launch comes last, and counts.
    by_address = {one.address: one for one in by_age}
    return tuple(one for one in by_address.values() if one.address not in set(taken))


def head_address(subnet: str) -> str:
    """The head's own address in the tunnel: the first one."""
    return str(IPv4Network(subnet)[1])


def addresses_of(subnet: str, pools: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By node, its address; ``pools`` are the nodes by pool, for which there must be room."""
    first = int(IPv4Network(subnet).network_address)
    places = blocks(subnet, {name: len(nodes) for name, nodes in pools.items()})
    return {
        node: str(IPv4Address(first + places[name] + n))
        for name, nodes in pools.items()
        for n, node in enumerate(nodes)
    }


def blocks(subnet: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """By pool, where its block begins in the subnet; ValueError where there is no room. Their order
    does not matter.
    """
    whole = IPv4Network(subnet).num_addresses
    taken = [range(SMALLEST), range(whole - SMALLEST, whole)]
    placed: dict[str, int] = {}
    for size, name in sorted(((-_block(n), name) for name, n in sizes.items())):
        # By the name: another pool more or less moves none but those that want the same place.
        free = _free(zlib.crc32(name.encode()), -size, whole, taken)
        if free is None:
            raise ValueError(f"no room for pool {name} in {subnet}")
        taken.append(range(free, free - size))
        placed[name] = free
    return placed


def room_for(subnet: str, counts: Sequence[int]) -> bool:
    """Whether pools of so many nodes have room in it, whatever their names."""
    half = IPv4Network(subnet).num_addresses // 2
    return sum(_block(count) for count in counts) <= half - SMALLEST


def _block(count: int) -> int:
    return max(SMALLEST, 1 << max(count - 1, 0).bit_length())


def _free(wanted: int, size: int, whole: int, taken: Sequence[range]) -> int | None:
    slots = whole // size
    for step in range(slots):
        start = (wanted + step) % slots * size
        if all(start + size <= one.start or one.stop <= start for one in taken):
            return start
    return None
