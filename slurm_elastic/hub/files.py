"""Files that root writes beside those of others: whole or not at all, and through no link."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, text: bytes, mode: int) -> None:
    """Put it there in one step, with that mode."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
