"""The settings of a cloud of KVM hosts, as frozen values, and whether they make sense. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Meta, Struct

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.document import shown
from slurm_elastic.config.numbers import Count, Cpus, Mebibytes
from slurm_elastic.config.partial import Draft
from slurm_elastic.providers.base.hosted_cloud import HostedCloud, own_addresses

_WORD = re.compile(r"[^\s/<>&'\"]+")
_URI = re.compile(r"(qemu|test)(\+(unix|ssh|libssh2?|tls))?://\S*/\S+")


class Virtualization(StrEnum):
    """The hypervisor of domains: ``qemu`` is emulation, ``test`` libvirt's own test driver."""

    KVM = "kvm"
    QEMU = "qemu"
    TEST = "test"


class LibvirtHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host by libvirt's ``uri``. ``cpus`` and ``memory`` are what all domains together, others'
    too, may have of it; None is all its cpus, and nine tenths of its memory.
    """

    uri: str = "qemu:///system"
    cpus: Cpus | None = None
    memory: Mebibytes | None = None


class LibvirtType(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A size of machine. ``disk`` (GiB) where it is to be larger than the image. ``price``: power,
    depreciation.
    """

    price: float = 0.0
    disk: Count | None = None


class LibvirtCloud(
    HostedCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="libvirt"
):
    """Domains on ``hosts``, whose names are the cloud's zones; each has the ``image``, a volume of
    its storage pool ``storage``, and the ``network``. ``domain`` is the path of a domain's XML to
    start from. ``threads``: calls at a time on one host.
    """

    hosts: Annotated[dict[str, LibvirtHost], Meta(min_length=1)]
    image: str
    types: Annotated[dict[str, LibvirtType], Meta(min_length=1)]
    storage: str = "default"
    network: str = "default"
    domain: str | None = None
    virtualization: Virtualization = Virtualization.KVM
    user_data: str | None = None

    shows_console: ClassVar[bool] = False
    by_user_data: ClassVar[bool] = True
    can_stop: ClassVar[bool] = True
    reach_advice: ClassVar[str] = "try 'virsh -c URI list' as SlurmUser, with the uri of the host"

    def shares_place(self, other: CloudSettings) -> bool:
        """One host may go by several URIs, so any other may have the same."""
        return isinstance(other, LibvirtCloud)


def check(draft: Draft, i: int, cloud: LibvirtCloud) -> None:
    """All complaints about a cloud of provider libvirt."""
    uris = {name: host.uri for name, host in cloud.hosts.items()}
    own_addresses(draft, ("clouds", i), "uri", uris)
    for name, uri in uris.items():
        if not _URI.fullmatch(uri):
            expected = "libvirt's, such as qemu+ssh://USER@HOST/system"
            draft.problems.add(("clouds", i, "hosts", name, "uri"), shown(uri), expected)
        if unproven := _unproven(uri):
            expected = f"a host that proves who it is, without {unproven}"
            draft.problems.add(("clouds", i, "hosts", name, "uri"), shown(uri), expected)
    for key in ("image", "storage", "network"):
        if not _WORD.fullmatch(word := getattr(cloud, key)):
            expected = "a name, without blanks, quotes or /"
            draft.problems.add(("clouds", i, key), shown(word), expected)
    for name, kind in cloud.types.items():
        if kind.gres and cloud.domain is None:
            expected = "no gres, or a domain that has the devices"
            draft.problems.add(("clouds", i, "types", name, "gres"), ", ".join(kind.gres), expected)


def _unproven(uri: str) -> str:
    """The parameter that has libvirt take any host for this one (libvirt's URI reference)."""
    pairs = parse_qsl(urlsplit(uri).query.replace(";", "&"), keep_blank_values=True)
    for name, value in pairs:
        trusts = name == "no_verify" and value != "0"
        if trusts or (name == "known_hosts_verify" and value != "normal"):
            return f"{name}={value}"
    return ""
