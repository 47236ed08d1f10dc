"""The clouds that ``init`` finds on a host. Each kind looks for its own (``CloudKind.found``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.model.cluster import Location


class SearchPlace(Struct, frozen=True, kw_only=True):
    """Where to look: home and environment of SlurmUser, or of the user who runs ``init``."""

    home: Path
    environment: Mapping[str, str]


class Found(Struct, frozen=True, kw_only=True):
    """A cloud that was found. ``keys``: further settings. ``enable``: the step that makes it
    ``usable``. ``lacking``: the site has an account or engine of it, and only that step is missing.

    ``narrowed``: requirements of a pool that exclude types unfit for batch work. ``sized``: the
    cloud has no sizes of its own, so its file names a node's size. ``by_node``: its hosts must be
    listed. ``joins``: its machines learn from the file where the head is. ``reads``: the files and
    sockets that the services will use, each with the remedy if {user} (SlurmUser) may not read it.
    ``todos``: for ``init --cloud``, by key, the step that gives a missing value; {name} is the
    cloud's name, {user} SlurmUser. A step whose key is not in ``keys`` becomes a comment.
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
    todos: dict[str, str] = {}

    @property
    def names_types(self) -> bool:
        """Whether its keys name its types, so that no catalogue is asked."""
        return "types" in self.keys


def unusable(cloud: Found, remedy: str) -> Found:
    """The found cloud, marked as unusable until the step ``remedy`` is done."""
    return Found(
        name=cloud.name, provider=cloud.provider, location=cloud.location, what=cloud.what,
        usable=False, enable=remedy, lacking=True, reads=cloud.reads, keys=cloud.keys,
    )  # fmt: skip


def unanswered(cloud: Found, where: str, error: ProviderError) -> Found:
    """The found cloud, marked as unusable because it refused or did not answer. ``where``: the
    possible cause, such as a file.
    """
    return unusable(cloud, f"look at {where}: {error.refusal[:160]}")
