"""The word of CRIU's images on the tasks that they would bring back (criu/images/*.proto).

CRIU's own reader is not part of Debian's package, and what is needed here is little: protocol
buffers are numbered fields, each with a wire type (protobuf.dev, "Encoding"). Whatever does not
read as expected is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.machine.ckptroot import files
from slurm_elastic.machine.ckptroot.locks import Lock
from slurm_elastic.machine.ckptroot.site import Refused

Value = int | bytes

_COMMON = 0x54564319  # criu/include/magic.h: IMG_COMMON_MAGIC, before each image's own
_CORE = 0x55053847
_FILES = 0x56303138
_REMAPS = 0x59133954
_LOCKS = 0x54323616
_MOST = 256 << 20
"""Bytes of an image that is read whole: a million open files are less."""
_STREAM = 0x51465506
_TCP, _ESTABLISHED = 6, 1  # IPPROTO_TCP; net/tcp_states.h
_POSIX = 1  # criu/include/file-lock.h: FL_POSIX
_LINKED = 0  # remap-file-path.proto
_WRITING = 0o3  # O_WRONLY, O_RDWR
_APPEND = 0o2000  # O_APPEND, asm-generic/fcntl.h
_DEAD, _STOPPED = 2, 3  # criu/include/pid.h: TASK_DEAD, TASK_STOPPED
_NAMESPACE = re.compile(r"(mountpoints|netns|netdev|ifaddr|route|rule|iptables|nftables|utsns|ipcns"
                        r"|userns|autofs|binfmt-misc|tmpfs)\b")  # fmt: skip
_STREAMS = re.compile(r"tcp-stream-[0-9a-f]+\.img")
_TASK = re.compile(r"core-\d+\.img")
_SYSV = re.compile(r"ipcns-(var|shm|msg|sem)-\d+\.img")


@dataclass(frozen=True)
class Identity:
    """Who a task may be: the job's user and group, any of the job's groups, no capability."""

    uid: int
    gid: int
    groups: frozenset[int]


@dataclass(frozen=True)
class OpenFile:
    """A regular file that a task has open for writing, with its size (bytes) at the dump.

    ``appends``: a task of the job does so at its end (O_APPEND), where others may append, too;
    else each says where.
    """

    path: str
    size: int
    appends: bool = True


@dataclass(frozen=True)
class Stream:
    """One end of a connection of TCP: the place up to which it has ``received``, that from which
    its image has ``kept`` what it sent (modulo 2^32), and the bytes that are ``unsent`` yet.
    Addresses of 4 or 16 bytes, and ports.
    """

    local: tuple[bytes, int]
    far: tuple[bytes, int]
    received: int
    kept: int
    unsent: int


def check(directory: Path, identity: Identity) -> tuple[int, ...]:
    """Refuse images with anything but tasks of ``identity`` in them. The tasks' other groups, the
    same for all: without privileges nobody can change his.
    """
    names = sorted(entry.name for entry in directory.iterdir())
    if not {"inventory.img", "pstree.img"} <= set(names):
        raise Refused("no image of CRIU: inventory or process tree are missing")
    cores = [name for name in names if name.startswith("core-")]
    if not cores:
        raise Refused("the image has no task")
    for name in names:
        if _NAMESPACE.match(name) and not _SYSV.fullmatch(name):
            raise Refused(f"{name}: the image has namespaces or mounts of its own")
    found = {_check_core(directory / name, identity) for name in cores} - {None}
    if len(found) > 1:
        raise Refused("the image has tasks with different groups")
    return next((groups for groups in found if groups is not None), ())


def has_sysv(directory: Path) -> bool:
    """Whether the image has System V IPC, which comes back in a namespace of its own."""
    return any(_SYSV.fullmatch(entry.name) for entry in directory.iterdir())


def has_streams(directory: Path) -> bool:
    """Whether the image has connections of TCP."""
    return any(_STREAMS.fullmatch(entry.name) for entry in directory.iterdir())


def streams(directory: Path) -> list[Stream]:
    """Its connections of TCP (sk-inet.proto, tcp-stream.proto)."""
    found = []
    for entry in _entries(directory / "files.img", _FILES):
        for raw in _messages(entry, 4):
            fields = _fields(raw)
            if (_number(fields, 5), _number(fields, 6)) == (_TCP, _ESTABLISHED):
                found.append(_stream(directory, fields))
    return found


def _stream(directory: Path, inet: dict[int, list[Value]]) -> Stream:
    path = directory / f"tcp-stream-{_number(inet, 2):x}.img"
    stream = _fields(_first(path, _STREAM))
    local, far = (
        (b"".join(struct.pack("=I", word) for word in _numbers(inet, field)), _number(inet, port))
        for field, port in ((11, 7), (12, 8))
    )
    received, sent, waiting, unsent = (_number(stream, number) for number in (2, 4, 3, 12))
    return Stream(local, far, received, (sent - waiting) & 0xFFFFFFFF, unsent)


def stopped(directory: Path) -> frozenset[int]:
    """The numbers, as they have them for themselves, of the tasks that somebody had stopped before
    the dump did (signal(7)).
    """
    cores = (entry for entry in directory.iterdir() if _TASK.fullmatch(entry.name))
    return frozenset(
        int(core.stem.removeprefix("core-"))
        for core in cores
        for entry in _entries(core, _CORE)
        if [_number(_fields(task), 1) for task in _messages(entry, 3)] == [_STOPPED]
    )


def locks(directory: Path) -> dict[int, list[Lock]]:
    """The locks on parts of files (file-lock.proto), by the tasks' numbers for themselves."""
    found: dict[int, list[Lock]] = {}
    path = directory / "filelocks.img"
    for fields in map(_fields, _entries(path, _LOCKS) if path.exists() else ()):
        if _number(fields, 1) & _POSIX:
            lock = Lock(*(_number(fields, number) for number in (4, 2, 5, 6)))
            found.setdefault(_number(fields, 3), []).append(lock)
    return found


