"""The table of the kinds of clouds. Only this module knows which kinds exist.

Each of our kinds is a folder of ``slurm_elastic.providers`` with a ``CLOUD``. Other packages offer
theirs by an entry point of the group ``slurm_elastic.providers``. A kind is imported only when a
configuration names it.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec
import msgspec.inspect as mi
from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import CloudSettings, UnusableCloud
from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.config.grants import Grant, GrantUse, Holder
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.config.site_place import SitePlace
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.image_store import ImageStore
from slurm_elastic.model.price_feed import PriceFeed
from slurm_elastic.model.protocols import Provider
from slurm_elastic.model.site_maker import SiteMaker

GROUP = "slurm_elastic.providers"
API = 1
"""The version of the interface for kinds. It grows when a change of CloudKind, CloudSettings or
Provider breaks kinds of other packages.
"""
_SHARED = "base"


def _no_complaint(draft: Draft, index: int, cloud: Any) -> None:  # noqa: ANN401 - the kind's settings
    del draft, index, cloud


class CloudKind(Struct, frozen=True, kw_only=True):
    """A kind of cloud.

    ``open`` imports the SDK and makes a provider from settings, the cluster and, if there is one,
    the whole configuration. ``check`` reports mistakes in the cloud at that index of the file to
    the draft. ``grant`` writes the least rights that its account needs; None if the cloud has no
    rights. ``known_types`` asks the cloud for its types and prices and may raise any ProviderError;
    None if it has no catalogue. ``found`` looks for clouds of the kind that this host can reach,
    for ``init``. ``images`` opens its images, for ``image upload``; None if it keeps none.
    ``skeleton``: a cloud of the kind with to-dos, for ``init --cloud``; None if there is none.
    ``maker`` creates the resources that a site lacks, for ``init --make``; None if it cannot.
    ``spot_prices`` opens the history of spot prices for pools of the cloud; None if the settings
    lack ``has_spot_prices``. ``queue_client`` opens a client of SQS for the cloud's account; None
    if the settings lack ``has_queue``.
    """

    settings: type[CloudSettings]
    open: Callable[[Any, Cluster, Config | None], Provider]
    check: Callable[[Draft, int, Any], None] = _no_complaint
    grant: Callable[[Any, GrantUse, Holder], Grant] | None = None
    known_types: Callable[[Any], Iterable[KnownType]] | None = None
    found: Callable[[SearchPlace], Iterable[Found]] | None = None
    images: Callable[[Any, Cluster], ImageStore] | None = None
    skeleton: Found | None = None
    maker: Callable[[Any, SitePlace], SiteMaker] | None = None
    spot_prices: Callable[[Any, Sequence[Pool]], PriceFeed] | None = None
    queue_client: Callable[[Any], Any] | None = None
    api: int = API

    @property
    def name(self) -> str:
        """The value of the key ``provider``."""
        return str(self.settings.__struct_config__.tag)


class CloudTable(outside.Kinds[CloudKind]):
    """All kinds of clouds. Their names are the possible values of ``provider``."""

    def __init__(
        self, own_places: Mapping[str, str], other_places: Mapping[str, tuple[str, ...]]
    ) -> None:
        super().__init__(CloudKind, API, "providers", own_places, other_places)

    def member(self, name: str) -> mi.StructType:
        """The schema of that kind's settings. Raises the errors of ``kind``."""
        return _schema(self.kind(name).settings)


class Tolerant:
    """A ``CloudTable`` in which an unusable kind accepts any keys, so that the other clouds
    continue.
    """

    def __init__(self, whole: CloudTable) -> None:
        self._whole = whole

    def names(self) -> tuple[str, ...]:
        """The names in the table."""
        return self._whole.names()

    def member(self, name: str) -> mi.StructType:
        """The schema of that kind's settings, or of an UnusableCloud."""
        try:
            return self._whole.member(name)
        except ConfigError as error:
            return _schema(_unusable(name, f"provider {name!r}, {error}"))


@cache
def _unusable(name: str, reason: str) -> type[CloudSettings]:
    return cast(
        type[CloudSettings],
        msgspec.defstruct(
            UnusableCloud.__name__, [], bases=(UnusableCloud,), tag=name, frozen=True, kw_only=True,
            namespace={"unusable": reason},
        ),
    )  # fmt: skip


@cache
def table() -> CloudTable:
    """The kinds of this installation."""
    return CloudTable(_own(), outside.installed(GROUP))


def _own() -> dict[str, str]:
    """The places of our own kinds by name. No kind is imported."""
    package = importlib.util.find_spec("slurm_elastic.providers")
    folders = package.submodule_search_locations if package else None
    names = [m.name for m in pkgutil.iter_modules(folders) if m.ispkg and m.name != _SHARED]
    return {name: f"slurm_elastic.providers.{name}:CLOUD" for name in sorted(names)}


@cache
def _schema(settings: type[CloudSettings]) -> mi.StructType:
    return cast(mi.StructType, mi.type_info(settings))
