"""Checks that the settings of a Google Cloud make sense by themselves: names, zones, labels.
Pure.
"""

from __future__ import annotations

import re

from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.machine_options import MIB_PER_GIB, MachineOptions
from slurm_elastic.providers.base.named import check_nodes
from slurm_elastic.providers.base.validate import check_wait
from slurm_elastic.providers.gcp import labels
from slurm_elastic.providers.gcp.settings import GcpCloud

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_NAME = 63
NODE_FORM = "nodes of lower-case letters, digits and hyphens that begin with a letter"
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_IMAGE = re.compile(
    rf"(projects/{_PROJECT.pattern}/global/images/)?(family/)?[a-z]([-a-z0-9]{{0,61}}[a-z0-9])?"
)
_SUBNETWORK = re.compile(
    rf"(projects/{_PROJECT.pattern}/regions/(?P<region>[a-z0-9-]+)/subnetworks/)?"
    r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
)
_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+\.[a-z]+")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_DISK_KEYS = ("size", "type", "iops", "throughput", "kms_key")


def check(draft: Draft, i: int, cloud: GcpCloud) -> None:
    """Report all problems of a cloud of provider gcp."""
    _places(draft, i, cloud)
    _resources(draft, i, cloud)
    _labels(draft, i, cloud)
    check_nodes(draft, cloud, NAME, MAX_NAME, NODE_FORM)
    for n, pool in draft.pools.items():
        if draft.cloud_of(pool) is cloud:
            _fits_label(draft, ("pools", n, "name"), pool.name)
            _machine(draft, n, pool.machine)
    check_wait(draft, i, cloud, "launch_wait")


def _places(draft: Draft, i: int, cloud: GcpCloud) -> None:
    path = ("clouds", i)
    if cloud.location is not Location.PUBLIC:
        expected = f"{Location.PUBLIC}: provider gcp costs money"
        draft.problems.add((*path, "location"), shown(cloud.location), expected)
    if not _PROJECT.fullmatch(cloud.project):
        expected = "the id of a project, such as my-project-123"
        draft.problems.add((*path, "project"), shown(cloud.project), expected)
    if not _REGION.fullmatch(cloud.region):
        expected = "a region such as us-central1"
        draft.problems.add((*path, "region"), shown(cloud.region), expected)
    for n, zone in enumerate(cloud.zones):
        if not re.fullmatch(rf"{re.escape(cloud.region)}-[a-z]", zone):
            expected = f"a zone of region {cloud.region}, such as {cloud.region}-a"
            draft.problems.add((*path, "zones", n), shown(zone), expected)
    endpoint = cloud.endpoint
    is_http = (endpoint or "").startswith(("http://", "https://"))
    if endpoint is not None and not (is_http and is_readable_url(endpoint)):
        expected = "a URL such as https://compute-mine.p.googleapis.com"
        draft.problems.add((*path, "endpoint"), shown(endpoint), expected)


def _resources(draft: Draft, i: int, cloud: GcpCloud) -> None:
    path = ("clouds", i)
    if not _IMAGE.fullmatch(cloud.image):
        expected = (
            "an image such as slurm-node-1, family/slurm-node or projects/P/global/images/..."
        )
        draft.problems.add((*path, "image"), shown(cloud.image), expected)
    subnetwork = _SUBNETWORK.fullmatch(cloud.subnetwork or "default")
    if subnetwork is None or (subnetwork["region"] or cloud.region) != cloud.region:
        expected = (
            f"the name of a subnetwork, or projects/P/regions/{cloud.region}/subnetworks/NAME"
        )
        draft.problems.add((*path, "subnetwork"), shown(cloud.subnetwork or ""), expected)
    account = cloud.service_account
    if account is not None and not _ACCOUNT.fullmatch(account):
        expected = "the address of a service account: NAME@PROJECT.iam.gserviceaccount.com"
        draft.problems.add((*path, "service_account"), shown(account), expected)
    for n, tag in enumerate(cloud.network_tags):
        if not NAME.fullmatch(tag) or len(tag) > MAX_NAME:
            expected = "a network tag of lower-case letters, digits and hyphens"
            draft.problems.add((*path, "network_tags", n), shown(tag), expected)
    for name in cloud.types:
        if not NAME.fullmatch(name) or len(name) > MAX_NAME:
            expected = "the name of a machine type, such as n2-standard-16"
            draft.problems.add((*path, "types", name), shown(name), expected)


def _labels(draft: Draft, i: int, cloud: GcpCloud) -> None:
    _fits_label(draft, ("clouds", i, "name"), cloud.name)
    for key, value in cloud.labels.items():
        path = ("clouds", i, "labels", key)
        if key.startswith(labels.LABEL_PREFIX):
            expected = f"a label that does not begin with {labels.LABEL_PREFIX}"
            draft.problems.add(path, shown(key), expected)
        elif not _LABEL_KEY.fullmatch(key):
            expected = "a key of at most 63 characters a-z, 0-9, _ and -, a letter first"
            draft.problems.add(path, shown(key), expected)
        elif not _LABEL_VALUE.fullmatch(value):
            expected = "a value of at most 63 characters a-z, 0-9, _ and -"
            draft.problems.add(path, shown(value), expected)


def _fits_label(draft: Draft, path: tuple[str | int, ...], name: str) -> None:
    """Report a name that is longer than a label, in which it would lose its end."""
    if len(labels.encoded(name)) > labels.MAX_VALUE:
        expected = (
            f"a shorter name: a label has {labels.MAX_VALUE} characters, and any but a-z, 0-9 and "
            "- take three of them"
        )
        draft.problems.add(path, shown(name), expected)


def _machine(draft: Draft, i: int, machine: MachineOptions) -> None:
    """Report values of a pool's section ``machine`` that Google does not support."""
    path, disk, policy = ("pools", i, "machine"), machine.root_disk, machine.placement_group
    if policy is not None and not NAME.fullmatch(policy):
        expected = "the name of a placement policy: gcloud compute resource-policies list"
        draft.problems.add((*path, "placement_group"), shown(policy), expected)
    if disk is None:
        return
    if disk.size is not None and disk.size % MIB_PER_GIB:
        expected = "whole gigabytes, such as 40G"
        draft.problems.add((*path, "root_disk", "size"), f"{disk.size} MiB", expected)
    for key in disk.__struct_fields__:
        value = getattr(disk, key)
        if value is not None and key not in _DISK_KEYS:
            expected = "no such key: Google encrypts all disks (kms_key: by a key of your own)"
            draft.problems.add((*path, "root_disk", key), shown(value), expected)
