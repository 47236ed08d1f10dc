"""The settings of a cloud of Docker engines, as frozen values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.numbers import (
    Cpus,
    Mebibytes,
)
from slurm_elastic.providers.base.hosted_cloud import HostedCloud


class DockerHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine: ``unix:///path``, ``tcp://host:port`` with TLS by the three files, or
    ``ssh://user@host`` with the keys and known hosts of the user slurm.

    ``cpus`` and ``memory`` are what containers may have of the host; None is all it has.
    """

    url: str = "unix:///var/run/docker.sock"
    cpus: Cpus | None = None
    memory: Mebibytes | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class DockerType(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A size of container; both numbers are its limits. ``price``: power, depreciation."""

    price: float = 0.0


class DockerCloud(HostedCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="docker"):
    """Containers on ``hosts``, whose names are the cloud's zones; each has the ``image`` and the
    ``network``. Without ``command`` the image's own program runs; it has to start slurmd.

    ``mounts`` (``/there:/here:ro``) bring the munge key and what jobs share. ``environment`` is
    seen by everybody: nothing secret. ``threads``: calls at a time on one host.
    """

    hosts: Annotated[dict[str, DockerHost], Meta(min_length=1)]
    image: str
    network: str
    types: Annotated[dict[str, DockerType], Meta(min_length=1)]
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    security_options: tuple[str, ...] = ()

    def shares_place(self, other: CloudSettings) -> bool:
        """One engine is enough."""
        urls = {host.url for host in self.hosts.values()}
        hosts = other.hosts.values() if isinstance(other, DockerCloud) else ()
        return not urls.isdisjoint(host.url for host in hosts)
