"""The settings of a cloud of KVM hosts, as frozen values, and whether they make sense. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Meta, Struct

from slurm_elastic.config.basics.numbers import Count, Cpus, Mebibytes
from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.validation.validate_network import is_network
from slurm_elastic.providers.base.hosts.hosted_cloud import (
    HostedCloud,
    Hypervisors,
    check_bmcs,
    own_addresses,
)

_WORD = re.compile(r"[^\s/<>&'\"]+")
_URI = re.compile(r"(qemu|test)(\+(unix|ssh|libssh2?|tls))?://\S*/\S+")


class Virtualization(StrEnum):
    """The hypervisor of domains. ``qemu`` is emulation, ``test`` is libvirt's own test driver."""

    KVM = "kvm"
    QEMU = "qemu"
    TEST = "test"


class LibvirtHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host. ``cpus`` and ``memory`` limit all domains together, including other people's."""

    uri: str = "qemu:///system"
    """Change it when the host is another one, reached by SSH or TLS."""
    cpus: Cpus | None = None
    """Change it when machines should not have all CPUs of the host, or more than it has."""
    memory: Mebibytes | None = None
    """Change it when the host itself needs more than a tenth of its memory, or less."""


class LibvirtType(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A size of machine; ``disk`` in GiB."""

    price: float = 0.0
    disk: Count | None = None
    """Change it when jobs need more local disk than the image has."""


class LibvirtCloud(
    HostedCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="libvirt"
):
    """Domains on ``hosts``, whose names are the cloud's zones. Each host has the image and the
    network.
    """

    hosts: Annotated[dict[str, LibvirtHost], Meta(min_length=1)]
    """Change it when a host comes or goes."""
    image: str
    """Change it when nodes should start from another volume."""
    types: Annotated[dict[str, LibvirtType], Meta(min_length=1)]
    """Change it when machines need other sizes."""
    storage_pool: str = "default"
    """Change it when images are in another storage pool of libvirt."""
    network: str = "default"
    """Change it when machines should be in another network of libvirt, such as a bridge."""
    address_ranges: tuple[str, ...] = ()
    """Change it when machines have no DHCP of libvirt and slurmctld should get their addresses."""
    domain_file: str | None = None
    """Change it when machines need other devices (GPUs), firmware or CPU than usual."""
    virtualization: Virtualization = Virtualization.KVM
    """Change it when the hosts have no KVM."""
    user_data: str | None = None
    """Change it when machines need a first boot of your own besides joining."""
    hypervisors: Hypervisors | None = None
    """Change it when hosts without machines should be switched off."""

    shows_console: ClassVar[bool] = False
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True

    @property
    def switches_hosts(self) -> bool:
        """Whether ``hypervisors`` is set."""
        return self.hypervisors is not None

    @property
    def reach_advice(self) -> str:
        """How an administrator can ask libvirt without slurm-elastic."""
        return "try 'virsh -c URI list' as SlurmUser, with the uri of the host"

    def shares_place(self, other: CloudSettings) -> bool:
        """True for any libvirt cloud, because one host can have several URIs."""
        return isinstance(other, LibvirtCloud)


def check(draft: Draft, i: int, cloud: LibvirtCloud) -> None:
    """Report all problems of a cloud of provider libvirt."""
    uris = {name: host.uri for name, host in cloud.hosts.items()}
    own_addresses(draft, ("clouds", i), "uri", uris)
    for name, uri in uris.items():
        is_readable = is_readable_url(uri)
        if not (is_readable and _URI.fullmatch(uri)):
            expected = "libvirt's, such as qemu+ssh://USER@HOST/system"
            draft.problems.add(("clouds", i, "hosts", name, "uri"), shown(uri), expected)
        if is_readable and (unproven := _unproven(uri)):
            expected = f"a host that proves who it is, without {unproven}"
            draft.problems.add(("clouds", i, "hosts", name, "uri"), shown(uri), expected)
    if cloud.hypervisors is not None:
        check_bmcs(draft, ("clouds", i, "hypervisors"), cloud.hypervisors, cloud.hosts)
    _check_words(draft, i, cloud)
    for name, kind in cloud.types.items():
        if kind.gres and cloud.domain_file is None:
            expected = "no gres, or a domain that has the devices"
            draft.problems.add(("clouds", i, "types", name, "gres"), ", ".join(kind.gres), expected)


def _check_words(draft: Draft, i: int, cloud: LibvirtCloud) -> None:
    for key in ("image", "storage_pool", "network"):
        if not _WORD.fullmatch(word := getattr(cloud, key)):
            expected = "a name, without blanks, quotes or /"
            draft.problems.add(("clouds", i, key), shown(word), expected)
    for text in cloud.address_ranges:
        if not is_network(text):
            draft.problems.add(("clouds", i, "address_ranges"), shown(text), "such as 10.1.0.0/16")


def _unproven(uri: str) -> str:
    """The parameter of a URI by which libvirt would accept any host as this one (libvirt's URI
    reference); empty if there is none.
    """
    pairs = parse_qsl(urlsplit(uri).query.replace(";", "&"), keep_blank_values=True)
    for name, value in pairs:
        trusts = name == "no_verify" and value != "0"
        if trusts or (name == "known_hosts_verify" and value != "normal"):
            return f"{name}={value}"
    return ""
