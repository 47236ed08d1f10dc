"""Asks an NFS 4 server for a directory, as a client does before it mounts it. Nothing is mounted.

NFS 4.0 (RFC 7530) over ONC RPC (RFC 5531): one compound of PUTROOTFH, LOOKUPs and GETATTR needs no
state of a client on the server.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from msgspec import Struct

NFS_PORT = 2049
_PROGRAM, _VERSION, _COMPOUND = 100003, 4, 1
_AUTH_SYS, _CALL, _RPC_VERSION = 1, 0, 2
_PUTROOTFH, _LOOKUP, _GETATTR = 24, 15, 9
_OWNER = (0, 1 << (36 - 32))  # the attribute owner (36), as a bitmap of two words
_LAST_FRAGMENT = 1 << 31
_MAX_BYTES = 1 << 16
_RESERVED_PORTS = range(1023, 899, -1)
_ERRORS = {
    1: "no access for this host", 2: "no such directory for this host",
    13: "no access for this host", 20: "no directory", 10016: "it wants Kerberos",
}  # fmt: skip
_NO_MINOR_0, _BUSY = 10021, 10008


class NfsDirectory(Struct, frozen=True, kw_only=True):
    """A directory that the server has for this host. ``owner``: as the server writes users, ``0``
    or ``root@example.org``; empty if the server speaks no NFS 4.0, so nothing is known.
    """

    owner: str


class NfsError(Exception):
    """The server refuses the directory, or does not speak NFS 4."""


def ask(host: str, directory: str, timeout: float) -> NfsDirectory:
    """Ask the host for the directory. OSError if the host does not answer, NfsError if
    it refuses.
    """
    with _connect(host.strip("[]"), timeout) as connection:
        connection.sendall(_request(directory))
        return _directory(_receive(connection))


def _connect(host: str, timeout: float) -> socket.socket:
    """Connect from a port of root's if possible: servers refuse others by default (exports(5))."""
    for port in _RESERVED_PORTS if os.geteuid() == 0 else ():
        try:
            return socket.create_connection((host, NFS_PORT), timeout, ("", port))
        except PermissionError:  # a container's root may not
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return socket.create_connection((host, NFS_PORT), timeout)


def _request(directory: str) -> bytes:
    names = [name.encode() for name in directory.split("/") if name]
    steps = [struct.pack(">I", _PUTROOTFH)]
    steps += [struct.pack(">I", _LOOKUP) + _opaque(name) for name in names]
    steps.append(struct.pack(">IIII", _GETATTR, len(_OWNER), *_OWNER))
    credential = struct.pack(">I", 0) + _opaque(b"doctor") + struct.pack(">III", 0, 0, 0)
    body = b"".join(
        (
            struct.pack(">IIIIII", 1, _CALL, _RPC_VERSION, _PROGRAM, _VERSION, _COMPOUND),
            struct.pack(">I", _AUTH_SYS) + _opaque(credential),
            struct.pack(">II", 0, 0),
            _opaque(b"") + struct.pack(">II", 0, len(steps)),
            *steps,
        )
    )
    return struct.pack(">I", _LAST_FRAGMENT | len(body)) + body


def _receive(connection: socket.socket) -> bytes:
    """Return one record, which may come in any number of fragments."""
    body = b""
    while len(body) < _MAX_BYTES:
        (mark,) = struct.unpack(">I", _exactly(connection, 4))
        body += _exactly(connection, min(mark & ~_LAST_FRAGMENT, _MAX_BYTES))
        if mark & _LAST_FRAGMENT:
            break
    return body


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        block = connection.recv(count - len(data))
        if not block:
            raise ConnectionError("the connection was closed")
        data += block
    return data


class _Reader:
    """Reads values in XDR (RFC 4506)."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self) -> int:
        (value,) = struct.unpack_from(">I", self._data, self._at)
        self._at += 4
        return int(value)

    def opaque(self) -> bytes:
        length = self.number()
        data = self._data[self._at : self._at + length]
        self._at += (length + 3) & ~3
        return data


def _directory(reply: bytes) -> NfsDirectory:
    try:
        return _read(_Reader(reply))
    except struct.error as error:
        raise NfsError("its answer is not NFS") from error


def _read(reader: _Reader) -> NfsDirectory:
    reader.number()  # the request's number
    if reader.number() != 1 or reader.number() != 0:
        raise NfsError("it refuses the request of root")
    reader.number()
    reader.opaque()
    if reader.number() != 0:
        raise NfsError("it speaks no NFS 4")
    status = reader.number()
    reader.opaque()
    if status in (_NO_MINOR_0, _BUSY):
        return NfsDirectory(owner="")
    if status:
        raise NfsError(_ERRORS.get(status, f"error {status} of NFS 4"))
    for _ in range(reader.number() - 1):
        reader.number()
        reader.number()
    reader.number()
    reader.number()
    for _ in range(reader.number()):
        reader.number()
    return NfsDirectory(owner=_Reader(reader.opaque()).opaque().decode(errors="replace"))


def _opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)