def show(directory: Path) -> None:
    """Let a process of the user's read the images, if root has opened the directory for it.

    Nobody else gets there: the directory above is closed to users, whatever the images' own modes
    are. A copy for him would take time and memory that the job may not have.
    """
    directory.parent.chmod(0o750)
    directory.chmod(0o2755)
    for entry in directory.iterdir():
        if entry.name.endswith((".img", ".dmtcp")):
            entry.chmod(0o644)


@contextlib.contextmanager
def handed(directory: Path, uid: int) -> Iterator[int]:
    """A descriptor of the directory, in which a process of the user's may make an image meanwhile:
    one that has the descriptor, as nobody else gets there (``show``). Root's again afterwards.
    """
    directory.parent.chmod(0o750)
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | files.SAFE)
    try:
        os.fchown(place, uid, -1)
        yield place
    finally:
        try:
            os.fchown(place, 0, -1)
            for name in os.listdir(place):
                os.chown(name, 0, -1, dir_fd=place, follow_symlinks=False)
        finally:
            os.close(place)


def links(directory: Path) -> tuple[str, ...]:
    """The links that CRIU made for files whose names were gone (``--link-remap``)."""
    remaps = directory / "remap-fpath.img"
    if not remaps.exists():
        return ()
    made = {
        _number(fields, 2)
        for fields in map(_fields, _entries(remaps, _REMAPS))
        if _number(fields, 3) == _LINKED
    }
    return tuple(path for path, _, _, number in _files(directory) if number in made)


def writing(directory: Path) -> tuple[OpenFile, ...]:
    """The regular files that the tasks have open for writing, each once, with those that some only
    read and others append to: CRIU brings readers back to a file of the same length only. It knows
    no size where a file can be appended to and not read (should_check_size, criu/files-reg.c).
    Deleted files are in the image, and at their path there is nothing, or another file.
    """
    opened = list(_regular(directory))
    appended = {path for path, flags, _ in opened if flags & _WRITING and flags & _APPEND}
    sizes = {
        path: size
        for path, flags, size in opened
        if size >= 0 and (flags & _WRITING or path in appended)
    }
    return tuple(OpenFile(path, sizes[path], path in appended) for path in sorted(sizes))


