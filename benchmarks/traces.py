"""Where the public histories that measurements need are; none of them is in the repository."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

VARIABLE = "SLURM_ELASTIC_DATA"


def data() -> Path | None:
    """The directory ``$SLURM_ELASTIC_DATA``, or ``shared/data`` beside the repository; or None."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return path if path.is_dir() else None


def history(name: str) -> Path | None:
    """A history of the Parallel Workloads Archive by its name there; None if it is not at hand."""
    directory = data()
    path = directory / "swf" / f"{name}.swf.gz" if directory else None
    return path if path is not None and path.is_file() else None


def others(known: Container[str]) -> list[str]:
    """The names of further histories there, which were not at hand while this was built."""
    directory = data()
    paths = sorted((directory / "swf").glob("*.swf.gz")) if directory else []
    names = [path.name.removesuffix(".swf.gz") for path in paths]
    return [name for name in names if name not in known]
