"""What is sent to instantiate a machine: pure, nested dictionaries, never text put together.

pyone makes XML with CDATA of a nested dictionary, so quotes, ``<`` and line ends are safe; of a
flat one it makes ``KEY="value"`` lines without any escaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType, OneTemplate
from slurm_elastic.model import LaunchSpec
from slurm_elastic.providers import opennebula_context
from slurm_elastic.providers.joining import facts_of

PREFIX = "SLURM_ELASTIC_"
CLUSTER = PREFIX + "CLUSTER"
CLUSTER_NAME = PREFIX + "CLUSTER_NAME"
CLOUD = PREFIX + "CLOUD"
POOL = PREFIX + "POOL"
GENERATION = PREFIX + "GENERATION"
NODE = PREFIX + "NODE"
TYPE = PREFIX + "TYPE"
MARKET = PREFIX + "MARKET"
JOBS = PREFIX + "JOBS"
PRICE = PREFIX + "PRICE"

MAX_NAME = 128
_MAX_JOBS = 1000
_IMAGE = frozenset({"IMAGE", "IMAGE_ID"})


def name(cluster: Cluster, spec: LaunchSpec, node: str) -> str:
    """For people: names are neither unique nor looked up."""
    return f"{node}-{cluster.name}-{spec.generation}"[:MAX_NAME]


def tags(cluster: Cluster, spec: LaunchSpec, node: str) -> dict[str, str]:
    """Attributes that no template knows end up in USER_TEMPLATE; keys are upper case there."""
    values = {
        CLUSTER: cluster.uuid or "",
        CLUSTER_NAME: cluster.name,
        CLOUD: spec.offer.cloud,
        POOL: spec.pool.name,
        GENERATION: spec.generation,
        NODE: node,
        TYPE: spec.offer.instance_type,
        MARKET: spec.offer.market.value,
        PRICE: f"{spec.offer.price:g}",
    }
    jobs = ",".join(str(job) for job in spec.jobs)[:_MAX_JOBS]
    return values | ({JOBS: jobs} if jobs else {})


def extra_template(
    cluster: Cluster,
    spec: LaunchSpec,
    node: str,
    kind: OneTemplate,
    own: Mapping[str, Any],
    image: int | None,
    parts: Sequence[str],
) -> dict[str, dict[str, object]]:
    """The fourth argument of ``one.template.instantiate``; ``own`` is the VM template itself. What
    is in here replaces what the template has of that name, so it is merged beforehand.
    """
    facts = facts_of(cluster, spec) | {"node": node}
    template: dict[str, object] = {
        **tags(cluster, spec, node),
        "CONTEXT": opennebula_context.merged(own.get("CONTEXT") or {}, facts, parts),
    }
    if image is not None:
        template["DISK"] = disks(own, image)
    return {"TEMPLATE": template | (size(kind) if kind.resize else {})}


def disks(own: Mapping[str, Any], image: int) -> list[dict[str, str]]:
    """The disks of a VM template, the first that has an image with this one in its place. Where
    none has, this one comes before them: it is what the machine boots from.
    """
    some = _disks(own)
    place = next((n for n, d in enumerate(some) if _IMAGE & d.keys()), None)
    if place is None:
        return [{"IMAGE_ID": str(image)}, *some]
    kept = {key: value for key, value in some[place].items() if not key.startswith("IMAGE")}
    some[place] = {"IMAGE_ID": str(image)} | kept
    return some


def size(kind: InstanceType) -> dict[str, str]:
    """A whole physical cpu for each of the machine's; memory in MiB."""
    return {"CPU": str(kind.cpus), "VCPU": str(kind.cpus), "MEMORY": str(kind.memory)}


def image_ids(own: Mapping[str, Any]) -> Sequence[int]:
    """The images that a VM template's disks name by their ids."""
    found = (str(d.get("IMAGE_ID") or "") for d in _disks(own))
    return [int(text) for text in found if text.isdecimal()]


def _disks(own: Mapping[str, Any]) -> list[dict[str, str]]:
    """One is a dictionary, several are a list."""
    found = own.get("DISK") or []
    return [dict(d) for d in (found if isinstance(found, list) else [found])]
