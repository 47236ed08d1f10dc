"""Caches botocore's data about Amazon's services for the whole process.

Botocore reads its files again for each session (3 MB for EC2, 1 MB for all endpoints). At its
import moto opens a session per service, which was a third of the emulated EC2's start time. Each of
our clients opens a session, too, which was half of the time of a test with several clients.
"""

from __future__ import annotations

import os
from typing import Any

from botocore.loaders import JSONFileLoader, Loader

_SHIPPED = os.path.join(Loader.BUILTIN_DATA_PATH, "")
_read = JSONFileLoader.load_file
_cache: dict[str, Any] = {}


def cache_shipped_files() -> None:
    """Cache the files in botocore's package from now on, because they never change. Other files are
    read each time.
    """
    JSONFileLoader.load_file = _load_cached  # type: ignore[assignment, method-assign]


def _load_cached(loader: JSONFileLoader, path: str) -> Any:  # noqa: ANN401 - what a JSON file has
    if not path.startswith(_SHIPPED):
        return _read(loader, path)
    if path not in _cache:
        _cache[path] = _read(loader, path)
    return _cache[path]
