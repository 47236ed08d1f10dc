"""Looks at a job's network sockets (proc(5), net/tcp): which can exist again on another node.

A connection between two of the job's own processes by the loopback address can: CRIU brings both
ends back. But CRIU saves one end after the other, and the kernel may carry data between them
meanwhile; so we check afterwards that the two agree (``check_streams``).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .images import Stream
from .pinned_task import Owner, PinnedTask, pinned
from .proc import descriptors_of
from .site import Refused

_TABLES = ("tcp", "tcp6", "udp", "udp6")
_ESTABLISHED = 1  # include/net/tcp_states.h
TCP_REPAIR = 19  # tcp(7) has it not: include/uapi/linux/tcp.h
NONLOCAL = Path("/proc/sys/net/ipv4/ip_nonlocal_bind")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
End = tuple[Address, int]
"""An address and a port."""


@dataclass(frozen=True)
class Socket:
    """One end, and the far one, whose port is 0 if there is none. ``unread``: bytes of memory that
    data take which the program has not read yet.
    """

    kind: str
    local: End
    far: End
    state: int
    unread: int = 0


def sockets(tasks: Collection[int]) -> list[Socket]:
    """The sockets that the tasks have open, by the tables of the network that they share."""
    own = {inode for pid in tasks for _, inode in _sockets_of(pid)}
    return [one for table in _TABLES for one in _rows(tasks, table, own)] if own else []


def _rows(tasks: Iterable[int], table: str, own: Collection[str]) -> list[Socket]:
    for pid in tasks:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as file:
            rows = (line.split() for line in file)
            return [
                Socket(
                    table[:3],
                    _end(row[1]),
                    _end(row[2]),
                    int(row[3], 16),
                    int(row[4].partition(":")[2], 16),
                )
                for row in rows
                if len(row) > 9 and row[9] in own
            ]
    return []


def connections(tasks: Collection[int]) -> list[str]:
    """The far ends of the tasks' TCP connections, as 10.0.0.2:80 or [::1]:80."""
    return sorted({_shown(one.far) for one in _connected(sockets(tasks))})


def _connected(found: Iterable[Socket]) -> list[Socket]:
    return [one for one in found if one.kind == "tcp" and one.far[1]]


def stays_here(tasks: Collection[int]) -> str:
    """Why a socket cannot exist on another node: it is bound to an address that only this one
    has. Empty if there is none. Connections are looked at elsewhere.
    """
    with contextlib.suppress(OSError):
        # Only so do nodes let somebody bind to an address that they do not have (ip(7)).
        if NONLOCAL.read_text(encoding="ascii").strip() == "1":
            return ""
    for one in sockets(tasks):
        address = one.local[0]
        plain = one.kind == "udp" or not one.far[1]
        if plain and not (address.is_unspecified or address.is_loopback):
            return f"it has a socket bound to {_shown(one.local)}, which only its node can be"
    return ""


def are_its_own(tasks: Collection[int]) -> bool:
    """Whether the tasks have connections, all of them between themselves and by loopback."""
    found = _connected(sockets(tasks))
    ends = {(one.local, one.far) for one in found}
    return bool(found) and all(
        one.state == _ESTABLISHED
        and one.local[0].is_loopback
        and one.far[0].is_loopback
        and (one.far, one.local) in ends
        for one in found
    )


def check_streams(streams: Collection[Stream]) -> None:
    """Refused if data were under way: saved neither by the sending end, which no longer has them,
    nor by the receiving one. Also if an end lacks the other, or still has to send.
    """
    ends = {(_plain(one.local), _plain(one.far)): one for one in streams}
    for (local, far), one in ends.items():
        other = ends.get((far, local))
        # What has to be sent still the kernel would send at a restore before the other end exists.
        if other is None or one.unsent or _before(one.received, other.kept):
            raise Refused("its connections could not be saved at rest")


def check_datagrams(tasks: Collection[int]) -> None:
    """Refused if stopped tasks have yet to read a datagram that came by loopback. CRIU saves none,
    and its sender, mostly one of them, does not send it again. Datagrams from elsewhere may get
    lost at any time anyway.
    """
    if any(one.kind == "udp" and one.local[0].is_loopback and one.unread for one in sockets(tasks)):
        raise Refused("its datagrams could not be saved at rest")


def _before(one: int, other: int) -> bool:
    """Whether one place in a stream is before the other, modulo 2^32 (RFC 9293, 3.4)."""
    return (one - other) & 0xFFFFFFFF >= 1 << 31


def reused(tasks: Iterable[int], owner: Owner) -> frozenset[str]:
    """The TCP sockets, by inode, whose address may be reused soon (SO_REUSEADDR). Refused if we may
    not open them (pidfd_getfd(2)), as nobody could ``wake`` them then.
    """
    found = set()
    for inode, one in _opened(tasks, owner):
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR):
            found.add(inode)
    return frozenset(found)


def wake(tasks: Iterable[int], reused: Collection[str], owner: Owner) -> None:
    """After a save that left the tasks stopped, let their connections carry data again. CRIU leaves
    them in repair mode (TCP_REPAIR) and changes SO_REUSEADDR, which we set back to ``reused``.
    """
    for inode, one in _opened(tasks, owner):
        if one.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
            one.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(inode in reused))


def _opened(tasks: Iterable[int], owner: Owner) -> Iterator[tuple[str, socket.socket]]:
    """The tasks' TCP sockets with their inodes, each open here while the caller looks at it."""
    for pid in tasks:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError), pinned(pid, owner) as task:
            for number, inode in _sockets_of(pid):
                yield from _taken(task, number, inode)


def _taken(task: PinnedTask, number: int, inode: str) -> Iterator[tuple[str, socket.socket]]:
    try:
        ours = task.descriptor(number)
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ESRCH):  # it is closed by now
            return
        raise Refused(f"its connections cannot be opened: {error.strerror}") from error
    with socket.socket(fileno=ours) as one:
        if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
            yield inode, one


def _sockets_of(pid: int) -> Iterator[tuple[int, str]]:
    """The sockets among a task's descriptors, with their inodes."""
    for number, path in descriptors_of(pid):
        if path.startswith("socket:["):
            yield number, path[8:-1]


def _end(text: str) -> End:
    """An address of proc(5): words of four bytes in this machine's order, then the port."""
    address, _, port = text.rpartition(":")
    if len(address) not in (8, 32):
        return ipaddress.IPv4Address(0), 0  # the table's first line
    words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
    return _plain((struct.pack(f"={len(words)}I", *words), int(port, 16)))


def _plain(end: tuple[bytes, int]) -> End:
    """With an address of four or sixteen bytes."""
    found = ipaddress.ip_address(end[0])
    # An IPv4 address inside IPv6 becomes plain: the two ends of a connection may be of either kind.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found, end[1]


def _shown(end: End) -> str:
    address, port = end
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
