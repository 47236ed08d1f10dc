"""Finds the cloud's ids of the things that a launch names: flavors, image, networks. Answers are
cached for a minute.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.policies.launch.images import Candidate, newest, none_fits, software_of
from slurm_elastic.providers.openstack import requests
from slurm_elastic.providers.openstack.pages import Page, has_next, marker_pages
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud

log = logging.getLogger(__name__)

Call = Callable[..., Any]
"""``call(service, method, path, body)``, with errors translated."""
LOOKUP_TTL_S = 60.0
PAGE = 1000


class FlavorFound(Struct, frozen=True, kw_only=True):
    """A flavor as nova describes it. Memory in MiB, disk in GiB (0: as large as the image)."""

    id: str
    name: str
    vcpus: int
    ram: int
    disk: int = 0


class Catalog:
    """Looks up names in one project. Thread-safe. Each call has its own time-out."""

    def __init__(self, settings: OpenStackCloud, call: Call) -> None:
        self._settings = settings
        self._call = call
        # Looked up at each call, because tests replace the clock.
        self._cache = TtlCache[str, Any](lambda: time.monotonic())

    def forget(self) -> None:
        """Forget all answers, because the cloud has refused an id that we kept."""
        self._cache.forget()

    def flavors(self) -> Mapping[str, FlavorFound]:
        """The flavors of the configured types that exist and are large enough."""
        flavors: Mapping[str, FlavorFound] = self._cached("flavors", self._read_flavors)
        return flavors

    def unusable(self) -> Mapping[str, str]:
        """The configured types that cannot be offered, with the reasons. Always read from the
        cloud.
        """
        flavor_by_name = self._listed_flavors()
        types = self._settings.types
        reasons = {
            n: _lack(kind, flavor_by_name.get(kind.flavor or n)) for n, kind in types.items()
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def flavor(self, kind_name: str) -> FlavorFound:
        """The flavor of a type. ProviderError if there is none."""
        flavor = self.flavors().get(kind_name)
        if flavor is None:
            text = f"the cloud has no flavor for type {kind_name}"
            raise ProviderError(self._settings.name, "NoFlavor", text)
        return flavor

    def image(self, choice: ImageChoice | None = None) -> str:
        """The id of the image: the newest active one with the configured name, or the newest that
        fits the choice.
        """
        if choice is not None and choice.id is None:
            key = f"image {choice!r}"
            chosen_id: str = self._cached(key, lambda: self._choose_image(choice))
            return chosen_id
        name = self._settings.image if choice is None or choice.id is None else choice.id
        if is_uuid(name):
            return name
        image_id: str = self._cached(f"image named {name}", lambda: self._read_image(name))
        return image_id

    def networks(self) -> str | Sequence[str]:
        """The ids of the networks, or nova's own word for them."""
        word = requests.own_word(self._settings.networks)
        if word:
            return word
        network_ids: Sequence[str] = self._cached(
            "networks", lambda: tuple(map(self.network, self._settings.networks))
        )
        return network_ids

    def _cached(self, key: str, read: Callable[[], Any]) -> Any:  # noqa: ANN401
        return self._cache.get(key, read, ttl_s=LOOKUP_TTL_S)

    def _read_flavors(self) -> Mapping[str, FlavorFound]:
        flavor_by_name = self._listed_flavors()
        usable: dict[str, FlavorFound] = {}
        for name, kind in self._settings.types.items():
            flavor = flavor_by_name.get(kind.flavor or name)
            reason = _lack(kind, flavor)
            if flavor is not None and not reason:
                usable[name] = flavor
            else:
                log.warning(
                    "type not offered cloud=%s type=%s reason=%s", self._settings.name, name, reason
                )
        return usable

    def _listed_flavors(self) -> Mapping[str, FlavorFound]:
        """All flavors that the project may use, by id and by name."""
        flavor_by_name: dict[str, FlavorFound] = {}
        for record in flavor_pages(self._settings.name, self._call):
            flavor = _flavor(record)
            flavor_by_name |= {flavor.id: flavor, flavor.name: flavor}
        return flavor_by_name

    def _read_image(self, name: str) -> str:
        path = f"/images?name={quote(name)}&status=active&sort=created_at:desc&limit=1"
        for record in self._call("image", "GET", path)["images"]:
            return str(record["id"])
        raise ProviderError(self._settings.name, "NoImage", f"no active image is called {name!r}")

    def _choose_image(self, choice: ImageChoice) -> str:
        records = [*image_pages(self._settings.name, self._call, "status=active&")]
        if choice.name is None:
            records = _without_copies(records)
        candidates = [candidate(record) for record in records]
        image = newest(choice, candidates)
        if image is None:
            text = none_fits(choice, candidates)
            raise ProviderError(self._settings.name, "NoImage", text)
        return image.id

    def network(self, name: str) -> str:
        """The id of a network. ProviderError if no network or several have the name."""
        if is_uuid(name):
            return name
        records = self._call("network", "GET", f"/networks?name={quote(name)}&fields=id")
        network_ids = [str(r["id"]) for r in records["networks"]]
        if len(network_ids) != 1:
            text = f"{len(network_ids)} networks are called {name!r}; name one by its id"
            raise ProviderError(self._settings.name, "NoNetwork", text)
        return network_ids[0]


