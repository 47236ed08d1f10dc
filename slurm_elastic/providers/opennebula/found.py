"""Finds an OpenNebula front end that this host has an account for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.config.found import Found, SearchPlace, unanswered, unusable
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.opennebula.known_types import known_types
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

HERE = "http://localhost:2633/RPC2"
TIMEOUT_S = 10.0
PLACE = "/etc/slurm-elastic/one_auth"
COPY = f"install -o {{user}} -m 600 {{path}} {PLACE}"


def found(place: SearchPlace) -> Iterator[Found]:
    """One entry if there is a one_auth file. OpenNebula's own variables and files name the front
    end.
    """
    auth = Path(place.environment.get("ONE_AUTH") or place.home / ".one" / "one_auth")
    if not auth.exists():
        return
    endpoint, where = _endpoint(place)
    cloud = Found(
        name="nebula", provider="opennebula", location=Location.ON_PREMISES, usable=True,
        what=f"OpenNebula at {endpoint}, by {auth}", joins=True,
        reads={str(auth): f"{COPY}; then ONE_AUTH={PLACE} slurm-elastic init"},
    )  # fmt: skip
    if not endpoint.startswith(("http://", "https://")):
        yield unusable(cloud, f"correct {where}: it has no URL such as {HERE}")
        return
    keys: dict[str, Any] = {"endpoint": endpoint, "auth_file": str(auth.resolve())}
    settings = OpenNebulaCloud(
        name=cloud.name, location=cloud.location, api_timeout=TIMEOUT_S, **keys
    )
    try:
        types = known_types(settings)
    except ProviderError as error:
        yield unanswered(cloud, str(auth) if isinstance(error, AuthError) else where, error)
        return
    if not types:
        yield unusable(cloud, "make a VM template with CPU and MEMORY that the account may use")
        return
    yield replace(cloud, keys={**keys, "catalogue": True}, types=types)


def _endpoint(place: SearchPlace) -> tuple[str, str]:
    """The front end's URL, and the variable or file that names it."""
    if url := place.environment.get("ONE_XMLRPC"):
        return url, "ONE_XMLRPC"
    file = place.home / ".one" / "one_endpoint"
    try:
        return file.read_text(encoding="utf-8").strip() or HERE, str(file)
    except (OSError, UnicodeDecodeError):
        return HERE, f"the front end, or name it in {file}"
