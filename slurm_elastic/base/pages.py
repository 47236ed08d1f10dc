"""The pages of the documentation: where they are installed, and how messages name them."""

from __future__ import annotations

import sys
from pathlib import Path


def page(topic: str) -> str:
    """The command that shows a page. Messages name a page only by this command, because an
    installed head has no clone.

    ``topic`` is the name of a file in docs/, without ``.md``.
    """
    return f"slurm-elastic help {topic}"


def directory() -> Path | None:
    """The directory of the pages, None if they are not installed: in a clone beside the package, in
    a package of a distribution and a copied clone in the environment's ``doc``, from a wheel in its
    ``share``.
    """
    clone = Path(__file__).resolve().parents[2]
    places = (
        clone / "docs" if (clone / "pyproject.toml").exists() else None,
        Path(sys.prefix, "doc"),
        Path(sys.prefix, "share", "doc", "slurm-elastic"),
    )
    return next((place for place in places if place and (place / "README.md").exists()), None)


def topics(place: Path) -> dict[str, Path]:
    """The pages in the directory ``place``, by topic. The index is ``README``."""
    return {path.stem: path for path in sorted(place.glob("*.md"))}
