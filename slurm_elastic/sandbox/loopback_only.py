"""The guard that keeps a rehearsal off real clouds: loopback only, none of the caller's
credentials.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.docker.settings import DockerCloud
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.providers.libvirt.settings import LibvirtCloud
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud
from slurm_elastic.providers.openstack.settings import OpenStackCloud
from slurm_elastic.providers.redfish.settings import RedfishCloud

EMULATOR_KEY = "sandbox-emulator-key"
EMULATOR_SECRET = "sandbox-emulator-secret"  # noqa: S105 - opens nothing but the emulator

_FOREIGN = (
    "AWS_", "AMAZON_", "OS_", "ONE_", "ONEAUTH", "DOCKER_", "BOTO_", "LIBVIRT_",
    "GOOGLE_", "CLOUDSDK_", "GCLOUD_", "GCE_", "AZURE_", "ARM_", "MSI_", "IDENTITY_",
)  # fmt: skip
"""Clouds of outside packages are known by their vendors' names: an SDK reads them by itself."""
_PLACES = ("endpoint", "url", "uri", "host", "address", "server")
"""Words in the keys of settings that say where a cloud is."""

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
        require = next((do for kind, do in _GUARDS if isinstance(cloud, kind)), _require_places)
        require(cloud)


def _require_own_ec2(cloud: AwsCloud) -> None:
    if cloud.endpoint is None:
        raise SandboxError(f"cloud {cloud.name!r} names no endpoint; that is Amazon's own")
    if cloud.profile is not None:
        raise SandboxError(f"cloud {cloud.name!r} names a profile; the sandbox reads none")
    require_loopback(cloud.endpoint)


def _require_no_engines(cloud: DockerCloud) -> None:
    raise SandboxError(f"cloud {cloud.name!r} is of real engines; the sandbox has none")


def _require_this_host(cloud: LibvirtCloud) -> None:
    """A URI of libvirt's without a host is this very host's."""
    for uri in (host.uri for host in cloud.hosts.values()):
        host = urlsplit(uri).hostname
        if host and not _is_loopback(host):
            raise SandboxError(
                f"endpoint {uri!r} is not on this host's loopback; the sandbox refuses every other"
            )


def _require_own_bmcs(cloud: RedfishCloud) -> None:
    if cloud.command:
        raise SandboxError(
            f"cloud {cloud.name!r} switches its hosts by a command; the sandbox cannot see which"
            " hosts that reaches"
        )
    for url in cloud.hosts.values():
        require_loopback(url)


def _require_places(cloud: CloudSettings) -> None:
    """A cloud of an outside package: we know no key of its, so each one that may say where it is
    must say loopback, and there must be one. Without any its SDK would go to the vendor's own.
    """
    places = [text for text in _places("", msgspec.to_builtins(cloud)) if text]
    if not places:
        raise SandboxError(
            f"cloud {cloud.name!r} names no endpoint; the sandbox takes clouds of outside packages"
            " only at an endpoint on this host's loopback"
        )
    for text in places:
        require_loopback(text)


def _places(key: str, value: object) -> Iterator[str]:
    """The texts in settings that are URLs, or whose key says that they name a place."""
    match value:
        case dict():
            for name, part in value.items():
                yield from _places(str(name), part)
        case list() | tuple():
            for part in value:
                yield from _places(key, part)
        case str() if "://" in value or any(word in key.lower() for word in _PLACES):
            # Where a machine's own address comes from is no place of the cloud.
            if key != "node_address":
                yield value


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


_GUARDS: tuple[tuple[type[CloudSettings], Callable[[Any], object]], ...] = (
    (FakeCloud, lambda _: None),  # these two have no API
    (LocalCloud, lambda _: None),
    (AwsCloud, _require_own_ec2),
    (OpenNebulaCloud, lambda cloud: require_loopback(cloud.endpoint)),
    (OpenStackCloud, lambda cloud: require_loopback(_auth_url(cloud))),
    (DockerCloud, _require_no_engines),
    (LibvirtCloud, _require_this_host),
    (RedfishCloud, _require_own_bmcs),
)
"""How each kind that we have is looked at; one that is missing here is an outside package's."""


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
