"""Calls to one host: what is there, and a machine's start and end. libvirtError."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import escape

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.providers.base.hosts import seconds_left
from slurm_elastic.providers.libvirt.hosts import bindings
from slurm_elastic.providers.libvirt.machine import (
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
"""The end of the name of a volume that says of an image that its upload is not at its end."""
_ABSENT = ("NO_DOMAIN", "NO_DOMAIN_METADATA", "NO_STORAGE_VOL")


def found(look: Callable[..., Any], *asked: object) -> Any:  # noqa: ANN401 - the bindings' things
    """The thing that is looked up; None where there is no such thing."""
    libvirt = bindings()
    try:
        return look(*asked)
    except libvirt.libvirtError as error:
        if error.get_error_code() in [getattr(libvirt, f"VIR_ERR_{name}") for name in _ABSENT]:
            return None
        raise


def marks(domain: Any) -> Mapping[str, str] | None:  # noqa: ANN401
    """The marks of a machine; None of a domain that is not ours."""
    text = found(domain.metadata, bindings().VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE)
    return None if text is None else tags_in(text)


def address(domain: Any) -> str | None:  # noqa: ANN401
    """As its network's DHCP or the host's neighbours have it; None where neither does."""
    libvirt = bindings()
    for source in ("LEASE", "ARP"):
        with suppress(libvirt.libvirtError):  # off, or no such source
            number = getattr(libvirt, f"VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_{source}")
            cards = domain.interfaceAddresses(number).values()
            if known := [one["addr"] for card in cards for one in card["addrs"] or ()]:
                return str(known[0])
    return None


def capacity(connection: Any, halves: Collection[str]) -> tuple[tuple[int, int], tuple[int, int]]:  # noqa: ANN401
    """The host's cpus and MiB, and those of all domains that run there, and of ``halves``."""
    _, memory, cpus, *_ = connection.getInfo()
    there = connection.listAllDomains(bindings().VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    there += filter(None, (found(connection.lookupByUUIDString, half) for half in halves))
    told = [one for one in (found(domain.info) for domain in there) if one]
    return (cpus, memory), (sum(one[3] for one in told), sum(one[1] >> 10 for one in told))


def image(connection: Any, settings: LibvirtCloud) -> tuple[Any, str, str, int]:  # noqa: ANN401
    """The storage pool with its directory, and the image there: its format, and its bytes.
    ProviderError for one that is not uploaded whole.
    """
    pool = connection.storagePoolLookupByName(settings.storage)
    one = pool.storageVolLookupByName(settings.image)
    if found(pool.storageVolLookupByName, settings.image + UNFINISHED):
        text = f"{settings.image} is being uploaded, or an upload of it was broken off"
        raise ProviderError(settings.name, "UnfinishedImage", text)
    path = Xml.fromstring(pool.XMLDesc()).findtext("target/path")  # noqa: S314
    return pool, path or "", kind_of(one), one.info()[1]


def kind_of(one: Any) -> str:  # noqa: ANN401
    """The format of a volume."""
    kind = Xml.fromstring(one.XMLDesc()).find("target/format")  # noqa: S314
    return "raw" if kind is None else str(kind.get("type", "raw"))


def start(connection: Any, plan: DomainPlan) -> None:  # noqa: ANN401
    """Define it, make its volumes, start it; what is there is left as it is."""
    settings = plan.settings
    pool, path, kind, size = image(connection, settings)
    domain = found(connection.lookupByUUIDString, plan.id)
    domain = domain or connection.defineXML(plan.definition(path, time.time()))
    if domain.isActive():
        return
    backing = f"<path>{escape(path)}/{escape(settings.image)}</path><format type='{kind}'/>"
    disk, seed = volumes(plan.name)
    _volume(pool, disk, max(size, (plan.kind.disk or 0) << 30), "qcow2", backing)
    data = plan.seed()
    send(connection, _volume(pool, seed, len(data), "raw"), len(data), io.BytesIO(data).read)
    seconds_left()
    _settled(domain.create, domain.isActive)


def _volume(pool: Any, name: str, size: int, kind: str, backing: str = "") -> Any:  # noqa: ANN401
    there = found(pool.storageVolLookupByName, name)
    return there or new_volume(pool, name, size, kind, backing)


def new_volume(pool: Any, name: str, size: int, kind: str, backing: str = "") -> Any:  # noqa: ANN401
    """One of ``size`` bytes; refused where there is one of that name."""
    seconds_left()
    return pool.createXML(
        f"<volume><name>{escape(name)}</name><capacity>{size}</capacity>"
        f"<target><format type='{kind}'/></target><backingStore>{backing}</backingStore></volume>"
    )


def send(connection: Any, target: Any, size: int, read: Callable[[int], bytes]) -> None:  # noqa: ANN401
    """Fill a volume with ``size`` bytes, before this thread's deadline."""

    def piece(_stream: Any, count: int, _nothing: None) -> bytes:  # noqa: ANN401
        seconds_left()
        return read(count)

    stream = connection.newStream()
    target.upload(stream, 0, size)
    stream.sendAll(piece, None)
    stream.finish()


def stop(connection: Any, number: str) -> None:  # noqa: ANN401
    """Mark it, then have its guest shut down; one that is off already is only marked."""
    domain = found(connection.lookupByUUIDString, number)
    if domain is None:
        return
    # Before: one that is off without the mark has ended.
    _mark(domain, {STOPPED: f"{time.time():.0f}"})
    if domain.isActive():
        seconds_left()
        _settled(domain.shutdown, lambda: not domain.isActive())


def boot(connection: Any, number: str) -> bool:  # noqa: ANN401
    """Start one that was stopped, and take the mark away; whether it is there."""
    domain = found(connection.lookupByUUIDString, number)
    if domain is None:
        return False
    if not domain.isActive():
        _settled(domain.create, domain.isActive)
    # Only when it runs: one that is off without the mark has ended.
    _mark(domain, {}, without=STOPPED)
    return True


def _mark(domain: Any, more: Mapping[str, str], without: str = "") -> None:  # noqa: ANN401
    libvirt, tags = bindings(), dict(marks(domain) or {})
    kept = {key: value for key, value in tags.items() if key != without} | dict(more)
    if kept == tags:
        return
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
    flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    domain.setMetadata(kind, marked(kept), "slurm-elastic", NAMESPACE, flags)


def end(connection: Any, number: str, name: str, storage: str) -> None:  # noqa: ANN401
    """Have it run no more, and its volumes go; one that never ran goes whole, or it might yet."""
    domain = found(connection.lookupByUUIDString, number)
    if domain is not None:
        # From now on, one that is off has ended.
        _mark(domain, {}, without=STOPPED)
    if domain is not None and domain.isActive():
        _settled(domain.destroy, lambda: not domain.isActive())
    elif domain is not None and domain.state() == [OFF, UNKNOWN]:
        return remove(connection, number, name, storage)
    return _drop(connection, name, storage)


def remove(connection: Any, number: str, name: str, storage: str) -> None:  # noqa: ANN401
    """Have nothing of it left. A running one stays."""
    libvirt, domain = bindings(), found(connection.lookupByUUIDString, number)
    if domain is not None and domain.isActive():
        return
    # The definition goes last: by its marks the volumes are known to be ours.
    _drop(connection, name, storage)
    if domain is not None:
        flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
        domain.undefineFlags(flags if connection.getType() == "QEMU" else 0)


def _drop(connection: Any, name: str, storage: str) -> None:  # noqa: ANN401
    pool = connection.storagePoolLookupByName(storage)
    for one in filter(None, (found(pool.storageVolLookupByName, v) for v in volumes(name))):
        one.delete()


def _settled(do: Callable[[], object], done: Callable[[], bool]) -> None:
    """That it is in no state for it is no error where it is ``done`` already."""
    libvirt = bindings()
    try:
        do()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID or not done():
            raise
