"""The things that a launch names, as the cloud's ids: flavors, the image, networks; kept for a
minute.
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
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud

log = logging.getLogger(__name__)

Call = Callable[..., Any]
"""``call(service, method, path, body)``, translated."""
LOOKUP_TTL_S = 60.0
PAGE = 1000


class FlavorFound(Struct, frozen=True, kw_only=True):
    """A flavor as nova has it; memory in MiB, disk in GiB (0: as large as the image)."""

    id: str
    name: str
    vcpus: int
    ram: int
    disk: int = 0


class Catalog:
    """Thread-safe; reads are bounded by the time-out of each call."""

    def __init__(self, settings: OpenStackCloud, call: Call) -> None:
        self._settings = settings
        self._call = call
        self._cache = TtlCache[str, Any](lambda: time.monotonic())

    def forget(self) -> None:
        """The cloud has refused what we know."""
        self._cache.forget()

    def flavors(self) -> Mapping[str, FlavorFound]:
        """The flavors of the settings' types that are there and have what the settings say."""
        known: Mapping[str, FlavorFound] = self._fresh("flavors", self._read_flavors)
        return known

    def unusable(self) -> Mapping[str, str]:
        """The settings' types that are not offered, and why; read anew."""
        there = self._listed_flavors()
        types = self._settings.types
        reasons = {n: _lack(kind, there.get(kind.flavor or n)) for n, kind in types.items()}
        return {name: why for name, why in reasons.items() if why}

    def flavor(self, kind_name: str) -> FlavorFound:
        """The flavor of one type; ProviderError where there is none."""
        found = self.flavors().get(kind_name)
        if found is None:
            text = f"the cloud has no flavor for type {kind_name}"
            raise ProviderError(self._settings.name, "NoFlavor", text)
        return found

    def image(self, choice: ImageChoice | None = None) -> str:
        """The image's id: of that name, or that fits the choice, the newest that is active."""
        if choice is not None and choice.id is None:
            key = f"image {choice!r}"
            chosen: str = self._fresh(key, lambda: self._choose_image(choice))
            return chosen
        name = self._settings.image if choice is None or choice.id is None else choice.id
        if is_uuid(name):
            return name
        found: str = self._fresh("image", lambda: self._read_image(name))
        return found

    def networks(self) -> str | Sequence[str]:
        """Their ids, or nova's word."""
        word = requests.own_word(self._settings.networks)
        if word:
            return word
        found: Sequence[str] = self._fresh(
            "networks", lambda: tuple(map(self.network, self._settings.networks))
        )
        return found

    def _fresh(self, what: str, read: Callable[[], Any]) -> Any:  # noqa: ANN401
        return self._cache.get(what, read, ttl_s=LOOKUP_TTL_S)

    def _read_flavors(self) -> Mapping[str, FlavorFound]:
        there = self._listed_flavors()
        found: dict[str, FlavorFound] = {}
        for name, kind in self._settings.types.items():
            one = there.get(kind.flavor or name)
            why = _lack(kind, one)
            if one is not None and not why:
                found[name] = one
            else:
                log.warning(
                    "not offered cloud=%s type=%s reason=%s", self._settings.name, name, why
                )
        return found

    def _listed_flavors(self) -> Mapping[str, FlavorFound]:
        """All that the project may use, by id and by name."""
        there: dict[str, FlavorFound] = {}
        for record in flavor_pages(self._call):
            one = _flavor(record)
            there |= {one.id: one, one.name: one}
        return there

    def _read_image(self, name: str) -> str:
        path = f"/images?name={quote(name)}&status=active&sort=created_at:desc&limit=1"
        for record in self._call("image", "GET", path)["images"]:
            return str(record["id"])
        raise ProviderError(self._settings.name, "NoImage", f"no active image is called {name!r}")

    def _choose_image(self, choice: ImageChoice) -> str:
        candidates = [candidate(r) for r in image_pages(self._call, "status=active&")]
        found = newest(choice, candidates)
        if found is None:
            text = none_fits(choice, candidates)
            raise ProviderError(self._settings.name, "NoImage", text)
        return found.id

    def network(self, name: str) -> str:
        """Its id; ProviderError where none or several are called so."""
        if is_uuid(name):
            return name
        records = self._call("network", "GET", f"/networks?name={quote(name)}&fields=id")
        found = [str(r["id"]) for r in records["networks"]]
        if len(found) != 1:
            text = f"{len(found)} networks are called {name!r}; name one by its id"
            raise ProviderError(self._settings.name, "NoNetwork", text)
        return found[0]


def image_pages(call: Call, query: str = "") -> Iterator[Mapping[str, Any]]:
    """The images that the project sees, as glance has them, newest first."""
    asked = f"/images?{query}sort=created_at:desc&limit={PAGE}"
    path = asked
    while path:
        page = call("image", "GET", path)["images"]
        yield from page
        path = f"{asked}&marker={quote(str(page[-1]['id']))}" if len(page) >= PAGE else ""


def flavor_pages(call: Call) -> Iterator[Mapping[str, Any]]:
    """All flavors that the project may use, as nova has them."""
    path = "/flavors/detail?limit=1000"
    while path:
        answer = call("compute", "GET", path)
        page = answer["flavors"]
        yield from page
        # A site may have nova make smaller pages than were asked for.
        further = any(link["rel"] == "next" for link in answer.get("flavors_links", ()))
        last = str(page[-1]["id"]) if page and further else ""
        path = f"/flavors/detail?limit=1000&marker={quote(last)}" if last else ""


def _lack(kind: Flavor, found: FlavorFound | None) -> str:
    """Why machines of a type cannot be had; empty where they can."""
    if found is None:
        return "the cloud has no such flavor"
    if found.vcpus < kind.cpus or found.ram < kind.memory:
        return f"the flavor has {found.vcpus} cpus and {found.ram} MiB, the settings say more"
    return ""


def _flavor(record: Mapping[str, Any]) -> FlavorFound:
    return FlavorFound(
        id=str(record["id"]),
        name=str(record["name"]),
        vcpus=int(record["vcpus"]),
        ram=int(record["ram"]),
        disk=int(record.get("disk") or 0),
    )


def candidate(record: Mapping[str, Any]) -> Candidate:
    """``os_distro`` and ``os_version`` are glance's own words for these properties."""
    made = str(record.get("created_at") or "").replace("Z", "+00:00")
    own = software_of(str(record.get("slurm_elastic_software") or ""))
    return Candidate(
        id=str(record["id"]),
        name=str(record.get("name") or ""),
        created=datetime.fromisoformat(made).timestamp() if made else 0.0,
        os=str(record.get("os_distro") or ""),
        version=str(record.get("os_version") or ""),
        software=own | frozenset(map(str, record.get("tags") or ())),
    )


def is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
