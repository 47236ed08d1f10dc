"""What is sent to instantiate a machine: pure, nested dictionaries, never text put together.

pyone makes XML with CDATA of a nested dictionary, so quotes, ``<`` and line ends are safe; of a
flat one it makes ``KEY="value"`` lines without any escaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    context: Mapping[str, object],
    parts: Sequence[str],
) -> dict[str, dict[str, object]]:
    """The fourth argument of ``one.template.instantiate``; ``context`` is the template's own."""
    facts = facts_of(cluster, spec) | {"node": node}
    template: dict[str, object] = {
        **tags(cluster, spec, node),
        "CONTEXT": opennebula_context.merged(context, facts, parts),
    }
    return {"TEMPLATE": template | (size(kind) if kind.resize else {})}


def size(kind: InstanceType) -> dict[str, str]:
    """A whole physical cpu for each of the machine's; memory in MiB."""
    return {"CPU": str(kind.cpus), "VCPU": str(kind.cpus), "MEMORY": str(kind.memory)}
