"""The clouds that ``init`` finds on a host; each kind looks for its own (``CloudKind.found``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config.requirements import KnownType
from slurm_elastic.model.cluster import Location


class SearchPlace(Struct, frozen=True, kw_only=True):
    """Where to look: the home and environment of SlurmUser, or of whoever runs ``init``."""

    home: Path
    environment: Mapping[str, str]


class Found(Struct, frozen=True, kw_only=True):
    """A cloud that was found; ``keys``: further settings, ``enable``: what makes it ``usable``;
    ``lacking``: the site has an account or engine of it, to which only that is missing.

    ``narrowed`` are requirements of a pool that keep out what is not for batch work. ``sized``: it
    has no sizes of its own, so its file names one, a node's; ``by_node``: its hosts are to be told.
    ``joins``: its machines learn from the file where the head is. ``reads`` are the files and
    sockets that the services will use, each with what to do where {user} (SlurmUser) may not.
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
    lacking: bool = False
    narrowed: dict[str, object] = {}
    sized: bool = False
    by_node: bool = False
    joins: bool = False
    reads: dict[str, str] = {}


def unusable(found: Found, why: str) -> Found:
    """The same cloud, which lacks that."""
    return Found(
        name=found.name, provider=found.provider, location=found.location, what=found.what,
        usable=False, enable=why, lacking=True, reads=found.reads,
    )  # fmt: skip


def unanswered(found: Found, where: str, error: ProviderError) -> Found:
    """The same, which refused or did not answer; ``where`` is what may be wrong, such as a file."""
    return unusable(found, f"look at {where}: {error.refusal[:160]}")
