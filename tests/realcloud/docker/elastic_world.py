"""A cluster in containers whose other machines are containers, too: those of the docker provider."""

from __future__ import annotations

import os
from typing import Any

from .world import HEAD, UID, USER, ContainerWorld

BOOT = (
    f"useradd -u {UID} -m -s /bin/bash {USER};"
    " exec slurm-node >>/shared/log/$SLURM_ELASTIC_NODE.boot 2>&1"
)


class ElasticWorld(ContainerWorld):
    """A static node, and a few more as containers that the daemon on the head starts."""

    machine_nodes = 3
    boot = BOOT
    """A machine's shell runs this."""

    def __enter__(self) -> ElasticWorld:
        super().__enter__()
        group = os.stat(self.engine.socket).st_gid
        self.head.run(["sh", "-c", f"groupadd -o -g {group} engine && usermod -aG engine slurm"])
        self.set_up_head()
        self.start_daemon(self._elastic())
        return self

    def set_up_head(self) -> None:
        """Set up the head for the daemon, besides its configuration."""

    def hosts(self) -> dict[str, Any]:
        """The configuration's hosts: the engine that the world is on."""
        return {"box": {"cpus": 1000, "memory": "1T"}}

    def head_address(self) -> str:
        """Where machines find slurmctld."""
        return HEAD

    def machines(self) -> list[Any]:
        """The daemon's containers, the ended ones too."""
        return [c for c in self.containers() if "slurm-elastic.node" in c.labels]

    def running(self) -> list[str]:
        return [c.labels["slurm-elastic.node"] for c in self.machines() if c.status == "running"]

    def back_to_zero(self) -> None:
        """Wait until no container of the daemon runs and Slurm has all its nodes powered down."""

        def zero() -> bool:
            states = self.slurm("sinfo", "-h", "-p", "boxes", "-o", "%t").stdout.split()
            return not self.running() and states == ["idle~"]

        self.wait_for(zero, "all containers are gone and all nodes powered down")

    def _elastic(self) -> dict[str, Any]:
        keys, shared = self.directory / "keys", self.shared
        return {
            "cluster": {"name": "containers"},
            "timings": {"suspend_time": 4, "suspend_timeout": 5, "resume_timeout": 300,
                        "reconcile_interval": 2, "orphan_timeout": 20},
            "clouds": [
                {
                    "name": "boxes", "provider": "docker", "location": "on-premises",
                    "hosts": self.hosts(),
                    "image": self.image, "network": self.id,
                    "types": {"small": {"cpus": 1, "memory": "1G", "price": 0.01}},
                    "command": ["sh", "-c", self.boot],
                    "mounts": [f"{keys}:/etc/slurm-elastic:ro", f"{shared}:/shared"],
                }
            ],
            "pools": [
                {"name": "box", "cloud": "boxes", "nodes": f"bx[1-{self.machine_nodes}]",
                 "cpus": 1, "memory": "1G", "real_memory": 500, "instance_types": ["small"]}
            ],
            "join": {"head": self.head_address()},
        }  # fmt: skip
