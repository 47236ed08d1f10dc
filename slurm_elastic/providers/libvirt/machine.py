"""A machine as a libvirt domain. Its marks are in the domain's metadata from the definition on.
Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from xml.etree import ElementTree as Xml

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import InstanceState, LaunchSpec
from slurm_elastic.providers.base.joining import own_facts
from slurm_elastic.providers.base.machine_tags import MADE, marks_of
from slurm_elastic.providers.base.nocloud import seed
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, GENERATION, PREFIX, NodeNames
from slurm_elastic.providers.base.user_data import facts_program, read_part
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtType

NAMESPACE = "urn:slurm-elastic:machine:1"
STORAGE = PREFIX + "storage"
STOPPED = PREFIX + "stopped"
"""The mark of a machine deliberately switched off: since when (Unix time)."""
ENDED = PREFIX + "ended"
"""The mark of a machine that was moved to another host and has ended there (Unix time)."""
START_WITHIN_S = 600.0
"""For so long after its definition a machine that was never started may still be started."""
OFF, UNKNOWN, MIGRATED = 5, 0, 4
_STATES = {4: InstanceState.STOPPING, OFF: InstanceState.TERMINATED, 6: InstanceState.TERMINATED}
"""virDomainState: being shut down, off, crashed. A domain in any other state runs, even a paused
one.
"""
_DOMAIN = """<domain>
  <os><type>hvm</type></os>
  <features><acpi/><apic/></features>
  <cpu mode="maximum"/>
  <devices>
    <interface type="network"><source network="{network}"/><model type="virtio"/></interface>
    <serial type="pty"/>
    <rng model="virtio"><backend model="random">/dev/urandom</backend></rng>
  </devices>
</domain>"""


def state_of(state: int, reason: int, tags: Mapping[str, str], now: float) -> InstanceState:
    """The machine's state. STOPPED: off, and marked before that. PENDING: just defined and never
    started, which libvirt shows as off without a reason.
    """
    if is_moved(state, reason, tags):
        return InstanceState.RUNNING
    if state == OFF and STOPPED in tags:
        return InstanceState.STOPPED
    made_at = tags.get(MADE, "")
    # Only for a while after its definition: after a restart of the host or of libvirtd every domain
    # is off without a reason.
    if (
        (state, reason) == (OFF, UNKNOWN)
        and made_at.isdecimal()
        and now - float(made_at) < START_WITHIN_S
    ):
        return InstanceState.PENDING
    return _STATES.get(state, InstanceState.RUNNING)


def is_moved(state: int, reason: int, tags: Mapping[str, str]) -> bool:
    """Whether a person has moved the machine to another host (``virsh migrate``). The definition
    that stays here is off, and the machine runs.
    """
    return (state, reason) == (OFF, MIGRATED) and ENDED not in tags


def tags_in(metadata: str) -> dict[str, str]:
    """The marks that ``DomainPlan.definition`` wrote."""
    elements = Xml.fromstring(metadata).iter("tag")  # noqa: S314 - libvirt has read and written it
    return {element.get("key", ""): element.text or "" for element in elements}


def is_original(domain_id: str, tags: Mapping[str, str]) -> bool:
    """Whether the marks belong to the domain with this UUID. A clone of a machine has the same
    marks.
    """
    cluster, cloud, generation = (tags.get(key, "") for key in (CLUSTER, CLOUD, GENERATION))
    return domain_id == _uuid_of(cluster, cloud, generation, NodeNames().node(tags, 0))


def _uuid_of(*identity: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "\n".join((NAMESPACE, *identity))))


def volumes(name: str) -> tuple[str, str]:
    """The names of the machine's disk and seed. No other machine has them."""
    return f"{name}.qcow2", f"{name}-seed.iso"


def template(settings: LibvirtCloud) -> str:
    """The domain XML to start from. ConfigError if the site's own cannot be used."""
    if settings.domain_file is None:
        return _DOMAIN.format(network=settings.network)
    where = f"domain of cloud {settings.name!r}: {settings.domain_file}"
    try:
        text = read_part(settings.domain_file, f"domain of cloud {settings.name!r}")
        root = Xml.fromstring(text)  # noqa: S314 - the site's own
    except Xml.ParseError as error:
        raise ConfigError(f"{where} cannot be used: {error}") from error
    if root.tag != "domain" or root.find("devices") is None:
        raise ConfigError(f"{where} is <{root.tag}>, expected a <domain> with <devices>")
    return text


def _marked(tags: Mapping[str, str]) -> Xml.Element:
    element = Xml.Element(f"{{{NAMESPACE}}}machine")
    for key, value in tags.items():
        Xml.SubElement(element, f"{{{NAMESPACE}}}tag", key=key).text = value
    return element


def marked(tags: Mapping[str, str]) -> str:
    """The metadata XML with these marks."""
    return Xml.tostring(_marked(tags), encoding="unicode")


class DomainPlan(Struct, frozen=True, kw_only=True):
    """A machine that will be created. ``text``: the domain XML to start from. ``parts``: its user
    data.
    """

    settings: LibvirtCloud
    cluster: Cluster
    spec: LaunchSpec
    node: str
    kind: LibvirtType
    text: str
    parts: tuple[str, ...]

    @property
    def id(self) -> str:
        """The domain's UUID. It serves as the launch's token for this node: a second creation
        creates the same machine.
        """
        cluster, cloud = self.cluster.uuid or "", self.settings.name
        return _uuid_of(cluster, cloud, self.spec.generation, self.node)

    @property
    def name(self) -> str:
        """The domain's name, for people. libvirt accepts each name only once."""
        return f"{self.cluster.name}-{self.node}-{self.id[:13]}".replace("/", "-")

    def seed(self) -> bytes:
        """The image of the machine's second disk, from which the machine reads its node."""
        facts = own_facts(self.cluster, self.spec, self.node)
        first_part = f"#cloud-boothook\n{facts_program(facts)}"
        return seed(self.id, self.node, (first_part, *self.parts))

    def definition(self, directory: str, now: float) -> str:
        """The domain's XML with its two volumes, which are in ``directory`` of the storage pool."""
        root = Xml.fromstring(self.text)  # noqa: S314 - the site's own, or ours
        root.set("type", self.settings.virtualization)
        # libvirt counts KiB.
        memory = str(self.kind.memory << 10)
        values = {"name": self.name, "uuid": self.id, "vcpu": str(self.kind.cpus)}
        values |= {"memory": memory, "currentMemory": memory}
        for tag in (*values, "metadata"):
            for element in root.findall(tag):
                root.remove(element)
        for tag, value in values.items():
            Xml.SubElement(root, tag).text = value
        tags = marks_of(self.spec, self.node, self.cluster, self.settings.name, now)
        Xml.SubElement(root, "metadata").append(
            _marked(tags | {STORAGE: self.settings.storage_pool})
        )
        for volume, kind, place in zip(volumes(self.name), ("qcow2", "raw"), "ab", strict=True):
            disk = Xml.SubElement(root.findall("devices")[0], "disk", type="file", device="disk")
            Xml.SubElement(disk, "driver", name="qemu", type=kind)
            Xml.SubElement(disk, "source", file=f"{directory}/{volume}")
            Xml.SubElement(disk, "target", dev=f"vd{place}", bus="virtio")
        # The last disk of the loop is the seed.
        Xml.SubElement(disk, "readonly")
        return Xml.tostring(root, encoding="unicode")
