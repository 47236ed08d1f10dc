"""The manifest of an image: what it is of, each file's size and digest, and root's seal.

The seal is an HMAC-SHA256 with a key that only root on the nodes has. On a local disk it would do
that the directories are root's; a shared one may be mounted by a host where somebody else is root.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import files as safe
from .site import Refused

NAME = "manifest.json"
_BLOCK = 1 << 20
_MOST = 16 << 20
_FILES = 100_000
"""Most bytes of a manifest, and most files of an image: CRIU makes a handful for each task."""
MOST = sys.maxsize
"""Most bytes of an image that no quota bounds."""


@dataclass(frozen=True)
class Manifest:
    """``files``: name to (bytes, SHA-256). ``writing``: path to size of what the job had open for
    writing; ``locked``: path to state of what it kept locked (``inventory.State``). ``pid`` is the
    first process's number in its namespace, 0 if there is none. ``closed`` are the far ends of the
    TCP connections that the save closed in the image; None if it was not to close any. ``clocks``:
    the job's own clocks (ns, ``clock.Clocks``); None if it had none. ``bound``: the CPUs of threads
    that are bound to fewer than all (``cpu_binding.Bound``).
    """

    cluster: str
    job: int
    label: str
    attempt: int
    number: int
    method: str
    uid: int
    gid: int
    node: str
    taken: float
    seconds: float
    pid: int
    versions: dict[str, str]
    files: dict[str, tuple[int, str]]
    writing: dict[str, int]
    locked: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    closed: list[str] | None = None
    clocks: dict[str, int] | None = None
    bound: dict[str, list[int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


def seal(manifest: Manifest, key: bytes) -> bytes:
    """The manifest as text, with its seal."""
    values = asdict(manifest)
    for name, nothing in (("closed", None), ("clocks", None), ("bound", {})):
        if values[name] == nothing:  # so that nodes with an older program can read it, too
            del values[name]
    return json.dumps({**values, "seal": _seal(values, key)}, indent=1).encode() + b"\n"


def unseal(content: bytes, key: bytes) -> Manifest:
    """The manifest in ``content``; Refused unless it was sealed with ``key``."""
    try:
        values: dict[str, Any] = safe.json_of(content)
        found = str(values.pop("seal"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Refused("the manifest cannot be read") from error
    if not hmac.compare_digest(found.encode(), _seal(values, key).encode()):
        raise Refused("the manifest was not sealed by a node of this cluster")
    try:
        files = {name: (int(size), str(sha)) for name, (size, sha) in values.pop("files").items()}
        return Manifest(**values, files=files)
    except (TypeError, ValueError, AttributeError) as error:
        raise Refused("the manifest is of another version") from error


def _seal(values: dict[str, Any], key: bytes) -> str:
    plain = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, b"slurm-elastic checkpoint 1\n" + plain, hashlib.sha256).hexdigest()


def read(directory: Path, key: bytes) -> Manifest:
    """The manifest of an image's directory."""
    path = directory / NAME
    try:
        content = safe.read(path, _MOST)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    return unseal(content, key)


def digests(directory: Path, most: int = MOST) -> dict[str, tuple[int, str]]:
    """Size and digest of all files, which are on disk afterwards. Refused for links and the like,
    and for more than ``most`` bytes altogether.
    """
    found: dict[str, tuple[int, str]] = {}
    for name in _names(directory):
        found[name] = _digest(directory / name, most)
        most -= found[name][0]
    sync(directory)
    return found


def compare(directory: Path, manifest: Manifest) -> None:
    """Refused unless the directory holds exactly the manifest's files, unchanged."""
    names = set(_names(directory))
    if names != set(manifest.files):
        odd = min(names ^ set(manifest.files))
        raise Refused(f"{directory}: {odd}: not in the manifest, or gone")
    for name, (size, sha) in manifest.files.items():
        if (directory / name).lstat().st_size != size:
            raise Refused(f"{directory}: {name}: not {size} bytes long")
        if _digest(directory / name, size)[1] != sha:
            raise Refused(f"{directory}: {name}: changed since the checkpoint")


def _names(directory: Path) -> list[str]:
    with safe.directory(directory) as descriptor:
        return [name for name in safe.names(descriptor, _FILES) if name != NAME]


def sync(path: Path) -> None:
    """Have a directory's entries on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path, most: int) -> tuple[int, str]:
    try:
        descriptor = safe.opened(path, most=most)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    sha, size = hashlib.sha256(), 0
    with open(descriptor, "rb", buffering=0) as file:
        os.fsync(descriptor)
        while block := file.read(_BLOCK):
            sha.update(block)
            size += len(block)
            if size > most:
                raise Refused(f"{path}: it grows")
    return size, sha.hexdigest()
