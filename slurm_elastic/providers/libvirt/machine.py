"""A machine as a domain of libvirt, with its marks in the metadata from its definition on. Pure."""

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
"""The mark of a machine that is off on purpose, since when (Unix time)."""
FRESH = 600.0
"""Seconds after its definition in which a machine that was never started may yet be."""
OFF, UNKNOWN = 5, 0
_STATES = {4: InstanceState.STOPPING, OFF: InstanceState.TERMINATED, 6: InstanceState.TERMINATED}
"""virDomainState: being shut down, off, crashed. All else, paused too, runs."""
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
    """STOPPED: off, and marked so before. PENDING: never started (libvirt knows no reason why it is
    off) though just defined.
    """
    if state == OFF and STOPPED in tags:
        return InstanceState.STOPPED
    made = tags.get(MADE, "")
    # Not of older ones: after a restart of the host, or of libvirtd, there is no reason either.
    if (state, reason) == (OFF, UNKNOWN) and made.isdecimal() and now - float(made) < FRESH:
        return InstanceState.PENDING
    return _STATES.get(state, InstanceState.RUNNING)


def tags_in(metadata: str) -> dict[str, str]:
    """The marks that ``DomainPlan.definition`` wrote."""
    found = Xml.fromstring(metadata).iter("tag")  # noqa: S314 - libvirt has read and written it
    return {one.get("key", ""): one.text or "" for one in found}


def is_original(number: str, tags: Mapping[str, str]) -> bool:
    """Whether these marks are of the domain with that UUID; a clone of a machine has them, too."""
    cluster, cloud, generation = (tags.get(key, "") for key in (CLUSTER, CLOUD, GENERATION))
    return number == _number(cluster, cloud, generation, NodeNames().node(tags, 0))


def _number(*words: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "\n".join((NAMESPACE, *words))))


def volumes(name: str) -> tuple[str, str]:
    """The names of the disk and the seed of a machine of that name; no other has it."""
    return f"{name}.qcow2", f"{name}-seed.iso"


def template(settings: LibvirtCloud) -> str:
    """The domain to start from; ConfigError where the site's cannot be used."""
    if settings.domain is None:
        return _DOMAIN.format(network=settings.network)
    at = f"domain of cloud {settings.name!r}: {settings.domain}"
    try:
        text = read_part(settings.domain, f"domain of cloud {settings.name!r}")
        root = Xml.fromstring(text)  # noqa: S314 - the site's own
    except Xml.ParseError as error:
        raise ConfigError(f"{at} cannot be used: {error}") from error
    if root.tag != "domain" or root.find("devices") is None:
        raise ConfigError(f"{at} is <{root.tag}>, expected a <domain> with <devices>")
    return text


def _marked(tags: Mapping[str, str]) -> Xml.Element:
    own = Xml.Element(f"{{{NAMESPACE}}}machine")
    for key, value in tags.items():
        Xml.SubElement(own, f"{{{NAMESPACE}}}tag", key=key).text = value
    return own


def marked(tags: Mapping[str, str]) -> str:
    """The metadata that says these."""
    return Xml.tostring(_marked(tags), encoding="unicode")


class DomainPlan(Struct, frozen=True, kw_only=True):
    """A machine to be: ``text`` is the domain to start from, ``parts`` are its user data's."""

    settings: LibvirtCloud
    cluster: Cluster
    spec: LaunchSpec
    node: str
    kind: LibvirtType
    text: str
    parts: tuple[str, ...]

    @property
    def id(self) -> str:
        """Its UUID, the launch's token for this node: whoever makes it again makes the same."""
        cluster, cloud = self.cluster.uuid or "", self.settings.name
        return _number(cluster, cloud, self.spec.generation, self.node)

    @property
    def name(self) -> str:
        """For people, and for libvirt, which has a name only once."""
        return f"{self.cluster.name}-{self.node}-{self.id[:13]}".replace("/", "-")

    def seed(self) -> bytes:
        """The image of its second disk, from which it learns its node."""
        facts = own_facts(self.cluster, self.spec, self.node)
        first = f"#cloud-boothook\n{facts_program(facts)}"
        return seed(self.id, self.node, (first, *self.parts))

    def definition(self, directory: str, now: float) -> str:
        """The domain's XML, with its two volumes in the storage pool's directory."""
        root = Xml.fromstring(self.text)  # noqa: S314 - the site's own, or ours
        root.set("type", self.settings.virtualization)
        memory = str(self.kind.memory << 10)
        values = {"name": self.name, "uuid": self.id, "vcpu": str(self.kind.cpus)}
        values |= {"memory": memory, "currentMemory": memory}
        for tag in (*values, "metadata"):
            for old in root.findall(tag):
                root.remove(old)
        for tag, value in values.items():
            Xml.SubElement(root, tag).text = value
        told = marks_of(self.spec, self.node, self.cluster, self.settings.name, now)
        Xml.SubElement(root, "metadata").append(_marked(told | {STORAGE: self.settings.storage}))
        for volume, kind, place in zip(volumes(self.name), ("qcow2", "raw"), "ab", strict=True):
            disk = Xml.SubElement(root.findall("devices")[0], "disk", type="file", device="disk")
            Xml.SubElement(disk, "driver", name="qemu", type=kind)
            Xml.SubElement(disk, "source", file=f"{directory}/{volume}")
            Xml.SubElement(disk, "target", dev=f"vd{place}", bus="virtio")
        Xml.SubElement(disk, "readonly")
        return Xml.tostring(root, encoding="unicode")
