"""The manifest of an image: its job, the size and digest of each file, and root's seal.

The seal is an HMAC-SHA256 with a key that only root on the nodes has. On a local disk root's
ownership of the directories would be enough. A shared directory may be mounted by a host on which
another person is root.
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
from .identity import JobKey
from .site import RequestRefused, WrongImage

NAME = "manifest.json"
_BLOCK_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 16 << 20
"""Head and nodes read no longer ones (``checkpointers/node_helper_client.py`` has the same number).
"""
_MAX_FILES = 100_000
"""Of an image: CRIU makes a handful of files for each task."""


UNLIMITED = sys.maxsize
"""Bytes of an image without a quota."""


@dataclass(frozen=True)
class ImageManifest:
    """The contents of manifest.json.

    - ``files``: name to (bytes, SHA-256).
    - ``writing``: path to size of the files that the job had open for writing.
    - ``locked``: path to state of the files that it kept locked (``inventory.State``).
    - ``pid``: the first process's number in its namespace, 0 if there is none.
    - ``closed``: far ends of the TCP connections that the save closed in the image; None if it had
      not to close any.
    - ``clocks``: the job's own clocks (ns, ``clock.Clocks``); None if it had none.
    - ``bound``: CPUs of threads bound to fewer than all (``cpu_binding.Bound``).
    - ``script``: the digest of the job's batch script, which with its number, user and cluster
      names the job (``identity.py``).
    - ``submitted``: the SubmitTime of the run (Unix time), by which the head knows the run.
    - ``taken``: Unix time of the save. ``seconds``: its duration.
    - ``processor``: digest of the node's kind of processor, "" if unknown.
    - ``line``: where the copies of the outputs are (``lines.py``); ``parent``: the image from which
      its run had continued, 0 for none; ``worked``: seconds of work that the image saves.
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
    locked: dict[str, tuple[int, int]] = field(default_factory=dict)
    closed: list[str] | None = None
    clocks: dict[str, int] | None = None
    bound: dict[str, list[int]] = field(default_factory=dict)
    script: str = ""
    submitted: float = 0.0
    line: int = 0
    parent: int = 0
    worked: float = 0.0
    processor: str = ""

    @property
    def key(self) -> JobKey:
        """The identity of the job."""
        return JobKey(self.cluster, self.job, self.uid, self.gid, self.script)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


def seal(manifest: ImageManifest, key: bytes) -> bytes:
    """Return the manifest as text, with its seal. RequestRefused if it is too long to read."""
    values = asdict(manifest)
    for name, empty in (("closed", None), ("clocks", None), ("bound", {})):
        if values[name] == empty:  # nodes with an older program do not know the field
            del values[name]
    content = json.dumps({**values, "seal": _seal(values, key)}, indent=1).encode() + b"\n"
    if len(content) > MAX_MANIFEST_BYTES:
        raise RequestRefused(f"its image has too many files: {len(manifest.files)}")
    return content


def unseal(content: bytes, key: bytes) -> ImageManifest:
    """Return the manifest in ``content``. WrongImage unless it was sealed with ``key``."""
    try:
        values: dict[str, Any] = safe.json_of(content)
        found_seal = str(values.pop("seal"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise WrongImage("the manifest cannot be read") from error
    # Before any value is used: a manifest without our seal may say anything.
    if not hmac.compare_digest(found_seal.encode(), _seal(values, key).encode()):
        raise WrongImage("the manifest was not sealed by a node of this cluster")
    try:
        files = {name: (int(size), str(sha)) for name, (size, sha) in values.pop("files").items()}
        return ImageManifest(**values, files=files)
    except (TypeError, ValueError, AttributeError) as error:
        raise WrongImage("the manifest is of another version") from error


def _seal(values: dict[str, Any], key: bytes) -> str:
    # One form for the same values, or the seal would depend on the order of the fields in the file.
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, b"slurm-elastic checkpoint 1\n" + canonical, hashlib.sha256).hexdigest()


def read(directory: Path, key: bytes) -> ImageManifest:
    """Return the manifest of an image's directory."""
    path = directory / NAME
    try:
        content = safe.read(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise RequestRefused(f"{path}: {error.strerror}") from error
    return unseal(content, key)


def digests(directory: Path, max_bytes: int = UNLIMITED) -> dict[str, tuple[int, str]]:
    """Return size and digest of all files, which are on disk afterwards.

    RequestRefused for links and other special files, and for more than ``max_bytes`` in total.
    """
    digest_by_name: dict[str, tuple[int, str]] = {}
    for name in _names(directory):
        digest_by_name[name] = _digest(directory / name, max_bytes)
        max_bytes -= digest_by_name[name][0]
    sync(directory)
    return digest_by_name


def compare(directory: Path, manifest: ImageManifest) -> None:
    """WrongImage unless the directory contains exactly the manifest's files, unchanged."""
    names = set(_names(directory))
    if names != set(manifest.files):
        name_in_doubt = min(names ^ set(manifest.files))
        raise WrongImage(f"{directory}: {name_in_doubt}: not in the manifest, or gone")
    for name, (size, sha) in manifest.files.items():
        # The size first: it is cheap, and a longer file must not be read to its end.
        if (directory / name).lstat().st_size != size:
            raise WrongImage(f"{directory}: {name}: not {size} bytes long")
        if _digest(directory / name, size)[1] != sha:
            raise WrongImage(f"{directory}: {name}: changed since the checkpoint")


def _names(directory: Path) -> list[str]:
    with safe.directory(directory) as descriptor:
        return [name for name in safe.names(descriptor, _MAX_FILES) if name != NAME]


def sync(path: Path) -> None:
    """Write a directory's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path, max_bytes: int) -> tuple[int, str]:
    try:
        descriptor = safe.opened(path, max_bytes=max_bytes)
    except OSError as error:
        raise RequestRefused(f"{path}: {error.strerror}") from error
    sha, size = hashlib.sha256(), 0
    with open(descriptor, "rb", buffering=0) as file:
        # The manifest is written after this and says that the image is complete.
        os.fsync(descriptor)
        while block := file.read(_BLOCK_BYTES):
            sha.update(block)
            size += len(block)
            if size > max_bytes:
                raise RequestRefused(f"{path}: it grows")
    return size, sha.hexdigest()
