"""Builds the request that creates a container: labels, name, limits, environment. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from msgspec import Struct

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base import tags
from slurm_elastic.providers.base.machine_tags import Spelling
from slurm_elastic.providers.docker.settings import DockerCloud, DockerType

PREFIX = "slurm-elastic."
SPELLING = Spelling(lambda key: key.replace(":", "."))
CLUSTER, NODE = SPELLING.key(tags.CLUSTER), SPELLING.node
CPUS = PREFIX + "cpus"
MEMORY = PREFIX + "memory"
_MAX_NAME = 100


class ContainerToBe(Struct, frozen=True, kw_only=True):
    """A container that will be created. ``head``: where slurmd finds slurmctld."""

    settings: DockerCloud
    cluster: Cluster
    spec: LaunchSpec
    node: str
    kind: DockerType
    head: str | None = None

    @property
    def name(self) -> str:
        """The container's name. Names are unique in an engine, so it serves as the launch's token
        for this node: a second creation is refused, however late it comes.
        """
        identity = (self.cluster.uuid or "", self.settings.name, self.spec.generation, self.node)
        token = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
        readable = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{self.cluster.name}-{self.node}")
        return f"{readable[:_MAX_NAME].lstrip('_.-')}-{token}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels that name its owner and the resources that it uses of its host."""
        marks = SPELLING.written(self.spec, self.node, self.cluster, self.settings.name)
        return marks | {CPUS: str(self.kind.cpus), MEMORY: str(self.kind.memory)}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the image's program reads. Never a secret, as everybody in the
        container sees them.
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
        """HostConfig with the SDK's names. Swap is not added to the memory."""
        settings, memory = self.settings, self.kind.memory << 20
        return {
            "nano_cpus": self.kind.cpus * 10**9,
            "mem_limit": memory,
            # Docker's limit for memory and swap together; equal to memory, it allows no swap.
            "memswap_limit": memory,
            # A small init reaps the zombies that jobs leave behind.
            "init": True,
            "network_mode": settings.network,
            "binds": list(settings.mounts),
            "tmpfs": dict.fromkeys(settings.tmpfs, ""),
            "cap_add": list(settings.capabilities),
            "security_opt": list(settings.security_options),
            # A machine that has powered itself off must stay off.
            "restart_policy": {"Name": "no"},
        }
