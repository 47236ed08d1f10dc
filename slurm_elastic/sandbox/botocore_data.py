"""Botocore's data about Amazon's services, read once a process. Botocore reads its files for each
session anew (EC2's has 3 MB, and that of all endpoints 1 MB). moto opens a session for each service
when it is imported, which was a third of the emulated EC2's start; every client of ours has a
session of its own, which was half of the time of a test that opens some.
"""

from __future__ import annotations

import os
from typing import Any

from botocore.loaders import JSONFileLoader, Loader

_SHIPPED = os.path.join(Loader.BUILTIN_DATA_PATH, "")
_read = JSONFileLoader.load_file
_known: dict[str, Any] = {}


def keep() -> None:
    """Keep the files that botocore ships from now on: nobody changes them. Others are read anew."""
    JSONFileLoader.load_file = _kept  # type: ignore[assignment, method-assign]


def _kept(loader: JSONFileLoader, path: str) -> Any:  # noqa: ANN401 - what a JSON file has
    if not path.startswith(_SHIPPED):
        return _read(loader, path)
    if path not in _known:
        _known[path] = _read(loader, path)
    return _known[path]
