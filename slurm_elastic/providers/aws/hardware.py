"""Builds the parts of requests that a pool's section ``machine`` changes: disks, network
interfaces, placement and metadata options. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.machine_options import CLUSTER_GROUP, Disk, gibibytes
from slurm_elastic.providers.aws.settings import AwsCloud, Strategy

_MAX_GROUP = 255
_EXTRA_DEVICES = "fghijklmnop"
"""EC2 recommends /dev/sd[f-p] for further disks ("Device names for volumes")."""
_DISK_FIELDS = {
    "type": "VolumeType",
    "iops": "Iops",
    "throughput": "Throughput",
    "encrypted": "Encrypted",
    "kms_key": "KmsKeyId",
}


class HardwareFacts(Struct, frozen=True, kw_only=True):
    """EC2's answers that a launch needs. ``root_device``: the name of the image's system disk.
    ``efa_interfaces``: how many the type has. Empty if the pool's options do not need them.
    """

    root_device: str = ""
    efa_interfaces: int = 0


NO_FACTS = HardwareFacts()


def for_pool(settings: AwsCloud, pool: Pool) -> AwsCloud:
    """The settings with the pool's own subnets in place of the cloud's."""
    if not pool.machine.subnets:
        return settings
    return structs.replace(settings, subnets=pool.machine.subnets, zones=())


def uses_fleets(settings: AwsCloud, pools: Iterable[Pool]) -> bool:
    """Whether some pool is launched by fleets. A pool with EFA is not: the types of a fleet share
    one template, but each has its own number of interfaces.
    """
    is_fleet = settings.strategy is Strategy.FLEET
    return is_fleet and any(not pool.machine.rdma for pool in pools)


def group_of(settings: AwsCloud, cluster: Cluster, pool: Pool) -> dict[str, str]:
    """The pool's placement group in the form of requests. Empty without one."""
    group = pool.machine.placement_group
    if group is None:
        return {}
    if group.startswith("pg-"):
        return {"GroupId": group}
    return {"GroupName": group if group != CLUSTER_GROUP else own_group(settings, cluster, pool)}


def own_group(settings: AwsCloud, cluster: Cluster, pool: Pool) -> str:
    """The name of the group that we make for a pool: ``slurm-elastic-CLUSTER-POOL-HASH``. The
    hash keeps clusters and clouds of one account apart.
    """
    text = f"{cluster.uuid}/{settings.name}/{pool.name}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{f'slurm-elastic-{cluster.name}-{pool.name}'[: _MAX_GROUP - 9]}-{digest}"


def options(
    settings: AwsCloud, cluster: Cluster, pool: Pool, facts: HardwareFacts, site: Mapping[str, Any]
) -> dict[str, object]:
    """The fields that requests and launch templates share, except network interfaces. ``site``:
    the site's own template; its other disks and placement are kept, because a field of a request
    replaces the template's whole field.
    """
    request: dict[str, object] = {}
    disks = _disks(pool, facts)
    if disks:
        names = {disk["DeviceName"] for disk in disks}
        kept = [d for d in site.get("BlockDeviceMappings", ()) if d.get("DeviceName") not in names]
        request["BlockDeviceMappings"] = [*kept, *disks]
    if group := group_of(settings, cluster, pool):
        request["Placement"] = {**_ungrouped(site.get("Placement", {})), **group}
    return request


def _ungrouped(placement: Mapping[str, Any]) -> dict[str, Any]:
    """The placement without a group. EC2 refuses a group's id beside another one's name."""
    return {k: v for k, v in placement.items() if k not in ("GroupName", "GroupId")}


def _disks(pool: Pool, facts: HardwareFacts) -> Sequence[Mapping[str, Any]]:
    root = pool.machine.root_disk
    named = [(facts.root_device, root)] if root is not None and facts.root_device else []
    named += [
        (f"/dev/sd{letter}", disk)
        for letter, disk in zip(_EXTRA_DEVICES, pool.machine.disks, strict=False)
    ]
    return [{"DeviceName": name, "Ebs": _ebs(disk)} for name, disk in named]


def _ebs(disk: Disk) -> dict[str, object]:
    values = {
        key: value
        for name, key in _DISK_FIELDS.items()
        if (value := getattr(disk, name)) is not None
    }
    size = {} if disk.size is None else {"VolumeSize": gibibytes(disk.size)}
    # Otherwise the disk stays, and is paid, after its machine has ended.
    return {**size, **values, "DeleteOnTermination": True}


def metadata_hops(pool: Pool) -> dict[str, object]:
    """The metadata option for the hop limit. Empty leaves it to the image and the account."""
    hops = pool.machine.metadata_hops
    return {} if hops is None else {"HttpPutResponseHopLimit": hops}


def interfaces(
    settings: AwsCloud, count: int, subnet: str | None
) -> Sequence[Mapping[str, object]]:
    """A network interface for EFA on each of the first ``count`` network cards. Each has subnet
    and groups of its own, because EC2 then accepts them nowhere else.
    """
    groups = {"Groups": list(settings.security_groups)} if settings.security_groups else {}
    place = {"SubnetId": subnet} if subnet else {}
    return [
        {
            # Only the first card may have a device 0; it is the machine's address.
            "DeviceIndex": min(card, 1),
            "NetworkCardIndex": card,
            "InterfaceType": "efa",
            "DeleteOnTermination": True,
            **groups,
            **place,
        }
        for card in range(count)
    ]
