"""An OpenNebula front end that this host has an account for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config.found import Found, SearchPlace, unusable
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.opennebula.known_types import known_types
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

HERE = "http://localhost:2633/RPC2"
PATIENCE = 10.0


def found(place: SearchPlace) -> Iterator[Found]:
    """Where there is a one_auth: OpenNebula's own variables and files say which front end."""
    auth = Path(place.environment.get("ONE_AUTH") or place.home / ".one" / "one_auth")
    if not auth.exists():
        return
    endpoint = place.environment.get("ONE_XMLRPC") or _told(place.home) or HERE
    one = Found(
        name="nebula", provider="opennebula", location=Location.ON_PREMISES, usable=True,
        what=f"{auth} for {endpoint}", joins=True,
    )  # fmt: skip
    keys: dict[str, Any] = {"endpoint": endpoint, "auth": str(auth.resolve())}
    settings = OpenNebulaCloud(name=one.name, location=one.location, timeout=PATIENCE, **keys)
    try:
        types = known_types(settings)
    except ProviderError as error:
        yield unusable(one, f"{error.refusal[:160]}")
        return
    if not types:
        yield unusable(one, "make a VM template with CPU and MEMORY that the account may use")
        return
    yield replace(one, keys={**keys, "catalogue": True}, types=types)


def _told(home: Path) -> str:
    try:
        return (home / ".one" / "one_endpoint").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
