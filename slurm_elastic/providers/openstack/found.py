"""Finds the OpenStack projects in clouds.yaml."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace
from openstack.config.loader import CONFIG_FILES

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.pages import page
from slurm_elastic.config.found import Found, SearchPlace, unanswered, unusable
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.openstack.errors import translated
from slurm_elastic.providers.openstack.known_types import known_types
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

TIMEOUT_S = 10.0
MAX_PROJECTS = 4
PLACE = "/etc/slurm-elastic/clouds.yaml"
COPY = f"install -o {{user}} -m 600 {{path}} {PLACE}"


def found(place: SearchPlace) -> Iterator[Found]:
    """One entry for each cloud in the first clouds.yaml that openstacksdk would read."""
    named_path = place.environment.get("OS_CLIENT_CONFIG_FILE")
    paths = [named_path] if named_path else [*CONFIG_FILES]
    path = next((Path(p) for p in paths if p and os.path.exists(p)), None)
    if path is None:
        return
    try:
        entries = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("clouds", {})
        names = list(entries)
    except (OSError, yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
        cloud = _found("stack", f"projects in {path}", path)
        yield unusable(cloud, f"correct it: it cannot be read{_where(error)}")
        return
    # Each project costs several calls, so only the first few are examined.
    for entry in names[:MAX_PROJECTS]:
        yield _examine(str(entry), path)


def _examine(entry: str, path: Path) -> Found:
    name = re.sub(r"[^a-z0-9]+", "-", entry.lower()).strip("-") or "stack"
    cloud = _found(name, f"project {entry} in {path}", path)
    keys: dict[str, Any] = {"cloud": entry, "clouds_file": str(path.resolve())}
    settings = OpenStackCloud(
        name=name, location=cloud.location, image="?", api_timeout=TIMEOUT_S, **keys
    )
    try:
        image, network = _parts(settings)
        types = known_types(settings)
    except ProviderError as error:
        return unanswered(replace(cloud, keys=keys), f"entry {entry} of {path}", error)
    if image is None:
        bare = replace(cloud, keys=keys)
        return unusable(bare, f"make an image in this project ({page('images')})")
    settings_found = {"image": image, "catalogue": True, "networks": [network or "auto"]}
    return replace(cloud, keys={**keys, **settings_found}, types=types)


def _found(name: str, description: str, path: Path) -> Found:
    return Found(
        name=name, provider="openstack", location=Location.ON_PREMISES, usable=True,
        what=description, joins=True,
        reads={str(path): f"{COPY}; then OS_CLIENT_CONFIG_FILE={PLACE} slurm-elastic init"},
    )  # fmt: skip


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1})" if mark else f" ({getattr(error, 'strerror', 'no clouds')})"


def _parts(settings: OpenStackCloud) -> tuple[str | None, str | None]:
    """The project's newest image, if possible with Slurm in its name; and the only network that
    servers can use.
    """
    call = Project(settings).call
    with translated(settings.name):
        path = "/images?status=active&sort=created_at:desc&limit=100"
        images = [str(i["name"]) for i in call("image", "GET", path)["images"]]
        slurm = [name for name in images if "slurm" in name.lower()]
        networks = call("network", "GET", "/networks")["networks"]
    usable = [str(n["name"]) for n in networks if n.get("name") and not n.get("router:external")]
    return next(iter((*slurm, *images)), None), usable[0] if len(usable) == 1 else None
