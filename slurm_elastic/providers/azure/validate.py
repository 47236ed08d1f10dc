"""Checks that the settings of an Azure cloud make sense by themselves: names, ids, zones. Pure."""

from __future__ import annotations

import base64
import binascii
import re
import uuid

from slurm_elastic.config.decode import describe
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.machine_options import MIB_PER_GIB, MachineOptions
from slurm_elastic.providers.azure.settings import IMAGE_FORM, AzureCloud, is_image
from slurm_elastic.providers.base.named import check_nodes
from slurm_elastic.providers.base.validate import check_wait

MAX_NAME = 64
"""Characters of the name of a Linux VM."""
_NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")
"""A node's name becomes a part of the VM's name, and the VM's host name, which has no ``_``."""
_NODE_FORM = "letters, digits, '-' and '.' inside"
_GROUP = re.compile(r"[-\w.()]{1,89}[-\w()]", re.ASCII)
_ZONES = ("1", "2", "3")
_DISK_KEYS = ("size", "type", "kms_key")
_KEY_TYPES = ("ssh-rsa", "ssh-ed25519")


def check(draft: Draft, i: int, cloud: AzureCloud) -> None:
    """Report all problems of a cloud of provider azure."""
    path = ("clouds", i)
    for key, text, is_right, expected in (
        ("subscription", cloud.subscription, _is_uuid(cloud.subscription), "a subscription's id"),
        (
            "resource_group", cloud.resource_group, _GROUP.fullmatch(cloud.resource_group),
            "the name of a resource group",
        ),
        (
            "region", cloud.region, re.fullmatch("[a-z0-9]+", cloud.region),
            "a region's short name, such as westeurope (az account list-locations)",
        ),
        ("image", cloud.image, is_image(cloud.image), IMAGE_FORM),
        ("subnet", cloud.subnet, _is_id(cloud.subnet, "subnets"), "the resource id of a subnet"),
        (
            "security_group", cloud.security_group or "",
            cloud.security_group is None or _is_id(cloud.security_group, "networkSecurityGroups"),
            "the resource id of a network security group",
        ),
        (
            "machine_identity", cloud.machine_identity or "",
            cloud.machine_identity is None
            or _is_id(cloud.machine_identity, "userAssignedIdentities"),
            "the resource id of a user-assigned managed identity",
        ),
        (
            "ssh_public_key", cloud.ssh_public_key, _is_public_key(cloud.ssh_public_key),
            "a line of a .pub file: ssh-rsa or ssh-ed25519",
        ),
        ("endpoint", cloud.endpoint, _is_url(cloud.endpoint), "a URL such as https://HOST"),
        (
            "login_endpoint", cloud.login_endpoint, _is_url(cloud.login_endpoint),
            "a URL such as https://HOST",
        ),
        (
            "price_endpoint", cloud.price_endpoint or "",
            cloud.price_endpoint is None or _is_url(cloud.price_endpoint),
            "a URL such as https://prices.azure.com",
        ),
    ):  # fmt: skip
        if not is_right:
            draft.problems.add((*path, key), shown(text), expected)
    for n, zone in enumerate(cloud.zones):
        if zone not in _ZONES:
            draft.problems.add((*path, "zones", n), shown(zone), f"one of {', '.join(_ZONES)}")
    _identity(draft, i, cloud)
    check_nodes(draft, cloud, _NODE, MAX_NAME, _NODE_FORM)
    for n, pool in draft.pools.items():
        if draft.cloud_of(pool) is cloud:
            _pool(draft, n, pool.image is not None and pool.image.id is None, pool.machine)
    check_wait(draft, i, cloud, "launch_wait")


def _identity(draft: Draft, i: int, cloud: AzureCloud) -> None:
    """Report an identity of machines that jobs could use. Azure cannot bound its right to the
    machine that has it.
    """
    if cloud.machine_identity and draft.value(("join", "metadata_for_jobs"), bool):
        actual = "it together with join.metadata_for_jobs"
        expected = "one of the two, because each job could end each machine by this identity"
        draft.problems.add(("clouds", i, "machine_identity"), actual, expected)


def _pool(draft: Draft, i: int, has_search: bool, machine: MachineOptions) -> None:
    """Report values of a pool that this provider does not support. ``has_search``: the pool looks
    for its image by name or tags.
    """
    if has_search:
        expected = "only id, because images of provider azure are not searched"
        draft.problems.add(("pools", i, "image"), "no 'id'", expected)
    disk, path = machine.root_disk, ("pools", i, "machine", "root_disk")
    if disk is None:
        return
    if disk.size is not None and disk.size % MIB_PER_GIB:
        expected = "whole gigabytes, such as 40G"
        draft.problems.add((*path, "size"), f"{disk.size} MiB", expected)
    for key in disk.__struct_fields__:
        value = getattr(disk, key)
        if value is not None and key not in _DISK_KEYS:
            expected = f"only {', '.join(_DISK_KEYS)}, because the disk's type decides the others"
            draft.problems.add((*path, key), describe(value), expected)
    if disk.kms_key is not None and not _is_id(disk.kms_key, "diskEncryptionSets"):
        expected = "the resource id of a disk encryption set"
        draft.problems.add((*path, "kms_key"), shown(disk.kms_key), expected)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def _is_id(text: str, kind: str) -> bool:
    """Whether the text is the id of a resource whose last type is ``kind``."""
    form = rf"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/providers/\S+/{kind}/[^/\s?#]+"
    return re.fullmatch(form, text, re.IGNORECASE) is not None


def _is_url(text: str) -> bool:
    return re.fullmatch(r"https?://[^\s/?#@]+", text) is not None


def _is_public_key(text: str) -> bool:
    kind, _, rest = text.strip().partition(" ")
    try:
        content = base64.b64decode(rest.partition(" ")[0], validate=True)
    except (binascii.Error, ValueError):
        return False
    # The text begins with its own type, after a length of four bytes.
    return kind in _KEY_TYPES and content[4:].startswith(kind.encode())
