"""Checks the sections ``machine`` of an EC2 cloud's pools. Pure.

EC2 has bounds of its own for sizes and speeds, which differ by type and grow over the years. They
are left to EC2: ``doctor`` tries a launch by a dry run.
"""

from __future__ import annotations

import re

from slurm_elastic.config import PoolSettings
from slurm_elastic.config.decode import describe, nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.machine_options import CLUSTER_GROUP, MIB_PER_GIB, Disk
from slurm_elastic.providers.aws.settings import AwsCloud

DISK_TYPES = ("gp3", "gp2", "io2", "io1", "st1", "sc1", "standard")
MAX_DISKS = 11
_NO_ROOT = ("st1", "sc1")
_WITH_IOPS = ("gp3", "io2", "io1")
_NEED_IOPS = ("io2", "io1")
_GROUP = re.compile(r"[ -~]{1,255}")


def check_machine(draft: Draft, i: int, pool: PoolSettings, cloud: AwsCloud) -> None:
    """Report all problems of the section ``machine`` of the pool at that index."""
    machine, path = pool.machine, ("pools", i, "machine")
    if machine.root_disk is not None:
        _disk(draft, (*path, "root_disk"), machine.root_disk, is_root=True)
    for n, disk in enumerate(machine.disks):
        _disk(draft, (*path, "disks", n), disk, is_root=False)
    if len(machine.disks) > MAX_DISKS:
        draft.problems.add((*path, "disks"), f"{len(machine.disks)} disks", f"at most {MAX_DISKS}")
    if machine.rdma and not cloud.security_groups:
        expected = "security_groups of the cloud: EFA needs a group that allows itself"
        draft.problems.add((*path, "rdma"), describe(machine.rdma), expected)
    _placement(draft, path, pool, cloud)
    for zone in machine.subnets:
        if cloud.foreign_endpoint is None and not zone.startswith(cloud.region):
            expected = f"a zone of region {cloud.region}, such as {cloud.region}a"
            draft.problems.add((*path, "subnets", zone), shown(zone), expected)
    for n, zone in enumerate(pool.zones if machine.subnets else ()):
        if zone not in machine.subnets:
            expected = f"a zone of machine.subnets: one of {', '.join(machine.subnets)}"
            hint = nearest(zone, machine.subnets)
            draft.problems.add(("pools", i, "zones", n), shown(zone), expected, hint)


def _disk(draft: Draft, path: KeyPath, disk: Disk, *, is_root: bool) -> None:
    kinds = [kind for kind in DISK_TYPES if not (is_root and kind in _NO_ROOT)]
    if disk.type is not None and disk.type not in kinds:
        expected = f"one of {', '.join(kinds)}"
        draft.problems.add((*path, "type"), shown(disk.type), expected, nearest(disk.type, kinds))
        return
    if disk.size is None and not is_root:
        draft.problems.add(path, "no 'size'", "a size such as 100G")
    if disk.size is not None and disk.size % MIB_PER_GIB:
        draft.problems.add((*path, "size"), f"{disk.size} MiB", "whole gigabytes, such as 100G")
    if disk.iops is not None and disk.type not in _WITH_IOPS:
        expected = f"type {', '.join(_WITH_IOPS)} beside it"
        draft.problems.add((*path, "iops"), describe(disk.iops), expected)
    if disk.iops is None and disk.type in _NEED_IOPS:
        draft.problems.add(path, "no 'iops'", f"the number that a disk of type {disk.type} needs")
    if disk.throughput is not None and disk.type != "gp3":
        expected = "type gp3 beside it"
        draft.problems.add((*path, "throughput"), describe(disk.throughput), expected)
    if disk.kms_key is not None and disk.encrypted is not True:
        draft.problems.add((*path, "kms_key"), shown(disk.kms_key), "encrypted: true beside it")


def _placement(draft: Draft, path: KeyPath, pool: PoolSettings, cloud: AwsCloud) -> None:
    group = pool.machine.placement_group
    if group is None:
        return
    if not _GROUP.fullmatch(group):
        expected = f"{CLUSTER_GROUP}, or the name or id (pg-...) of a placement group"
        draft.problems.add((*path, "placement_group"), shown(group), expected)
    zones = pool.zones or tuple(pool.machine.subnets) or cloud.known_zones
    if group == CLUSTER_GROUP and len(zones) != 1:
        count = f"{len(zones)} zones" if zones else "all zones of the region"
        expected = "one zone in the pool's zones, because such a group is in one zone"
        draft.problems.add((*path, "placement_group"), f"{shown(group)} and {count}", expected)
