"""Builds the requests that create machines. Pure, so that the same launch always makes the same
request.

One call (bulkInsert) creates many machines, which differ in nothing but their names.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Market
from slurm_elastic.model.machine_options import Disk, gibibytes
from slurm_elastic.model.reserved import TARGETED, ReservationKind
from slurm_elastic.providers.base.joining import facts_of
from slurm_elastic.providers.base.named import machine_name
from slurm_elastic.providers.base.user_data import Form, compose
from slurm_elastic.providers.gcp import labels
from slurm_elastic.providers.gcp.settings import GcpCloud

USER_DATA = Form(Path(__file__).with_name("boothook.py"), 262144 // 4 * 3, 10240, "Compute Engine")
"""A value of the metadata has at most 256 KiB, here after base64."""
MAX_PER_CALL = 1000
"""Google allows 5000 machines a call, and 1500 with a placement policy."""
NO_MORE_THAN_S = 120 * 86400.0
"""Google's upper bound of ``maxRunDuration``."""
GRACE_S = 30 * 86400.0
"""A machine over its highest age ends after its jobs. If nobody has ended it so long afterwards,
Google does, with all jobs that still run on it. So this is longer than most jobs may run.
"""
_IMMOVABLE = re.compile(r"^(a[234]|ct\w+|g[24]|h3|h4d|x4|z3)-|-metal$")
"""Types that have machines which cannot move. The word for them is right for all types but E2."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The service account's rights are the limit, as Google recommends."""


def chunks(nodes: Sequence[str]) -> Iterator[Sequence[str]]:
    """The nodes in parts, each for one call."""
    for start in range(0, len(nodes), MAX_PER_CALL):
        yield nodes[start : start + MAX_PER_CALL]


def least_of(spec: LaunchSpec, nodes: Sequence[str]) -> int:
    """The fewest machines of the call for ``nodes`` that are of use. The calls of a launch get its
    nodes in their order, and the first calls have given all their machines.
    """
    before = spec.nodes.index(nodes[0]) if nodes else 0
    return max(min(spec.least - before, len(nodes)), 1)


def body(
    settings: GcpCloud,
    cluster: Cluster,
    spec: LaunchSpec,
    nodes: Sequence[str],
    *,
    image: Mapping[str, str],
    parts: tuple[str, ...],
) -> Mapping[str, object]:
    """The body of bulkInsert for ``nodes``. ``image``: its ``path`` and its ``id``."""
    names = [machine_name(cluster.uuid or "", spec.generation, node) for node in nodes]
    return {
        "count": str(len(nodes)),
        "minCount": str(least_of(spec, nodes)),
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": {
            # A URL of the type ends in an internal error of Google's, so its name alone.
            "machineType": spec.offer.instance_type,
            "disks": [_boot_disk(spec.pool.machine.root_disk, image["path"])],
            "networkInterfaces": [_network_card(settings)],
            "labels": settings.labels | labels.written(spec, cluster, settings.name, image["id"]),
            "metadata": {"items": _metadata(cluster, spec, parts)},
            "scheduling": scheduling(spec),
            **_options(settings, spec),
        },
    }


def scheduling(spec: LaunchSpec) -> dict[str, object]:
    """How long and how safely a machine runs."""
    is_spot = spec.offer.market is Market.SPOT
    age, held = spec.pool.max_age, spec.offer.held
    # A machine that its host has lost must end. If Google rebooted it, its jobs would be gone
    # while Slurm still counts on them.
    words: dict[str, object] = {"automaticRestart": False}
    if is_spot:
        words["provisioningModel"] = "SPOT"
    elif held is not None and held.kind is ReservationKind.BLOCK:
        words["provisioningModel"] = "RESERVATION_BOUND"
    # Google refuses such a machine without this word, because it cannot move to another host.
    if is_spot or spec.pool.gres or _stays_on_host(spec):
        words["onHostMaintenance"] = "TERMINATE"
    # A smaller value than this sum would end jobs that the highest age permits.
    if age is not None and age + GRACE_S <= NO_MORE_THAN_S:
        words["maxRunDuration"] = {"seconds": f"{math.ceil(age + GRACE_S)}"}
    if "provisioningModel" in words or "maxRunDuration" in words:
        words["instanceTerminationAction"] = "DELETE"
    return words


def _stays_on_host(spec: LaunchSpec) -> bool:
    """Whether a placement policy or its type keeps the machine from moving to another host."""
    is_placed = spec.pool.machine.placement_group is not None
    return is_placed or _IMMOVABLE.search(spec.offer.instance_type) is not None


def _boot_disk(disk: Disk | None, image: str) -> dict[str, object]:
    """The system disk. It ends with its machine."""
    source: dict[str, object] = {"sourceImage": image}
    boot: dict[str, object] = {"boot": True, "autoDelete": True, "initializeParams": source}
    if disk is None:
        return boot
    if disk.size is not None:
        source["diskSizeGb"] = str(gibibytes(disk.size))
    if disk.type is not None:
        # In properties of instances the name alone: each zone has types of its own.
        source["diskType"] = disk.type
    if disk.iops is not None:
        source["provisionedIops"] = str(disk.iops)
    if disk.throughput is not None:
        source["provisionedThroughput"] = str(disk.throughput)
    if disk.kms_key is not None:
        boot["diskEncryptionKey"] = {"kmsKeyName": disk.kms_key}
    return boot


def _network_card(settings: GcpCloud) -> dict[str, object]:
    card: dict[str, object] = {}
    if settings.subnetwork is not None:
        card["subnetwork"] = subnetwork_path(settings)
    else:
        card["network"] = f"projects/{settings.project}/global/networks/default"
    if settings.external_ip:
        card["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return card


def subnetwork_path(settings: GcpCloud) -> str:
    """The path of the subnetwork; it may be of another project (a shared VPC)."""
    name = settings.subnetwork or "default"
    if name.startswith("projects/"):
        return name
    return f"projects/{settings.project}/regions/{settings.region}/subnetworks/{name}"


def _metadata(cluster: Cluster, spec: LaunchSpec, parts: tuple[str, ...]) -> list[dict[str, str]]:
    facts = facts_of(cluster, spec) | {"market": str(spec.offer.market)}
    document = compose(facts, "", parts, USER_DATA)
    return [
        {"key": "user-data", "value": base64.b64encode(document).decode()},
        # cloud-init decodes it, and decompresses it if it is long.
        {"key": "user-data-encoding", "value": "base64"},
    ]


def _options(settings: GcpCloud, spec: LaunchSpec) -> dict[str, object]:
    """The properties that only some machines have."""
    words: dict[str, object] = {}
    if settings.network_tags:
        words["tags"] = {"items": list(settings.network_tags)}
    if settings.service_account is not None:
        words["serviceAccounts"] = [{"email": settings.service_account, "scopes": [SCOPE]}]
    if settings.secure_boot:
        words["shieldedInstanceConfig"] = {"enableSecureBoot": True}
    if policy := spec.pool.machine.placement_group:
        place = f"projects/{settings.project}/regions/{settings.region}/resourcePolicies"
        words["resourcePolicies"] = [f"{place}/{policy}"]
    held = spec.offer.held
    if held is not None and held.kind in TARGETED:
        words["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [held.id],
        }
    return words