def image_pages(cloud: str, call: Call, query: str = "") -> Iterator[Mapping[str, Any]]:
    """The images that the project can see, as glance returns them, newest first."""

    def read(marker: str) -> Page:
        after = f"&marker={quote(marker)}" if marker else ""
        path = f"/images?{query}sort=created_at:desc&limit={PAGE}{after}"
        answer = call("image", "GET", path)
        return answer["images"], "next" in answer

    return marker_pages(cloud, read)


def flavor_pages(cloud: str, call: Call) -> Iterator[Mapping[str, Any]]:
    """All flavors that the project may use, as nova returns them."""

    def read(marker: str) -> Page:
        after = f"&marker={quote(marker)}" if marker else ""
        answer = call("compute", "GET", f"/flavors/detail?limit={PAGE}{after}")
        return answer["flavors"], has_next(answer, "flavors_links")

    return marker_pages(cloud, read)


def _lack(kind: Flavor, flavor: FlavorFound | None) -> str:
    """Why machines of a type cannot be started; empty if they can."""
    if flavor is None:
        return "the cloud has no such flavor"
    if flavor.vcpus < kind.cpus or flavor.ram < kind.memory:
        return f"the flavor has {flavor.vcpus} cpus and {flavor.ram} MiB, the settings say more"
    return ""


def _flavor(record: Mapping[str, Any]) -> FlavorFound:
    return FlavorFound(
        id=str(record["id"]),
        name=str(record["name"]),
        vcpus=int(record["vcpus"]),
        ram=int(record["ram"]),
        disk=int(record.get("disk") or 0),
    )


_CONTENT = ("os_distro", "os_version", "slurm_elastic_software")
"""Properties that say what is in an image."""


def _without_copies(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out the snapshots of machines that started from another of these images and have just
    its properties, because nova's snapshots inherit them. The copy of a used machine has its keys,
    and files of users. A tool that builds images by snapshots sets other properties.
    """
    content = {str(r["id"]): [r.get(key) for key in _CONTENT] for r in records}
    return [
        record
        for record in records
        if content.get(str(record.get("base_image_ref"))) != content[str(record["id"])]
    ]


def candidate(record: Mapping[str, Any]) -> Candidate:
    """Convert an image record. ``os_distro`` and ``os_version`` are glance's own names for these
    properties.
    """
    created = str(record.get("created_at") or "").replace("Z", "+00:00")
    software = software_of(str(record.get("slurm_elastic_software") or ""))
    return Candidate(
        id=str(record["id"]),
        name=str(record.get("name") or ""),
        created=datetime.fromisoformat(created).timestamp() if created else 0.0,
        os=str(record.get("os_distro") or ""),
        version=str(record.get("os_version") or ""),
        software=software | frozenset(map(str, record.get("tags") or ())),
    )


def is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
