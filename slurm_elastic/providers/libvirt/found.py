"""Finds KVM on this host, through its libvirt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.pages import page
from slurm_elastic.config.found import Found, SearchPlace, unanswered, unusable
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.libvirt.hosts import LibvirtHosts
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtHost, Virtualization

SOCKETS = (Path("/run/libvirt/libvirt-sock"), Path("/run/libvirt/virtqemud-sock"))
URI = "qemu:///system"
TIMEOUT_S = 10.0
HERE = "here"


def found(place: SearchPlace) -> Iterator[Found]:
    """The host behind the socket, with an image and a network for nodes."""
    del place
    sockets = [socket for socket in SOCKETS if socket.exists()]
    if not sockets:
        return
    cloud = Found(
        name="lab", provider="libvirt", location=Location.ON_PREMISES, usable=True, joins=True,
        what=f"KVM of this host ({URI})", sized=True,
        reads={str(sockets[0]): f"put {{user}} into the group libvirt ({page('libvirt')})"},
    )  # fmt: skip
    hosts = LibvirtHosts(LibvirtCloud(
        name=cloud.name, location=cloud.location, hosts={HERE: LibvirtHost(uri=URI)}, image="?",
        types={}, api_timeout=TIMEOUT_S,
    ))  # fmt: skip
    try:
        with hosts.limited():
            yield hosts.call(HERE, lambda connection: _complete(cloud, connection))
    except ProviderError as error:
        yield unanswered(cloud, "the daemon (journalctl -u libvirtd)", error)


def _complete(cloud: Found, connection: Any) -> Found:  # noqa: ANN401
    pools = [pool for pool in connection.listAllStoragePools() if pool.isActive()]
    volumes = ((pool.name(), v.name()) for pool in pools for v in pool.listAllVolumes())
    images = [v for v in volumes if "slurm" in v[1].lower()]  # others are disks of machines
    # Prefer other networks: the head cannot reach machines behind libvirt's own network "default".
    active = (net.name() for net in connection.listAllNetworks() if net.isActive())
    networks = sorted(active, key=lambda name: (name == "default", name))
    if not images or not networks:
        missing = "an active network" if images else "an image with slurm in its name"
        return unusable(cloud, f"make {missing} ({page('libvirt')})")
    storage, image = images[0]
    capabilities = connection.getCapabilities()
    keys: dict[str, object] = {
        "hosts": {HERE: {"uri": URI}}, "image": image, "storage_pool": storage,
        "network": networks[0],
    }  # fmt: skip
    kind = next(
        (v for v in Virtualization if f"<domain type='{v}'" in capabilities), Virtualization.KVM
    )
    if kind is not Virtualization.KVM:
        keys["virtualization"] = kind.value
    _, memory, cpus, *_ = connection.getInfo()
    host_type = KnownType(name=HERE, cpus=cpus, memory=memory * 9 // 10)
    return replace(cloud, keys=keys, types=(host_type,))
