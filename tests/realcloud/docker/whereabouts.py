"""Where a secret is: in the files of a host, in an image, in texts."""

from __future__ import annotations

import base64
import contextlib
import io
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from .world import Host

PART = 24
"""Bytes of its beginning by which a secret is known again."""
CHUNK = 1 << 20


def forms(secret: bytes) -> list[bytes]:
    """The ways in which it could be written down: as it is, in hex, in base64, wherever in a longer
    text of base64 it begins.
    """
    part = secret[:PART]
    coded = [base64.b64encode(bytes(shift) + part)[4 : PART // 3 * 4] for shift in range(3)]
    return [part, part.hex().encode(), part.hex().upper().encode(), *coded]


def is_in(secret: bytes, text: bytes) -> bool:
    """Whether a text has it in one of its forms."""
    return any(form in text for form in forms(secret))


def files_with(secret: bytes, host: Host) -> set[str]:
    """The files of a host, running or not, that have it; what is mounted is left out."""
    found, stream = set(), _Stream(host.container.export())
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            if file is not None and _which([secret], file):
                found.add(entry.name)
    while stream.read(CHUNK):  # to the end, so that the engine's connection is free again
        pass
    return found


def found_in_image(secrets: Collection[bytes], image: Any) -> set[bytes]:
    """Which of them are in a layer of an image, or in its description."""
    return _which(secrets, _Stream(image.save()))


def text_of(directory: Path) -> bytes:
    """All that is in the files of a directory; some of them may go meanwhile."""
    texts = []
    for path in sorted(directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            texts += [path.read_bytes()] if path.is_file() else []
    return b"\n".join(texts)


def _which(secrets: Collection[bytes], file: Any) -> set[bytes]:
    """Looks across the borders of the parts that are read, too."""
    found: set[bytes] = set()
    tail = b""
    while part := file.read(CHUNK):
        window = tail + part
        found |= {secret for secret in secrets if is_in(secret, window)}
        tail = window[-4 * PART :]
    return found


class _Stream(io.RawIOBase):
    """A file to read from, whose content comes in parts."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._rest = iter(parts), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """So much exactly, less only at the end."""
        got, have = [self._rest], len(self._rest)
        while (size < 0 or have < size) and (part := next(self._parts, b"")):
            got.append(part)
            have += len(part)
        whole = b"".join(got)
        cut = len(whole) if size < 0 else size
        self._rest = whole[cut:]
        return whole[:cut]
