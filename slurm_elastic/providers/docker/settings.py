"""The settings of a cloud of Docker engines as frozen values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.config.basics.numbers import Cpus, Mebibytes
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.providers.base.hosts.hosted_cloud import HostedCloud


class DockerHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine: ``unix:///path``, ``tcp://host:port`` with TLS by the three files, or
    ``ssh://user@host`` with the keys and known hosts of the user slurm.
    """

    url: str = "unix:///var/run/docker.sock"
    """Change it when the engine is on another host."""
    cpus: Cpus | None = None
    """Change it when containers should not have all CPUs of the host."""
    memory: Mebibytes | None = None
    """Change it when containers should not have all memory of the host."""
    ca_file: str | None = None
    """Change it when the engine is reached by `tcp`."""
    cert_file: str | None = None
    """Change it when the engine is reached by `tcp`."""
    key_file: str | None = None
    """Change it when the engine is reached by `tcp`."""


class DockerType(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A size of container. Both numbers are its limits. ``price``: for power and depreciation."""

    price: float = 0.0


class DockerCloud(HostedCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="docker"):
    """Containers on ``hosts``, whose names are the cloud's zones. Everybody can see
    ``environment``, so it must contain no secret.
    """

    hosts: Annotated[dict[str, DockerHost], Meta(min_length=1)]
    """Change it when an engine comes or goes."""
    image: str
    """Change it when nodes should run another image."""
    network: str
    """Change it when containers should be in another network of Docker."""
    types: Annotated[dict[str, DockerType], Meta(min_length=1)]
    """Change it when containers need other sizes."""
    command: tuple[str, ...] = ()
    """Change it when the image's own program does not start slurmd."""
    environment: dict[str, str] = field(default_factory=dict)
    """Change it when the image's program reads variables."""
    mounts: tuple[str, ...] = ()
    """Change it when jobs need files of the host, such as homes; the munge key comes so, too."""
    tmpfs: tuple[str, ...] = ()
    """Change it when programs of the image want a directory in memory, such as systemd's /run."""
    capabilities: tuple[str, ...] = ()
    """Change it when slurmd or jobs need more than Docker's default, such as CRIU."""
    security_options: tuple[str, ...] = ()
    """Change it when the host's seccomp or AppArmor profile keeps slurmd or jobs from working."""

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether both clouds use an engine in common."""
        urls = {host.url for host in self.hosts.values()}
        hosts = other.hosts.values() if isinstance(other, DockerCloud) else ()
        return not urls.isdisjoint(host.url for host in hosts)
