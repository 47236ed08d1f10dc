"""Calls to one host: read its domains, start, stop and end a machine. They raise libvirtError."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import escape

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.providers.base.hosts.hosts import seconds_left
from slurm_elastic.providers.libvirt.hosts import bindings
from slurm_elastic.providers.libvirt.machine import (
    ENDED,
    MIGRATED,
    NAMESPACE,
    OFF,
    STOPPED,
    UNKNOWN,
    DomainPlan,
    marked,
    tags_in,
    volumes,
)
from slurm_elastic.providers.libvirt.settings import LibvirtCloud

UNFINISHED = ".unfinished"
"""The end of the name of a volume which marks an image whose upload is not finished."""
_ABSENT = ("NO_DOMAIN", "NO_DOMAIN_METADATA", "NO_STORAGE_VOL")


def lookup(look: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - the bindings' things
    """The result of ``look(*arguments)``; None if the thing does not exist."""
    libvirt = bindings()
    try:
        return look(*arguments)
    except libvirt.libvirtError as error:
        if error.get_error_code() in [getattr(libvirt, f"VIR_ERR_{name}") for name in _ABSENT]:
            return None
        raise


def marks(domain: Any) -> Mapping[str, str] | None:  # noqa: ANN401
    """The marks of a machine; None if the domain is not ours."""
    text = lookup(domain.metadata, bindings().VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE)
    return None if text is None else tags_in(text)


def address(domain: Any, ranges: Sequence[str]) -> str | None:  # noqa: ANN401
    """The address from the network's DHCP, or one in ``ranges`` from the host's ARP table; None if
    neither has one.
    """
    leased = _addresses(domain, "LEASE")
    # Root on the machine decides what the ARP table says. Outside of the machines' own ranges it
    # could name the address of a login node, and slurmctld and the firewall would take it.
    claimed = _addresses(domain, "ARP") if ranges and not leased else []
    networks = [ip_network(text) for text in ranges]
    usable = [a for a in claimed if any(ip_address(a) in network for network in networks)]
    return next(iter((*leased, *usable)), None)


def _addresses(domain: Any, source: str) -> list[str]:  # noqa: ANN401
    libvirt = bindings()
    number = getattr(libvirt, f"VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_{source}")
    with suppress(libvirt.libvirtError):  # the domain is off, or the host lacks the source
        cards = domain.interfaceAddresses(number).values()
        return [str(info["addr"]) for card in cards for info in card["addrs"] or ()]
    return []


def capacity(
    connection: Any,  # noqa: ANN401
    unstarted: Collection[str],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The host's CPUs and MiB, and the sum over all running domains and the ``unstarted`` ones."""
    _, memory, cpus, *_ = connection.getInfo()
    domains = connection.listAllDomains(bindings().VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    domains += filter(
        None, (lookup(connection.lookupByUUIDString, domain_id) for domain_id in unstarted)
    )
    infos = [info for info in (lookup(domain.info) for domain in domains) if info]
    # libvirt gives the memory of the host in MiB, and that of a domain in KiB.
    return (cpus, memory), (sum(info[3] for info in infos), sum(info[1] >> 10 for info in infos))


def all_numbers(connection: Any) -> set[str]:  # noqa: ANN401
    """The UUIDs of all domains of the host, running or not, whoever made them."""
    return {domain.UUIDString() for domain in connection.listAllDomains()}


def image(connection: Any, settings: LibvirtCloud) -> tuple[Any, str, str, int]:  # noqa: ANN401
    """The storage pool, its directory, and the format and size (bytes) of the image in it.
    ProviderError if the image is not uploaded completely.
    """
    pool = connection.storagePoolLookupByName(settings.storage_pool)
    volume = pool.storageVolLookupByName(settings.image)
    if lookup(pool.storageVolLookupByName, settings.image + UNFINISHED):
        text = f"{settings.image} is being uploaded, or an upload of it was broken off"
        raise ProviderError(settings.name, "UnfinishedImage", text)
    path = Xml.fromstring(pool.XMLDesc()).findtext("target/path")  # noqa: S314
    return pool, path or "", kind_of(volume), volume.info()[1]


def kind_of(volume: Any) -> str:  # noqa: ANN401
    """The format of a volume."""
    kind = Xml.fromstring(volume.XMLDesc()).find("target/format")  # noqa: S314
    return "raw" if kind is None else str(kind.get("type", "raw"))


def start(connection: Any, plan: DomainPlan) -> None:  # noqa: ANN401
    """Define the domain, create its volumes and start it. Steps that were done before are
    skipped.
    """
    settings = plan.settings
    pool, path, kind, size = image(connection, settings)
    domain = lookup(connection.lookupByUUIDString, plan.id)
    domain = domain or connection.defineXML(plan.definition(path, time.time()))
    if domain.isActive():
        return
    backing = f"<path>{escape(path)}/{escape(settings.image)}</path><format type='{kind}'/>"
    disk, seed = volumes(plan.name)
    _volume(pool, disk, max(size, (plan.kind.disk or 0) << 30), "qcow2", backing)
    data = plan.seed()
    send(connection, _volume(pool, seed, len(data), "raw"), len(data), io.BytesIO(data).read)
    seconds_left()
    _tolerate_done(domain.create, domain.isActive)


def _volume(pool: Any, name: str, size: int, kind: str, backing: str = "") -> Any:  # noqa: ANN401
    existing = lookup(pool.storageVolLookupByName, name)
    return existing or new_volume(pool, name, size, kind, backing)


def new_volume(pool: Any, name: str, size: int, kind: str, backing: str = "") -> Any:  # noqa: ANN401
    """A new volume of ``size`` bytes. libvirt refuses if the name exists."""
    seconds_left()
    return pool.createXML(
        f"<volume><name>{escape(name)}</name><capacity>{size}</capacity>"
        f"<target><format type='{kind}'/></target><backingStore>{backing}</backingStore></volume>"
    )


def send(connection: Any, target: Any, size: int, read: Callable[[int], bytes]) -> None:  # noqa: ANN401
    """Fill a volume with ``size`` bytes before this thread's deadline."""

    def piece(_stream: Any, count: int, _nothing: None) -> bytes:  # noqa: ANN401
        seconds_left()
        return read(count)

    stream = connection.newStream()
    target.upload(stream, 0, size)
    stream.sendAll(piece, None)
    stream.finish()


def stop(connection: Any, number: str) -> None:  # noqa: ANN401
    """Mark the domain, then shut down its guest. If it is off already, it is only marked."""
    domain = lookup(connection.lookupByUUIDString, number)
    if domain is None:
        return
    # Before the shutdown: a domain without the mark counts as ended as soon as it is off.
    _mark(domain, {STOPPED: f"{time.time():.0f}"})
    if domain.isActive():
        seconds_left()
        _tolerate_done(domain.shutdown, lambda: not domain.isActive())


def boot(connection: Any, number: str) -> bool:  # noqa: ANN401
    """Start a stopped domain and remove the mark. Returns whether the domain exists."""
    domain = lookup(connection.lookupByUUIDString, number)
    if domain is None:
        return False
    if not domain.isActive():
        _tolerate_done(domain.create, domain.isActive)
    # Only after the start: without the mark a domain that is off counts as ended.
    _mark(domain, {}, without=STOPPED)
    return True


def _mark(domain: Any, added: Mapping[str, str], without: str = "") -> None:  # noqa: ANN401
    libvirt, tags = bindings(), dict(marks(domain) or {})
    new_tags = {key: value for key, value in tags.items() if key != without} | dict(added)
    if new_tags == tags:
        return
    # A running domain has a second definition, which only LIVE changes.
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
    flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    domain.setMetadata(kind, marked(new_tags), "slurm-elastic", NAMESPACE, flags)


def end(connection: Any, number: str, name: str, storage: str) -> None:  # noqa: ANN401
    """Power the domain off and delete its volumes. A domain that never ran is removed completely,
    or a late order might still start it. A domain that has just left this host keeps its volumes,
    because it runs elsewhere.
    """
    domain = lookup(connection.lookupByUUIDString, number)
    if domain is None or domain.state() == [OFF, MIGRATED]:
        return None
    # The domain counts as ended as soon as it is off and lacks the mark.
    _mark(domain, {}, without=STOPPED)
    if domain.isActive():
        _tolerate_done(domain.destroy, lambda: not domain.isActive())
    elif domain.state() == [OFF, UNKNOWN]:
        return remove(connection, number, name, storage)
    return _delete_volumes(connection, name, storage)


def note_end_elsewhere(connection: Any, number: str) -> None:  # noqa: ANN401
    """Mark the definition of a domain that was moved to another host and has ended there."""
    domain = lookup(connection.lookupByUUIDString, number)
    if domain is not None:
        _mark(domain, {ENDED: f"{time.time():.0f}"})


def remove(connection: Any, number: str, name: str, storage: str) -> None:  # noqa: ANN401
    """Remove every trace of the domain, unless it runs."""
    libvirt, domain = bindings(), lookup(connection.lookupByUUIDString, number)
    if domain is not None and domain.isActive():
        return
    # The definition goes last, because only its marks show that the volumes are ours.
    _delete_volumes(connection, name, storage)
    if domain is not None:
        # Backup programs make snapshots and checkpoints, and libvirt undefines no domain with any
        # of them.
        flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
        flags |= libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        # Other drivers, such as libvirt's own for tests, do not know the other two flags.
        if connection.getType() == "QEMU":
            flags |= libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            flags |= libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
        domain.undefineFlags(flags)


def _delete_volumes(connection: Any, name: str, storage: str) -> None:  # noqa: ANN401
    pool = connection.storagePoolLookupByName(storage)
    for volume in filter(None, (lookup(pool.storageVolLookupByName, v) for v in volumes(name))):
        volume.delete()


def _tolerate_done(do: Callable[[], object], is_done: Callable[[], bool]) -> None:
    """Call ``do``. An error about the domain's state is ignored if ``is_done`` already."""
    libvirt = bindings()
    try:
        do()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID or not is_done():
            raise
