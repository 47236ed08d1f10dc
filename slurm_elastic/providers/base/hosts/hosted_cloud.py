"""Settings of clouds of hosts (``hosted``), and the check that no host is named twice. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from slurm_elastic.config import Config
from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.clouds import CloudSettings, without_spot
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Market
from slurm_elastic.providers.base.hosts.bmc_settings import is_bmc_url


class Hypervisors(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts that are shut down while they have no machine, and switched on again for new ones.
    ``bmcs``: by host, the URL of its system at its BMC, or the argument that ``command`` takes.
    """

    bmcs: Annotated[dict[str, str], Meta(min_length=1)]
    """Change it when a host comes or goes. Hosts that it does not name always stay on."""
    credentials_file: str | None = None
    """Change it when the BMCs' account is in another file."""
    ca_file: str | None = None
    """Change it when the BMCs have certificates of your own authority."""
    command: tuple[str, ...] = ()
    """Change it when hosts have no Redfish: a program of yours switches them (IPMI, a PDU)."""
    idle: Seconds = 600.0
    """Change it when hosts should stay on longer, or shorter, without a machine."""
    keep: Annotated[int, Meta(ge=0)] = 1
    """Change it when jobs wait for a host to boot, or more hosts than needed stay on."""
    boot_timeout: Seconds = 600.0
    """Change it when hosts need longer than ten minutes until their libvirt answers."""
    claims_file: str | None = None
    """Change it when the file should outlive the state directory, or be on a disk that a second
    head has, too.
    """


class HostedCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud whose machines run on ``hosts``, which are its zones, in types that its settings
    define.
    """

    threads: ClassVar[int] = 4
    """Calls at the same time on one host. More would not help: the host's disk creates one machine
    after the other.
    """

    needs_types: ClassVar[bool] = True
    zones_are_hosts: ClassVar[bool] = True

    @property
    def markets(self) -> frozenset[Market]:
        """All markets of the location except spot."""
        return without_spot(self.location)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The hosts."""
        hosts: Mapping[str, object] = getattr(self, "hosts", {})
        return tuple(hosts)


def claims_file(settings: CloudSettings, config: Config) -> Path:
    """The file of a cloud's claims, if its settings name no other one. Two heads share it."""
    return config.state / "claims" / f"{settings.name}.db"


def own_addresses(
    draft: Draft, cloud_path: KeyPath, key: str, addresses: Mapping[str, str]
) -> None:
    """Report hosts with the same address: a host with two names would be filled twice.

    ``addresses``: the address of each host, from ``key`` in its settings.
    """
    first_name_by_address: dict[str, str] = {}
    for name, address in addresses.items():
        first_name = first_name_by_address.setdefault(address, name)
        if first_name != name:
            problem = f"{shown(address)}, which hosts.{first_name} has already"
            draft.problems.add((*cloud_path, "hosts", name, key), problem, f"a {key} of its own")


def check_bmcs(
    draft: Draft, path: KeyPath, hypervisors: Hypervisors, hosts: Mapping[str, object]
) -> None:
    """Report BMCs of unknown hosts, wrong URLs, two hosts with one BMC, and a missing account."""
    urls = list(hypervisors.bmcs.values())
    for name, url in hypervisors.bmcs.items():
        if name not in hosts:
            draft.problems.add((*path, "bmcs", name), shown(name), "a host that 'hosts' names")
        if not hypervisors.command and not is_bmc_url(url):
            expected = "a URL as https://bmc1/redfish/v1/Systems/1"
            draft.problems.add((*path, "bmcs", name), shown(url), expected)
        if urls.count(url) > 1:
            draft.problems.add((*path, "bmcs", name), shown(url), "a BMC of its own")
    if not hypervisors.command and hypervisors.credentials_file is None:
        expected = "a JSON file with username and password"
        draft.problems.add(path, "no 'credentials_file'", expected)
