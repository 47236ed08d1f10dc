"""Finds the images from which machines start. Answers are cached for a minute.

An image is identified by Google's number, because a deleted image's name may come again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.policies.launch.images import Candidate, newest, none_fits
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.convert import Record, time_of
from slurm_elastic.providers.gcp.errors import translated
from slurm_elastic.providers.gcp.settings import GcpCloud

LOOKUP_TTL_S = 60.0
OS, VERSION = "slurm-elastic-os", "slurm-elastic-os-version"
SOFTWARE = "slurm-elastic-software-"
"""The labels of an image that say what is in it."""


class Images:
    """The images that the project's machines may start from. Thread-safe."""

    def __init__(self, settings: GcpCloud, project: Project) -> None:
        self._settings = settings
        self._project = project
        # Looked up at each call, because tests replace the clock.
        self._cache = TtlCache[str, Mapping[str, str]](lambda: time.monotonic())

    def forget(self) -> None:
        """Forget all answers, because Google has refused an image that we kept."""
        self._cache.forget()

    def of(self, choice: ImageChoice | None) -> Mapping[str, str]:
        """The ``path``, ``id`` and ``status`` of the image that a new machine would start from.
        ProviderError if there is none.
        """
        name = self._settings.image if choice is None else choice.id
        if choice is not None and name is None:
            return self._cached(f"choice {choice!r}", lambda: self._chosen(choice))
        return self._cached(str(name), lambda: self._read(str(name)))

    def _cached(self, key: str, read: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        return self._cache.get(key, read, ttl_s=LOOKUP_TTL_S)

    def _read(self, name: str) -> Mapping[str, str]:
        path = name if name.startswith("projects/") else f"global/images/{name}"
        record = self._project.call("GET", path)
        with translated(self._settings.name):
            return _facts(record)

    def _chosen(self, choice: ImageChoice) -> Mapping[str, str]:
        """The newest usable image of the project that fits. All pages are read first."""
        records: list[Record] = []
        for answer in self._project.pages("global/images", {}):
            with translated(self._settings.name):
                records += answer.get("items") or ()
        with translated(self._settings.name):
            by_id = {str(r["id"]): r for r in records if _is_usable(r)}
            candidates = [_candidate(record) for record in by_id.values()]
            image = newest(choice, candidates)
            if image is not None:
                return _facts(by_id[image.id])
        raise ProviderError(self._settings.name, "NoImage", none_fits(choice, candidates))


def _is_usable(record: Record) -> bool:
    state = (record.get("deprecated") or {}).get("state") or "ACTIVE"
    return record.get("status", "READY") == "READY" and state in ("ACTIVE", "DEPRECATED")


def _facts(record: Mapping[str, Any]) -> Mapping[str, str]:
    """The path below the API's version, the number and the status of an image."""
    _, _, path = str(record["selfLink"]).partition("/projects/")
    return {
        "path": f"projects/{path}", "id": str(record["id"]), "name": str(record["name"]),
        "status": str(record.get("status") or "READY"),
    }  # fmt: skip


def _candidate(record: Record) -> Candidate:
    words = record.get("labels") or {}
    software = {
        f"{key.removeprefix(SOFTWARE)}-{value}".strip("-")
        for key, value in words.items()
        if key.startswith(SOFTWARE)
    }
    return Candidate(
        id=str(record["id"]),
        name=str(record["name"]),
        created=time_of(record["creationTimestamp"]),
        os=words.get(OS, ""),
        version=words.get(VERSION, "").replace("_", "."),
        software=frozenset(software),
    )
