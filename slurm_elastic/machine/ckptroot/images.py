"""Read from CRIU's images which tasks they would restore (criu/images/*.proto)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import files
from .locks import Lock
from .protobuf import Message
from .rights import RightsUser
from .site import RequestRefused, WrongImage

_COMMON = 0x54564319  # criu/include/magic.h: IMG_COMMON_MAGIC, before each image's own
_CORE = 0x55053847
_FILES = 0x56303138
_REMAPS = 0x59133954
_LOCKS = 0x54323616
_MAX_BYTES = 256 << 20
"""Of an image file that we read whole. A million open files take less."""
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
class OpenFile:
    """A regular file that a task has open for writing, with its size (bytes) at the dump.

    ``appends``: the task only appends to it (O_APPEND), so other jobs may append, too. Otherwise
    tasks write at their own offsets.
    """

    path: str
    size: int
    appends: bool = True


@dataclass(frozen=True)
class Stream:
    """One end of a TCP connection.

    ``received``: sequence number up to which it has received data. ``kept``: sequence number from
    which the image has the data that it sent (both modulo 2^32). ``unsent``: bytes of that data
    that were not sent yet. ``local`` and ``remote``: an address of 4 or 16 bytes, and a port.
    """

    local: tuple[bytes, int]
    remote: tuple[bytes, int]
    received: int
    kept: int
    unsent: int


def check(directory: Path, user: RightsUser) -> tuple[int, ...]:
    """Refuse an image that contains anything except tasks of ``user``.

    Return the tasks' supplementary groups. All tasks have the same groups, because changing them
    needs privileges.
    """
    names = sorted(entry.name for entry in directory.iterdir())
    if not {"inventory.img", "pstree.img"} <= set(names):
        raise WrongImage("no image of CRIU: inventory or process tree are missing")
    cores = [name for name in names if name.startswith("core-")]
    if not cores:
        raise WrongImage("the image has no task")
    for name in names:
        if _NAMESPACE.match(name) and not _SYSV.fullmatch(name):
            raise WrongImage(f"{name}: the image has namespaces or mounts of its own")
    group_lists = {_check_core(directory / name, user) for name in cores} - {None}
    if len(group_lists) > 1:
        raise WrongImage("the image has tasks with different groups")
    return next((groups for groups in group_lists if groups is not None), ())


def has_sysv(directory: Path) -> bool:
    """Return whether the image has System V IPC. A restore makes a namespace for it."""
    return any(_SYSV.fullmatch(entry.name) for entry in directory.iterdir())


def has_streams(directory: Path) -> bool:
    """Return whether the image has TCP connections."""
    return any(_STREAMS.fullmatch(entry.name) for entry in directory.iterdir())


def streams(directory: Path) -> list[Stream]:
    """Return the image's TCP connections (sk-inet.proto)."""
    return [
        _stream(directory, inet)
        for entry in _entries(directory / "files.img", _FILES)
        for inet in entry.messages(4)
        if (inet.number(5), inet.number(6)) == (_TCP, _ESTABLISHED)
    ]


def _stream(directory: Path, inet: Message) -> Stream:
    """Return one connection. Its state is the first message of its image, followed by raw data
    (tcp-stream.proto).
    """
    path = directory / f"tcp-stream-{inet.number(2):x}.img"
    stream = next(_entries(path, _STREAM), Message(b""))
    local, remote = (
        (b"".join(struct.pack("=I", word) for word in inet.numbers(field)), inet.number(port))
        for field, port in ((11, 7), (12, 8))
    )
    received, sent, waiting, unsent = (stream.number(field) for field in (2, 4, 3, 12))
    return Stream(local, remote, received, (sent - waiting) & 0xFFFFFFFF, unsent)


def stopped(directory: Path) -> frozenset[int]:
    """Return the tasks that were already stopped before the dump (signal(7)), by their numbers in
    the job's namespace.
    """
    cores = (entry for entry in directory.iterdir() if _TASK.fullmatch(entry.name))
    return frozenset(
        int(core.stem.removeprefix("core-"))
        for core in cores
        for entry in _entries(core, _CORE)
        if [task.number(1) for task in entry.messages(3)] == [_STOPPED]
    )


def locks(directory: Path) -> dict[int, list[Lock]]:
    """Return the locks on parts of files (file-lock.proto), by the tasks' numbers in the job's
    namespace.
    """
    locks_by_task: dict[int, list[Lock]] = {}
    for entry in _entries_if_any(directory / "filelocks.img", _LOCKS):
        if entry.number(1) & _POSIX:
            lock = Lock(*(entry.number(field) for field in (4, 2, 5, 6)))
            locks_by_task.setdefault(entry.number(3), []).append(lock)
    return locks_by_task