def _regular(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Path, flags (open(2)) and size of each opening of a regular file; -1 for no size. Files are
    left out that are brought back otherwise than by their path (remap-file-path.proto).
    """
    remaps = directory / "remap-fpath.img"
    entries = _entries(remaps, _REMAPS) if remaps.exists() else iter(())
    elsewhere = {_number(_fields(entry), 1) for entry in entries}
    for path, flags, size, number in _files(directory):
        if number not in elsewhere:
            yield path, flags, size


def _files(directory: Path) -> Iterator[tuple[str, int, int, int]]:
    """Path, flags, size and CRIU's number of each opening of a regular file."""
    for entry in _entries(directory / "files.img", _FILES):
        for raw in _messages(entry, 3):
            reg = _fields(raw)
            name = _one(reg, 6)
            if isinstance(name, bytes):
                path = "/" + name.decode("utf-8", "surrogateescape").removeprefix("/")
                yield path, _number(reg, 2), _number(reg, 8, missing=-1), _number(reg, 1)


def _check_core(path: Path, identity: Identity) -> tuple[int, ...] | None:
    entries = list(_entries(path, _CORE))
    if len(entries) != 1:
        raise Refused(f"{path.name}: {len(entries)} entries, expected one")
    threads = list(_messages(entries[0], 5))
    if not threads and _is_zombie(entries[0]):
        return None
    creds = [raw for thread in threads for raw in _messages(thread, 10)]
    # A field that comes twice is merged or overwritten: what CRIU would take cannot be told.
    if len(threads) != 1 or len(creds) != 1:
        raise Refused(f"{path.name}: not one set of credentials")
    return _check_credentials(path, _fields(creds[0]), identity)


def _check_credentials(
    path: Path, fields: dict[int, list[Value]], identity: Identity
) -> tuple[int, ...]:
    """The task's other groups."""
    for number, what, wanted in (
        *((n, "uid", identity.uid) for n in (1, 3, 5, 7)),
        *((n, "gid", identity.gid) for n in (2, 4, 6, 8)),
    ):
        found = _number(fields, number, missing=-1)
        if found != wanted:
            raise Refused(f"{path.name}: a task with {what} {found}, the job's is {wanted}")
    for number in (9, 10, 11):
        if any(_numbers(fields, number)):
            raise Refused(f"{path.name}: a task with capabilities")
    if _number(fields, 13, missing=-1) != 0:
        raise Refused(f"{path.name}: a task with securebits")
    groups = tuple(sorted(_numbers(fields, 14)))
    strangers = set(groups) - identity.groups - {identity.gid}
    if strangers:
        raise Refused(f"{path.name}: a task with group {min(strangers)}, not one of the job's")
    unknown = set(fields) - set(range(1, 20))
    if unknown:
        raise Refused(f"{path.name}: credentials with an unknown field {min(unknown)}")
    return groups


def _is_zombie(core: bytes) -> bool:
    """Whether the task had ended and only waits for its parent to ask how.

    CRIU notes no credentials for it, and what it brings back ends at once and runs nothing
    (core.proto's task_core_entry; restore_one_zombie in criu/cr-restore.c).
    """
    return [_number(_fields(task), 1) for task in _messages(core, 3)] == [_DEAD]


def _entries(path: Path, magic: int) -> Iterator[bytes]:
    """The messages of an image: two magic numbers, then each with its length in front."""
    data = files.read(path, _MOST)
    if len(data) < 8 or struct.unpack_from("<II", data) != (_COMMON, magic):
        raise Refused(f"{path.name}: not an image of this kind")
    at = 8
    while at < len(data):
        if at + 4 > len(data):
            raise Refused(f"{path.name}: cut off")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4 + size
        if at > len(data):
            raise Refused(f"{path.name}: cut off")
        yield data[at - size : at]


def _first(path: Path, magic: int) -> bytes:
    """The message of an image with one alone, and with raw data behind it."""
    return next(_entries(path, magic), b"")


def _fields(data: bytes) -> dict[int, list[Value]]:
    """The fields of a message by number, in order."""
    fields: dict[int, list[Value]] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = value_at(data, at, key & 7)
        fields.setdefault(key >> 3, []).append(value)
    return fields


def value_at(data: bytes, at: int, kind: int) -> tuple[Value, int]:
    """The value of that wire type, and where the next field begins."""
    match kind:
        case 0:
            return varint(data, at)
        case 1:
            size = 8
        case 2:
            size, at = varint(data, at)
        case 5:
            size = 4
        case _:
            raise Refused(f"an image with a field of unknown kind {kind}")
    if at + size > len(data):
        raise Refused("an image with a field that is cut off")
    return data[at : at + size], at + size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where the next begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Refused("an image with a number that is cut off")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise Refused("an image with a number that has no end")


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    for value in _fields(data).get(number, []):
        if not isinstance(value, bytes):
            raise Refused(f"an image whose field {number} is no message")
        yield value


def _one(fields: dict[int, list[Value]], number: int) -> Value | None:
    values = fields.get(number, [])
    if len(values) > 1:
        raise Refused(f"an image with field {number} twice")
    return values[0] if values else None


def _number(fields: dict[int, list[Value]], number: int, missing: int = 0) -> int:
    value = _one(fields, number)
    if isinstance(value, bytes):
        raise Refused(f"an image whose field {number} is no number")
    return missing if value is None else value & 0xFFFFFFFFFFFFFFFF


def _numbers(fields: dict[int, list[Value]], number: int) -> list[int]:
    """A repeated number, packed or not."""
    found: list[int] = []
    for value in fields.get(number, []):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = varint(value, at)
            found.append(one)
    return found
