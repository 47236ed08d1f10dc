"""Clouds that a host can reach, as ``init`` finds them: each kind looks for its own
(``CloudKind.found``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.config.requirements import KnownType
from slurm_elastic.model.cluster import Location


class Place(Struct, frozen=True, kw_only=True):
    """Where to look: SlurmUser's home and environment, or those of whoever asks."""

    home: Path
    environment: Mapping[str, str]


class Found(Struct, frozen=True, kw_only=True):
    """A cloud that is there. ``what`` says where it was found; ``keys`` are its settings beside
    name, provider and location. It is ``usable`` as it stands, or ``enable`` says what would
    make it so.
    """

    name: str
    provider: str
    location: Location
    what: str
    usable: bool
    enable: str = ""
    keys: dict[str, object] = {}
    types: tuple[KnownType, ...] = ()
    spot: bool = False


def unusable(found: Found, why: str) -> Found:
    """The same, which cannot be used for that reason."""
    return Found(
        name=found.name, provider=found.provider, location=found.location, what=found.what,
        usable=False, enable=why,
    )  # fmt: skip