def links(directory: Path) -> tuple[str, ...]:
    """Return the links that CRIU made for files whose names were gone (``--link-remap``)."""
    remaps = _entries_if_any(directory / "remap-fpath.img", _REMAPS)
    numbers = {entry.number(2) for entry in remaps if entry.number(3) == _LINKED}
    opened = _files(directory) if numbers else ()
    return tuple(path for path, _, _, number in opened if number in numbers)


def writing(directory: Path) -> tuple[OpenFile, ...]:
    """Return the regular files that the tasks have open for writing, each once.

    This includes files that some tasks only read and others append to. Deleted files are left out:
    the image contains them, and their path leads to no file, or to another one.
    """
    remaps = _entries_if_any(directory / "remap-fpath.img", _REMAPS)
    elsewhere = {entry.number(1) for entry in remaps}  # not restored by their path
    opened = [file for file in _files(directory) if file[3] not in elsewhere]
    appended = {path for path, flags, *_ in opened if flags & _WRITING and flags & _APPEND}
    sizes = {
        path: size
        for path, flags, size, _ in opened
        # CRIU records no size (-1) if a file is open for appending but not for reading
        # (should_check_size, criu/files-reg.c). It restores a reader only if the size is the same.
        if size >= 0 and (flags & _WRITING or path in appended)
    }
    return tuple(OpenFile(path, sizes[path], path in appended) for path in sorted(sizes))


def _files(directory: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield path, flags (open(2)), size (-1: none) and CRIU's number of each opened regular
    file.
    """
    for entry in _entries(directory / "files.img", _FILES):
        for reg in entry.messages(3):
            name = reg.one(6)
            if isinstance(name, bytes):
                path = "/" + name.decode("utf-8", "surrogateescape").removeprefix("/")
                yield path, reg.number(2), reg.number(8, missing=-1), reg.number(1)


def _check_core(path: Path, user: RightsUser) -> tuple[int, ...] | None:
    entries = list(_entries(path, _CORE))
    if len(entries) != 1:
        raise WrongImage(f"{path.name}: {len(entries)} entries, expected one")
    threads = entries[0].messages(5)
    # A zombie: it waits for its parent to read its status. CRIU saves no credentials of it, and
    # restores it as a process that exits at once and runs nothing (core.proto's task_core_entry;
    # restore_one_zombie in criu/cr-restore.c).
    if not threads and [task.number(1) for task in entries[0].messages(3)] == [_DEAD]:
        return None
    creds = [credentials for thread in threads for credentials in thread.messages(10)]
    # If a field comes twice, we do not know whether CRIU takes the first, the last, or merges them.
    if len(threads) != 1 or len(creds) != 1:
        raise WrongImage(f"{path.name}: not one set of credentials")
    return _check_credentials(path, creds[0], user)


def _check_credentials(path: Path, creds: Message, user: RightsUser) -> tuple[int, ...]:
    """Return the task's supplementary groups. WrongImage if a credential is not the user's."""
    for field, kind, expected in (
        *((n, "uid", user.uid) for n in (1, 3, 5, 7)),
        *((n, "gid", user.gid) for n in (2, 4, 6, 8)),
    ):
        actual = creds.number(field, missing=-1)
        if actual != expected:
            raise WrongImage(f"{path.name}: a task with {kind} {actual}, the job's is {expected}")
    if any(any(creds.numbers(field)) for field in (9, 10, 11)):
        raise WrongImage(f"{path.name}: a task with capabilities")
    if creds.number(13, missing=-1) != 0:
        raise WrongImage(f"{path.name}: a task with securebits")
    groups = tuple(sorted(creds.numbers(14)))
    foreign_groups = set(groups) - {*user.groups, user.gid}
    if foreign_groups:
        # Not verified as wrong: another node may know the group.
        raise RequestRefused(
            f"{path.name}: a task with group {min(foreign_groups)}, not one of the job's"
        )
    unknown_fields = set(creds.fields) - set(range(1, 20))
    if unknown_fields:
        raise WrongImage(f"{path.name}: credentials with an unknown field {min(unknown_fields)}")
    return groups


def _entries_if_any(path: Path, magic: int) -> Iterator[Message]:
    return _entries(path, magic) if path.exists() else iter(())


def _entries(path: Path, magic: int) -> Iterator[Message]:
    """Yield the messages of an image: two magic numbers, then each message after its length."""
    data = files.read(path, _MAX_BYTES)
    if len(data) < 8 or struct.unpack_from("<II", data) != (_COMMON, magic):
        raise WrongImage(f"{path.name}: not an image of this kind")
    offset = 8
    while offset < len(data):
        if offset + 4 > len(data):
            raise WrongImage(f"{path.name}: cut off")
        (size,) = struct.unpack_from("<I", data, offset)
        offset += 4 + size
        if offset > len(data):
            raise WrongImage(f"{path.name}: cut off")
        yield Message(data[offset - size : offset])
