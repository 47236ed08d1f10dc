"""The guard that keeps rehearsals away from real clouds. It allows only endpoints on loopback, and
removes the caller's credentials.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.docker.settings import DockerCloud
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.providers.gcp.settings import GcpCloud
from slurm_elastic.providers.libvirt.settings import LibvirtCloud
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud
from slurm_elastic.providers.openstack.settings import OpenStackCloud
from slurm_elastic.providers.redfish.settings import RedfishCloud

EMULATOR_KEY = "sandbox-emulator-key"
EMULATOR_SECRET = "sandbox-emulator-secret"  # noqa: S105 - opens nothing but the emulator

_CLOUD_PREFIXES = (
    "AWS_", "AMAZON_", "OS_", "ONE_", "ONEAUTH", "DOCKER_", "BOTO_", "LIBVIRT_",
    "GOOGLE_", "CLOUDSDK_", "GCLOUD_", "GCE_", "AZURE_", "ARM_", "MSI_", "IDENTITY_",
)  # fmt: skip
"""Prefixes of environment variables of clouds. Clouds of outside packages are recognised by their
vendors' prefixes, because their SDKs read such variables by themselves.
"""
_ENDPOINT_WORDS = ("endpoint", "url", "uri", "host", "address", "server")
"""Words in the keys of settings that contain a cloud's endpoint."""

_EMULATOR_ENV = {
    "AWS_ACCESS_KEY_ID": EMULATOR_KEY,
    "AWS_SECRET_ACCESS_KEY": EMULATOR_SECRET,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "BOTO_CONFIG": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    # A client without an endpoint meets this closed port and not a real cloud.
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "OS_CLIENT_CONFIG_FILE": "/dev/null",
    "ONE_AUTH": "/dev/null",
    "DOCKER_CONFIG": "/dev/null",
}


def require_loopback(url: str) -> str:
    """Return ``url`` if it is http(s) on this host's loopback. Raises SandboxError otherwise, and
    for any name except ``localhost``.
    """
    try:
        url_parts = urlsplit(url)
        host, _ = url_parts.hostname, url_parts.port
    except ValueError as error:
        raise SandboxError(f"endpoint {url!r} is not a URL: {error}") from error
    if url_parts.scheme not in ("http", "https") or not host:
        raise SandboxError(f"endpoint {url!r} is not an http URL of this host's loopback")
    if not _is_loopback(host):
        raise SandboxError(
            f"endpoint {url!r} is not on this host's loopback; the sandbox refuses every other"
        )
    return url


def require_emulated(clouds: Iterable[CloudSettings]) -> None:
    """Raise SandboxError unless each cloud with an API is an emulated one on loopback."""
    for cloud in clouds:
        require = next(
            (do for kind, do in _GUARDS if isinstance(cloud, kind)), _require_loopback_endpoints
        )
        require(cloud)


def _require_own_ec2(cloud: AwsCloud) -> None:
    if cloud.endpoint is None:
        raise SandboxError(f"cloud {cloud.name!r} names no endpoint, so Amazon's own would be used")
    if cloud.profile is not None:
        raise SandboxError(f"cloud {cloud.name!r} names a profile; the sandbox reads none")
    require_loopback(cloud.endpoint)


def _require_own_arm(cloud: AzureCloud) -> None:
    if cloud.credentials is None:
        raise SandboxError(
            f"cloud {cloud.name!r} names no credentials, so this host's own identity would be used"
        )
    require_loopback(cloud.endpoint)
    require_loopback(cloud.login_endpoint)
    if cloud.price_endpoint is not None:
        require_loopback(cloud.price_endpoint)


def _require_own_google(cloud: GcpCloud) -> None:
    if cloud.endpoint is None:
        raise SandboxError(f"cloud {cloud.name!r} names no endpoint, so Google's own would be used")
    if cloud.credentials is None:
        raise SandboxError(f"cloud {cloud.name!r} names no credentials; the sandbox reads no other")
    require_loopback(cloud.endpoint)
    try:
        document = json.loads(Path(cloud.credentials).read_text(encoding="utf-8"))
        tokens = str(document["token_uri"])
    except (OSError, ValueError, LookupError, TypeError):
        raise SandboxError(f"{cloud.credentials} has no token_uri") from None
    # The key is sent there.
    require_loopback(tokens)


def _require_no_engines(cloud: DockerCloud) -> None:
    raise SandboxError(
        f"cloud {cloud.name!r} uses real container engines, which the sandbox refuses"
    )


def _require_this_host(cloud: LibvirtCloud) -> None:
    """Raise SandboxError for a libvirt URI of another host. A URI without a host means this
    host.
    """
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


def _require_loopback_endpoints(cloud: CloudSettings) -> None:
    """Raise SandboxError unless the settings of an outside package's cloud name only loopback.

    We do not know the keys of such a cloud. Each key that may contain an endpoint must name
    loopback, and there must be at least one. Without an endpoint its SDK would contact the vendor.
    """
    endpoints = [text for text in _endpoints("", msgspec.to_builtins(cloud)) if text]
    if not endpoints:
        raise SandboxError(
            f"cloud {cloud.name!r} names no endpoint; the sandbox takes clouds of outside packages"
            " only at an endpoint on this host's loopback"
        )
    for text in endpoints:
        require_loopback(text)


def _endpoints(key: str, value: object) -> Iterator[str]:
    """Yield the texts in settings that are URLs, or whose key names an endpoint."""
    match value:
        case dict():
            for name, entry in value.items():
                yield from _endpoints(str(name), entry)
        case list() | tuple():
            for entry in value:
                yield from _endpoints(key, entry)
        case str() if "://" in value or any(word in key.lower() for word in _ENDPOINT_WORDS):
            # This key selects the source of a machine's address, and contains no endpoint.
            if key != "node_address":
                yield value


def _auth_url(cloud: OpenStackCloud) -> str:
    """Return keystone's URL, which lists all other services. Raises SandboxError without a
    clouds_file: the SDK's default files are not read.
    """
    if cloud.clouds_file is None:
        raise SandboxError(f"cloud {cloud.name!r} names no clouds_file; the sandbox reads no other")
    try:
        document = yaml.safe_load(Path(cloud.clouds_file).read_text(encoding="utf-8"))
        return str(document["clouds"][cloud.cloud]["auth"]["auth_url"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError):
        raise SandboxError(
            f"{cloud.clouds_file} has no auth_url for its cloud {cloud.cloud!r}"
        ) from None


_GUARDS: tuple[tuple[type[CloudSettings], Callable[[Any], object]], ...] = (
    (FakeCloud, lambda _: None),  # these two have no API
    (LocalCloud, lambda _: None),
    (AwsCloud, _require_own_ec2),
    (AzureCloud, _require_own_arm),
    (GcpCloud, _require_own_google),
    (OpenNebulaCloud, lambda cloud: require_loopback(cloud.endpoint)),
    (OpenStackCloud, lambda cloud: require_loopback(_auth_url(cloud))),
    (DockerCloud, _require_no_engines),
    (LibvirtCloud, _require_this_host),
    (RedfishCloud, _require_own_bmcs),
)
"""The check of each of our own kinds. Other kinds come from outside packages."""


def isolated_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without credentials, configuration and proxies of clouds, and with the
    emulator's.
    """
    kept = {name: value for name, value in env.items() if not _is_of_cloud(name)}
    return kept | _EMULATOR_ENV | {"NO_PROXY": "*", "no_proxy": "*"}


def _is_of_cloud(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(_CLOUD_PREFIXES) or upper.endswith("_PROXY")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    # A name. It is refused without asking a resolver.
    except ValueError:
        return False
