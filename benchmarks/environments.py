"""Python environments of the benchmarks' own, for peers that they are measured against.

A peer is installed once from the Python package index that pip is set up for, and kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_INSTALL_LIMIT = 120.0


def environment(name: str, release: str, package: str) -> Path | str:
    """The Python that has ``package`` (as pip takes it), or why there is none."""
    place = _cache() / f"{name}-{release}-{sys.implementation.cache_tag}"
    python = place / "bin" / "python"
    if (place / "complete").exists():
        return python
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [str(python), "-m", "pip", "install", "-q", "--retries", "1", package],
    )
    for step in steps:
        try:
            done = subprocess.run(
                step, capture_output=True, text=True, timeout=_INSTALL_LIMIT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
    (place / "complete").touch()
    return python


def _cache() -> Path:
    """Where it is kept from run to run; only for this once where nothing can be kept."""
    for parent in (Path("/var/cache"), Path.home() / ".cache"):
        if os.access(parent, os.W_OK):
            place = parent / "slurm-elastic" / "bench"
            place.mkdir(parents=True, exist_ok=True)
            return place
    return Path(tempfile.mkdtemp(prefix="bench-peer-"))
