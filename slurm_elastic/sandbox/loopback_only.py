"""The guard that keeps a rehearsal off real clouds: loopback only, none of the caller's
credentials.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.docker.settings import DockerCloud
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud
from slurm_elastic.providers.openstack.settings import OpenStackCloud

EMULATOR_KEY = "sandbox-emulator-key"
EMULATOR_SECRET = "sandbox-emulator-secret"  # noqa: S105 - opens nothing but the emulator

_FOREIGN = ("AWS_", "AMAZON_", "OS_", "ONE_", "ONEAUTH", "DOCKER_", "BOTO_")

_EMULATOR = {
    "AWS_ACCESS_KEY_ID": EMULATOR_KEY,
    "AWS_SECRET_ACCESS_KEY": EMULATOR_SECRET,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "BOTO_CONFIG": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    # A client that was given no endpoint meets a closed port here and not a real cloud.
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "OS_CLIENT_CONFIG_FILE": "/dev/null",
    "ONE_AUTH": "/dev/null",
    "DOCKER_CONFIG": "/dev/null",
}


def require_loopback(url: str) -> str:
    """Hand back ``url`` if it is http(s) on this host's loopback; SandboxError otherwise.

    Names other than ``localhost`` are refused.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SandboxError(f"endpoint {url!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise SandboxError(f"endpoint {url!r} is not an http URL of this host's loopback")
    if not _is_loopback(host):
        raise SandboxError(
            f"endpoint {url!r} is not on this host's loopback; the sandbox refuses every other"
        )
    return url


def require_emulated(clouds: Iterable[CloudSettings]) -> None:
    """SandboxError unless each cloud that has an API is an emulated one, reached by loopback."""
    for cloud in clouds:
        if isinstance(cloud, OpenNebulaCloud):
            require_loopback(cloud.endpoint)
        if isinstance(cloud, DockerCloud):
            raise SandboxError(f"cloud {cloud.name!r} is of real engines; the sandbox has none")
        if isinstance(cloud, OpenStackCloud):
            require_loopback(_auth_url(cloud))
        if not isinstance(cloud, AwsCloud):
            continue
        if cloud.endpoint is None:
            raise SandboxError(f"cloud {cloud.name!r} names no endpoint; that is Amazon's own")
        if cloud.profile is not None:
            raise SandboxError(f"cloud {cloud.name!r} names a profile; the sandbox reads none")
        require_loopback(cloud.endpoint)


def _auth_url(cloud: OpenStackCloud) -> str:
    """Where keystone is, which names all other services; the SDK's own places are not looked at."""
    if cloud.clouds_file is None:
        raise SandboxError(f"cloud {cloud.name!r} names no clouds_file; the sandbox reads no other")
    try:
        words = yaml.safe_load(Path(cloud.clouds_file).read_text(encoding="utf-8"))
        return str(words["clouds"][cloud.cloud]["auth"]["auth_url"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError):
        raise SandboxError(
            f"{cloud.clouds_file} tells no auth_url of its cloud {cloud.cloud!r}"
        ) from None


def isolated_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without any cloud's credentials, configuration or proxy, and with the emulator's."""
    kept = {name: value for name, value in env.items() if not _foreign(name)}
    return kept | _EMULATOR | {"NO_PROXY": "*", "no_proxy": "*"}


def _foreign(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(_FOREIGN) or upper.endswith("_PROXY")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    # Refused unresolved: nothing is asked of a resolver.
    except ValueError:
        return False
