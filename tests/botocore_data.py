"""What botocore knows of Amazon's services, read once a process. It reads its files for each session
anew (EC2's has 3 MB, and that of all endpoints 1 MB), and every client of ours has a session of its own: half
of the time of a test that opens some.
"""

from __future__ import annotations

import os
from typing import Any

from botocore.loaders import JSONFileLoader, Loader

_SHIPPED = os.path.join(Loader.BUILTIN_DATA_PATH, "")
_read = JSONFileLoader.load_file
_known: dict[str, Any] = {}


def keep() -> None:
    """From now on what botocore ships is kept: nobody changes it. Other files are read each time."""
    JSONFileLoader.load_file = _kept  # type: ignore[method-assign]


def _kept(loader: JSONFileLoader, path: str) -> Any:
    if not path.startswith(_SHIPPED):
        return _read(loader, path)
    if path not in _known:
        _known[path] = _read(loader, path)
    return _known[path]
