"""Builds the requests that create machines. Pure.

One PUT creates a VM with its network card and disk. All three have ``deleteOption: Delete``, so the
end of the VM ends them, too. A card made by a call of its own would stay if the VM's call failed.
All of it can be read on the machine and in the portal, so it contains no secret.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import ONE_ZONE
from slurm_elastic.model.cluster import LaunchSpec, Market, Pool
from slurm_elastic.model.machine_options import Disk, gibibytes
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.joining import own_facts
from slurm_elastic.providers.base.machine_tags import marks_of
from slurm_elastic.providers.base.named import machine_name
from slurm_elastic.providers.base.tags import CLUSTER, GENERATION, NodeNames
from slurm_elastic.providers.base.user_data import facts_program, multipart, read_user_data

MAX_CUSTOM_DATA = 65535
"""Bytes of ``customData`` before base64."""
RESERVED_BYTES = 4096
"""Bytes of user data for the facts of a machine."""
NETWORK_API = "2022-11-01"
"""The version of the network interface by which Azure makes a VM's card. Compute accepts no newer
one.
"""
IF_NEW = {"If-None-Match": "*"}
"""With this header a PUT never changes a machine that exists: it is refused with 412."""
USER = "slurmadmin"
"""The user who has the SSH key. Azure wants one, and refuses names such as root and admin."""
UUID_DIGITS = 12


def parts_of(settings: AzureCloud, joining: str) -> tuple[str, ...]:
    """The parts of user data that all machines share. ConfigError if a file cannot be used, or if
    the parts are too long.
    """
    parts = tuple(filter(None, (joining, read_user_data(settings.user_data, settings.name))))
    size, room = len(_packed(parts)), MAX_CUSTOM_DATA - RESERVED_BYTES
    if size > room:
        raise ConfigError(
            f"user_data of cloud {settings.name!r}: {settings.user_data or 'the text of join'} is "
            f"{size} bytes when packed; Azure leaves room for {room}"
        )
    return parts


def part_name(cluster_uuid: str, machine: str) -> str:
    """The name of the card and the disk of a machine. It proves whose they are, even without a
    machine and without tags.
    """
    return f"{machine}_{_short(cluster_uuid)}"


def machine_of_part(cluster_uuid: str, name: str, tags: Mapping[str, str]) -> str:
    """The machine of a card or disk with this name and these tags; "" if it is not this cluster's.

    Azure may append a word to the name of a card that it makes for a machine, so tags count, too.
    """
    if not cluster_uuid:
        return ""  # else any name with a "_" would be ours
    machine, mark, rest = name.partition(f"_{_short(cluster_uuid)}")
    if machine and mark and (not rest or rest.startswith(("-", "_"))):
        return machine
    node = NodeNames().node(tags, 0)
    is_ours = tags.get(CLUSTER) == cluster_uuid and node
    return machine_name(cluster_uuid, tags.get(GENERATION, ""), node) if is_ours else ""


def _short(cluster_uuid: str) -> str:
    return cluster_uuid.replace("-", "")[:UUID_DIGITS]


def vm_name(cluster: Cluster, spec: LaunchSpec, node: str) -> str:
    """The name of the VM for a node of a launch, which is its id."""
    return machine_name(cluster.uuid or "", spec.generation, node)


def body(
    settings: AzureCloud,
    cluster: Cluster,
    spec: LaunchSpec,
    node: str,
    parts: Sequence[str],
    now: float,
) -> Mapping[str, object]:
    """The body of the PUT for the machine of ``node``."""
    marks = marks_of(spec, node, cluster, settings.name, now)
    name = vm_name(cluster, spec, node)
    part = part_name(cluster.uuid or "", name)
    facts = own_facts(cluster, spec, node)
    document = _packed((f"#cloud-boothook\n{facts_program(facts)}", *parts))
    properties: dict[str, object] = {
        "hardwareProfile": {"vmSize": spec.offer.instance_type},
        "storageProfile": {
            "imageReference": image_reference(image_of(settings, spec.pool)),
            "osDisk": _os_disk(part, spec.pool.machine.root_disk),
        },
        "osProfile": {
            "computerName": node,
            "adminUsername": USER,
            "customData": base64.b64encode(document).decode(),
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [_ssh_key(settings)]},
            },
        },
        "networkProfile": {
            "networkApiVersion": NETWORK_API,
            "networkInterfaceConfigurations": [_card(settings, part, marks)],
        },
        **_market(spec),
    }
    vm: dict[str, object] = {"location": settings.region, "tags": marks, "properties": properties}
    if spec.offer.zone != ONE_ZONE:
        vm["zones"] = [spec.offer.zone]
    if settings.machine_identity:
        identities: dict[str, object] = {settings.machine_identity: {}}
        vm["identity"] = {"type": "UserAssigned", "userAssignedIdentities": identities}
    return vm


def image_reference(text: str) -> dict[str, str]:
    """The reference to an image, from a URN of the marketplace or a resource id."""
    if text.startswith("/"):
        return {"id": text}
    publisher, offer, sku, version = text.split(":")
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": version}


def image_of(settings: AzureCloud, pool: Pool) -> str:
    """The image from which machines of the pool start."""
    choice = pool.image
    return settings.image if choice is None or choice.id is None else choice.id


def _market(spec: LaunchSpec) -> dict[str, object]:
    """The properties that say how the machine is sold. A spot machine that Azure takes is deleted:
    a deallocated one would keep its disk.
    """
    offer = spec.offer
    if offer.market is not Market.SPOT:
        return {}
    bid = spec.pool.bid(offer)
    # -1: up to the price on demand.
    price = -1 if bid is None else round(bid, 5)
    return {
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": price},
    }


def _os_disk(name: str, disk: Disk | None) -> dict[str, object]:
    os_disk: dict[str, object] = {
        "name": name,
        "createOption": "FromImage",
        # The default is Detach: then each machine would leave its disk.
        "deleteOption": "Delete",
        "caching": "ReadWrite",
    }
    managed: dict[str, object] = {}
    if disk is not None and disk.size is not None:
        os_disk["diskSizeGB"] = gibibytes(disk.size)
    if disk is not None and disk.type is not None:
        managed["storageAccountType"] = disk.type
    if disk is not None and disk.kms_key is not None:
        managed["diskEncryptionSet"] = {"id": disk.kms_key}
    return os_disk | ({"managedDisk": managed} if managed else {})


def _card(settings: AzureCloud, name: str, marks: Mapping[str, str]) -> dict[str, object]:
    """The network card, without a public address."""
    at_subnet = {"primary": True, "subnet": {"id": settings.subnet}}
    address = {"name": "primary", "properties": at_subnet}
    properties: dict[str, object] = {
        "primary": True,
        "deleteOption": "Delete",
        "enableAcceleratedNetworking": settings.accelerated_networking,
        "ipConfigurations": [address],
    }
    if settings.security_group:
        properties["networkSecurityGroup"] = {"id": settings.security_group}
    return {"name": name, "properties": properties, "tags": marks}


def _ssh_key(settings: AzureCloud) -> dict[str, str]:
    path = f"/home/{USER}/.ssh/authorized_keys"
    return {"path": path, "keyData": settings.ssh_public_key.strip()}


def _packed(parts: Sequence[str]) -> bytes:
    """The parts as one document, compressed if it is long. cloud-init decompresses it itself."""
    document = multipart(parts).encode()
    # gzip writes a time into its header by default; the same launch must give the same bytes.
    return gzip.compress(document, mtime=0) if len(document) > MAX_CUSTOM_DATA // 2 else document
