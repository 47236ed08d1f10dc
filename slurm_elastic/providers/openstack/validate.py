"""Checks that the settings of an OpenStack cloud make sense by themselves: names, networks, waits.
Pure.
"""

from __future__ import annotations

import uuid

from slurm_elastic.config.decode import describe
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.machine_options import MIB_PER_GIB, MachineOptions
from slurm_elastic.providers.base.validate import check_listing_lag, check_wait
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud


def check(draft: Draft, i: int, cloud: OpenStackCloud) -> None:
    """Report all problems of a cloud of provider openstack."""
    cloud_path = ("clouds", i)
    for key, text in (("cloud", cloud.cloud), ("image", cloud.image)):
        if not text.strip():
            draft.problems.add((*cloud_path, key), shown(text), "a name")
    for n, word in enumerate(cloud.networks):
        if word in NETWORK_WORDS and len(cloud.networks) > 1:
            draft.problems.add((*cloud_path, "networks", n), shown(word), "that word alone")
    for n, pool in draft.pools.items():
        if draft.cloud_of(pool) is cloud:
            _machine(draft, n, pool.machine)
    check_wait(draft, i, cloud, "schedule_timeout")
    check_listing_lag(draft, i, cloud)


_DISK_KEYS = ("size", "type")


def _machine(draft: Draft, i: int, machine: MachineOptions) -> None:
    """Report values of a pool's section ``machine`` that nova and cinder do not support."""
    path, disk, group = ("pools", i, "machine"), machine.root_disk, machine.placement_group
    if group is not None and not _is_uuid(group):
        expected = "the id of a server group: openstack server group list"
        draft.problems.add((*path, "placement_group"), shown(group), expected)
    if disk is None:
        return
    if disk.size is None:
        draft.problems.add((*path, "root_disk"), "no 'size'", "a size such as 40G")
    elif disk.size % MIB_PER_GIB:
        expected = "whole gigabytes, such as 40G"
        draft.problems.add((*path, "root_disk", "size"), f"{disk.size} MiB", expected)
    for key in disk.__struct_fields__:
        value = getattr(disk, key)
        if value is not None and key not in _DISK_KEYS:
            expected = "only size and type, because the volume type decides the others"
            draft.problems.add((*path, "root_disk", key), describe(value), expected)


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
