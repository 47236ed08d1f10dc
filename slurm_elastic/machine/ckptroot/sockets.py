"""Find a job's network sockets (proc(5), net/tcp) that can exist again on another node.

A connection between two of the job's own processes by the loopback address can exist again, because
CRIU restores both ends. But CRIU saves one end after the other, and in between the kernel may carry
data. So we check afterwards that both ends agree (``check_streams``).
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
from .pinned_task import PinnedTask, TaskOwner, pinned
from .proc import descriptors_of
from .site import RequestRefused

_TABLES = ("tcp", "tcp6", "udp", "udp6")
_ESTABLISHED = 1  # include/net/tcp_states.h
TCP_REPAIR = 19  # tcp(7) has it not: include/uapi/linux/tcp.h
NONLOCAL = Path("/proc/sys/net/ipv4/ip_nonlocal_bind")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
End = tuple[Address, int]
"""An address and a port."""


@dataclass(frozen=True)
class Socket:
    """One end of a connection. The port of ``remote`` is 0 if there is no other end.

    ``state``: as in include/net/tcp_states.h. ``unread``: bytes of memory of data that the program
    has not read yet.
    """

    kind: str
    local: End
    remote: End
    state: int
    unread: int = 0


def sockets(tasks: Collection[int]) -> list[Socket]:
    """Return the sockets that the tasks have open, from the tables of their common network
    namespace.
    """
    inodes = {inode for pid in tasks for _, inode in _sockets_of(pid)}
    return (
        [found_socket for table in _TABLES for found_socket in _rows(tasks, table, inodes)]
        if inodes
        else []
    )


def _rows(tasks: Iterable[int], table: str, inodes: Collection[str]) -> list[Socket]:
    # All tasks are in one network namespace, so the first table that can be read has the sockets of
    # all.
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
                if len(row) > 9 and row[9] in inodes
            ]
    return []


def connections(tasks: Collection[int]) -> list[str]:
    """Return the far ends of the tasks' TCP connections, as 10.0.0.2:80 or [::1]:80."""
    return sorted({_shown(end.remote) for end in _connected(sockets(tasks))})


def _connected(candidates: Iterable[Socket]) -> list[Socket]:
    return [
        candidate for candidate in candidates if candidate.kind == "tcp" and candidate.remote[1]
    ]


def stays_here(tasks: Collection[int]) -> str:
    """Return why a socket cannot exist on another node: it is bound to an address of this node
    alone. "" if all can.

    Connections are checked elsewhere.
    """
    with contextlib.suppress(OSError):
        # With this setting a node lets programs bind to addresses that it does not have (ip(7)).
        if NONLOCAL.read_text(encoding="ascii").strip() == "1":
            return ""
    for bound_socket in sockets(tasks):
        address = bound_socket.local[0]
        # A connected TCP socket has its own check (`connections`).
        has_no_peer = bound_socket.kind == "udp" or not bound_socket.remote[1]
        if has_no_peer and not (address.is_unspecified or address.is_loopback):
            return (
                f"it has a socket bound to {_shown(bound_socket.local)}, which only its node can be"
            )
    return ""


def are_its_own(tasks: Collection[int]) -> bool:
    """Return whether the tasks have connections, all of them between each other and by loopback."""
    connected = _connected(sockets(tasks))
    ends = {(connection.local, connection.remote) for connection in connected}
    return bool(connected) and all(
        connection.state == _ESTABLISHED
        and connection.local[0].is_loopback
        and connection.remote[0].is_loopback
        and (connection.remote, connection.local) in ends
        for connection in connected
    )


def check_streams(streams: Collection[Stream]) -> None:
    """RequestRefused if data was in flight: neither the sending end, which no longer has it, nor
    the receiving end has saved it.

    RequestRefused also if an end lacks its peer, or still has unsent data.
    """
    ends = {(_end_of(stream.local), _end_of(stream.remote)): stream for stream in streams}
    for (local, remote), stream in ends.items():
        other = ends.get((remote, local))
        # At a restore the kernel would send unsent data before the other end exists.
        if other is None or stream.unsent or _is_before(stream.received, other.kept):
            raise RequestRefused("its connections could not be saved at rest")


def check_datagrams(tasks: Collection[int]) -> None:
    """RequestRefused if stopped tasks have not read a datagram that arrived by loopback.

    CRIU saves no datagrams, and the sender, usually a task of the job, does not repeat it.
    Datagrams from other hosts may get lost at any time anyway.
    """
    if any(
        candidate.kind == "udp" and candidate.local[0].is_loopback and candidate.unread
        for candidate in sockets(tasks)
    ):
        raise RequestRefused("its datagrams could not be saved at rest")


def _is_before(sequence: int, other: int) -> bool:
    """Return whether one sequence number is before the other, modulo 2^32 (RFC 9293, 3.4)."""
    return (sequence - other) & 0xFFFFFFFF >= 1 << 31


def reused(tasks: Iterable[int], owner: TaskOwner) -> frozenset[str]:
    """Return the inodes of the TCP sockets with SO_REUSEADDR.

    RequestRefused if we may not open them (pidfd_getfd(2)), because then ``wake`` would fail.
    """
    inodes = set()
    for inode, copy in _opened(tasks, owner):
        if copy.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR):
            inodes.add(inode)
    return frozenset(inodes)


def wake(tasks: Iterable[int], reused: Collection[str], owner: TaskOwner) -> None:
    """After a save that left the tasks stopped: let their connections carry data again.

    CRIU leaves them in repair mode (TCP_REPAIR) and changes SO_REUSEADDR, which we reset according
    to ``reused``.
    """
    for inode, copy in _opened(tasks, owner):
        # Only sockets that CRIU has put into repair mode; for others SO_REUSEADDR is as the program
        # set it.
        if copy.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
            copy.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(inode in reused))


def _opened(tasks: Iterable[int], owner: TaskOwner) -> Iterator[tuple[str, socket.socket]]:
    """Yield the tasks' TCP sockets with their inodes. Each is a copy, closed after its step."""
    for pid in tasks:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError), pinned(pid, owner) as task:
            for number, inode in _sockets_of(pid):
                yield from _copied(task, number, inode)


def _copied(task: PinnedTask, number: int, inode: str) -> Iterator[tuple[str, socket.socket]]:
    try:
        descriptor = task.descriptor(number)
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ESRCH):  # closed since we listed it
            return
        raise RequestRefused(f"its connections cannot be opened: {error.strerror}") from error
    with socket.socket(fileno=descriptor) as copy:
        if copy.type == socket.SOCK_STREAM and copy.family in (socket.AF_INET, socket.AF_INET6):
            yield inode, copy


def _sockets_of(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the sockets among a task's descriptors, with their inodes."""
    for number, path in descriptors_of(pid):
        if path.startswith("socket:["):
            yield number, path[8:-1]


def _end(text: str) -> End:
    """Return an address of proc(5): words of four bytes in this machine's byte order, then the
    port.
    """
    address, _, port = text.rpartition(":")
    if len(address) not in (8, 32):
        return ipaddress.IPv4Address(0), 0  # the table's header
    # The file has each word as a number of this machine. Packing it in native order gives the bytes
    # of the network.
    integers = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
    return _end_of((struct.pack(f"={len(integers)}I", *integers), int(port, 16)))


def _end_of(end: tuple[bytes, int]) -> End:
    """Return an End from an address of four or sixteen bytes, and a port."""
    address = ipaddress.ip_address(end[0])
    # Convert an IPv4 address inside IPv6: the two ends of a connection may be of either kind.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address, end[1]


def _shown(end: End) -> str:
    address, port = end
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
