"""The compiled part of the simulator (``core.c``), if this installation has it.

A missing compiler breaks no installation: without the compiled part the engine in Python gives the
same results, more slowly. ``SLURM_ELASTIC_COMPILED=0`` in the environment switches to that engine.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from types import ModuleType

SWITCH = "SLURM_ELASTIC_COMPILED"
MISSING = (
    "this installation lacks the compiled part of the simulator, so simulations take many times"
    " longer; results are the same (docs/install.md says how to get it)"
)

_loaded: ModuleType | None
try:
    from slurm_elastic.simulate.core import _core as _loaded
except ImportError:
    _loaded = None


def compiled() -> ModuleType | None:
    """Return the compiled part; None if it is missing, switched off, or older than its sources."""
    if _loaded is None or os.environ.get(SWITCH) == "0":
        return None
    return _loaded if _is_current else None


def sources_checksum(folder: Path) -> int:
    """Return a checksum of the C sources in ``folder``; 0 if there are none, as in a wheel."""
    names = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return zlib.crc32(b"".join(path.read_bytes() for path in names)) if names else 0


# In a clone the sources may be newer than what was compiled of them, and have other rules.
_is_current = _loaded is not None and sources_checksum(Path(__file__).parent) in (
    0,
    _loaded.SOURCES,
)
