"""The libvirt provider's cloud for tests: a host of libvirtd's test driver, or of its qemu."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from libvirt_hosts import FROM_ACCESS, FROM_QEMU, FROM_RPC, FROM_STORAGE, Daemon, Fault, Proxy
from patience import eventually

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.libvirt.hosts import bindings
from slurm_elastic.providers.libvirt.machine import NAMESPACE
from slurm_elastic.providers.libvirt.settings import (
    LibvirtCloud,
    LibvirtHost,
    LibvirtType,
    Virtualization,
)
from slurm_elastic.testing.contract import UUID

NAME = "lab"
HOST = "kvm1"
IMAGE = "node.qcow2"
DRIVERS = {"test": "test:///default", "qemu": "qemu:///session"}
KINDS = {
    CapacityError: (38, FROM_STORAGE, "cannot write data to file '/x': No space left on device"),
    QuotaError: (38, FROM_STORAGE, "cannot write data to file '/x': Disk quota exceeded"),
    AuthError: (88, FROM_ACCESS, "access denied: 'connect' denied access"),
    TransientError: (68, FROM_QEMU, "Timed out during operation: cannot acquire state change lock"),
}
LOST = (38, FROM_RPC, "Cannot recv data: Connection reset by peer")
BARE = """<domain><os><type>hvm</type></os><cpu mode="maximum"/><devices/></domain>"""


class LibvirtBed:
    """Its machines are the domains of one host; those of qemu have nothing to boot."""

    pool = Pool(
        name="vm",
        cloud=NAME,
        nodes=tuple(f"vm{n}" for n in range(1, 1101)),
        cpus=1,
        real_memory=16,
        instance_types=("small",),
        markets=(Market.RESERVED,),
    )

    def __init__(self, daemon: Daemon, proxy: Proxy, driver: str, place: Path) -> None:
        self.daemon, self.proxy, self.driver, self.slots = daemon, proxy, driver, 2000
        self.hand = bindings().open(daemon.uri(DRIVERS[driver]))
        self.others = {d.UUIDString() for d in self.hand.listAllDomains()}
        self.domain = place / "domain.xml"
        self.domain.write_text(BARE)
        self.storage = self._storage()
        self.patch = pytest.MonkeyPatch()
        if driver == "test":  # it has no contents of volumes
            self.patch.setattr(bindings().virStorageVol, "upload", lambda *_: 0)
            self.patch.setattr(bindings().virStream, "sendAll", lambda *_: None)
            self.patch.setattr(bindings().virStream, "finish", lambda *_: 0)

    def _pool(self) -> Any:
        there = [p for p in self.hand.listAllStoragePools() if p.name() == "default-pool"]
        if there:
            return there[0]
        return self.hand.storagePoolCreateXML(
            "<pool type='dir'><name>default-pool</name>"
            f"<target><path>{self.daemon.directory}/images</path></target></pool>"
        )

    def _storage(self) -> Any:
        """The pool with the image."""
        pool = self._pool()
        pool.createXML(
            f"<volume><name>{IMAGE}</name><capacity unit='MiB'>1</capacity>"
            "<target><format type='qcow2'/></target></volume>"
        )
        return pool

    def close(self) -> None:
        self.patch.undo()
        self.proxy.heal()
        for domain in self.hand.listAllDomains():
            if domain.UUIDString() not in self.others:
                if domain.isActive():
                    domain.destroy()
                domain.undefine()
        eventually(self._without_volumes, 60, lambda: f"{self.storage.name()} has volumes in use")
        if self.driver == "qemu":
            self.storage.destroy()
        self.hand.close()

    def _without_volumes(self) -> bool:
        """A connection that was cut may still write to one for a moment."""
        for volume in self.storage.listAllVolumes():
            with suppress(bindings().libvirtError):
                volume.delete()
        return not self.storage.listAllVolumes()

    def restart(self) -> None:
        """Another libvirtd in the place of the first; machines go on."""
        self.hand.close()
        self.daemon.restart()
        self.hand = bindings().open(self.daemon.uri(DRIVERS[self.driver]))
        self.storage = self._pool()

    def settings(self, **more: Any) -> LibvirtCloud:
        used = sum(d.info()[3] for d in self.hand.listAllDomains() if d.UUIDString() in self.others)
        uri = self.daemon.uri(DRIVERS[self.driver], self.proxy.path)
        host = LibvirtHost(uri=uri, cpus=max(self.slots + used, 1), memory=10**8)
        values: dict[str, Any] = {
            "hosts": {HOST: host},
            "image": IMAGE,
            "storage_pool": "default-pool",
            "types": {"small": LibvirtType(cpus=1, memory=16, price=0.02)},
            "virtualization": Virtualization(self.driver),
            "domain_file": str(self.domain),
        }
        return LibvirtCloud(name=NAME, location=Location.ON_PREMISES, **(values | more))

    def open(self, cluster: str = UUID, timeout: float = 60.0, **more: Any) -> Provider:
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=cluster)
        )

    def domains(self) -> dict[str, Any]:
        """All but those that were there before, by id."""
        there = {d.UUIDString(): d for d in self.hand.listAllDomains()}
        return {number: d for number, d in there.items() if number not in self.others}

    def alive(self) -> set[str]:
        """Domains that run or may yet be started."""
        return {n for n, d in self.domains().items() if d.isActive() or d.state() == [5, 0]}

    def volumes(self) -> set[str]:
        return {v.name() for v in self.storage.listAllVolumes()} - {IMAGE}

    def add_foreign(self, cpus: int = 1) -> set[str]:
        number = str(uuid.uuid4())
        self.hand.defineXML(
            f"<domain type='{self.driver}'><name>{number}</name><uuid>{number}</uuid>"
            f"<memory unit='MiB'>16</memory><vcpu>{cpus}</vcpu><os><type>hvm</type></os><devices/></domain>"
        ).create()
        return {number}

    def limit(self, count: int) -> None:
        self.slots = count

    def fail_late(self, node: str) -> Callable[[], None]:
        """Its emulator crashes."""

        def fail() -> None:
            (found,) = [m.id for m in self.open().instances() if m.node == node]
            self.domains()[found].destroy()

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        self.proxy.fail(Fault(error=KINDS[error]))

    def heal(self) -> None:
        self.proxy.heal()

    def lose_answers(self) -> None:
        self.proxy.fail(Fault(procedures=("create",), error=LOST, after=True))

    def fall_silent(self) -> None:
        self.proxy.fail(Fault(silent=True))

    def protect(self, machine: str) -> None:
        refused = (55, FROM_QEMU, "Requested operation is not valid: domain is protected")
        number = uuid.UUID(machine).bytes
        self.proxy.fail(Fault(procedures=("destroy",), error=refused, match=number))

    def unprotect(self, machine: str) -> None:
        del machine
        self.proxy.heal()

    def marks(self, number: str) -> str:
        return str(self.domains()[number].metadata(2, NAMESPACE))
