"""The request that makes a container: pure. Labels, name, limits, environment."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from msgspec import Struct

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.docker.settings import DockerCloud, DockerType

PREFIX = "slurm-elastic."
CLUSTER = PREFIX + "cluster"
CLUSTER_NAME = PREFIX + "cluster-name"
CLOUD = PREFIX + "cloud"
POOL = PREFIX + "pool"
GENERATION = PREFIX + "generation"
NODE = PREFIX + "node"
TYPE = PREFIX + "type"
MARKET = PREFIX + "market"
JOBS = PREFIX + "jobs"
PRICE = PREFIX + "price"
CPUS = PREFIX + "cpus"
MEMORY = PREFIX + "memory"

_MAX_JOBS = 1000
_MAX_NAME = 100


class Machine(Struct, frozen=True, kw_only=True):
    """A container to be: ``options`` are HostConfig's, ``head`` is where slurmd finds slurmctld."""

    settings: DockerCloud
    cluster: Cluster
    spec: LaunchSpec
    node: str
    kind: DockerType
    head: str | None = None

    @property
    def name(self) -> str:
        """Names are unique in an engine, so this one is the launch's token for this node: whoever
        makes the container again, however late, is told that it is there.
        """
        words = (self.cluster.uuid or "", self.settings.name, self.spec.generation, self.node)
        token = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
        shown = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{self.cluster.name}-{self.node}")
        return f"{shown[:_MAX_NAME].lstrip('_.-')}-{token}"

    @property
    def labels(self) -> dict[str, str]:
        """Whose it is and what it takes of its host."""
        spec = self.spec
        values = {
            CLUSTER: self.cluster.uuid or "",
            CLUSTER_NAME: self.cluster.name,
            CLOUD: self.settings.name,
            POOL: spec.pool.name,
            GENERATION: spec.generation,
            NODE: self.node,
            TYPE: spec.offer.instance_type,
            MARKET: spec.offer.market.value,
            PRICE: f"{spec.offer.price:g}",
            CPUS: str(self.kind.cpus),
            MEMORY: str(self.kind.memory),
        }
        jobs = ",".join(str(job) for job in spec.jobs)[:_MAX_JOBS]
        owner = {PREFIX + key: value for key, value in spec.owner.items()}
        return values | owner | ({JOBS: jobs} if jobs else {})

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the image's program reads; nothing secret, as everybody in the
        container sees it.
        """
        values = {
            "SLURM_ELASTIC_NODE": self.node,
            "SLURM_ELASTIC_CLUSTER": self.cluster.name,
            "SLURM_ELASTIC_GENERATION": self.spec.generation,
        }
        if self.head is not None:
            values["SLURM_ELASTIC_HEAD"] = self.head
        return values | self.settings.environment

    @property
    def limits(self) -> dict[str, Any]:
        """HostConfig, by the SDK's names. Swap is not given on top of memory."""
        settings, memory = self.settings, self.kind.memory << 20
        return {
            "nano_cpus": self.kind.cpus * 10**9,
            "mem_limit": memory,
            "memswap_limit": memory,
            "init": True,
            "network_mode": settings.network,
            "binds": list(settings.mounts),
            "tmpfs": dict.fromkeys(settings.tmpfs, ""),
            "cap_add": list(settings.capabilities),
            "security_opt": list(settings.security_options),
            "restart_policy": {"Name": "no"},
        }
