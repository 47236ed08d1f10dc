"""The docker provider's cloud for tests: a real engine, with a server in front that can fail."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import docker.errors
from docker_proxy import EngineProxy, Fault
from msgspec.structs import replace
from patience import eventually, patience

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.docker import requests
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.testing.contract import UUID

from .engine import Engine

HOST = "box"
KINDS = {
    CapacityError: Fault(status=500, message="mkdir /var/lib/docker/x: no space left on device"),
    QuotaError: Fault(status=500, message="write /var/lib/docker/x: disk quota exceeded"),
    AuthError: Fault(status=403, message="authorization denied by plugin site: not now"),
    TransientError: Fault(status=503, message="server is shutting down"),
}


class DockerBed:
    """Its machines are the containers of its own network; they sleep."""

    pool = Pool(
        name="box",
        cloud="boxes",
        nodes=tuple(f"bx{n}" for n in range(1, 21)),
        cpus=1,
        real_memory=64,
        instance_types=("small",),
        markets=(Market.RESERVED,),
    )

    def __init__(self, engine: Engine, proxy: EngineProxy, image: str) -> None:
        self.proxy, self.image, self.slots = proxy, image, 100
        self.client = engine.client()
        self.id = f"bed{secrets.token_hex(4)}"
        # A container's name has the cloud's in it, and all test processes share one engine: with one
        # name for all clouds, a launch of one test would meet the container of another.
        self.pool = replace(self.pool, cloud=self.id)
        self.network = self.client.networks.create(self.id)
        proxy.network = self.id

    def close(self) -> None:
        self.proxy.heal()
        for container in self.containers():
            container.remove(force=True, v=True)
        self.network.remove()
        self.client.close()

    def settings(self, **more: Any) -> DockerCloud:
        values: dict[str, Any] = {
            "hosts": {HOST: DockerHost(url=self.proxy.url, cpus=max(self.slots, 1), memory=10**6)},
            "image": self.image,
            "network": self.id,
            "types": {"small": DockerType(cpus=1 if self.slots else 2, memory=64, price=0.02)},
            "command": ("sleep", "infinity"),
        }
        return DockerCloud(name=self.id, location=Location.ON_PREMISES, **(values | more))

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: Any) -> Provider:
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=uuid)
        )

    def containers(self) -> list[Any]:
        """All of the network, the ended ones too."""
        return self.client.containers.list(all=True, filters={"network": self.id})

    def alive(self) -> set[str]:
        """Ids of the containers that run or may yet start; the list may still show killed ones."""
        return {c.id[:12] for c in self.containers() if self._status(c) in ("created", "running")}

    @staticmethod
    def _status(container: Any) -> str | None:
        try:
            container.reload()
        except docker.errors.NotFound:
            return None
        return str(container.status)

    def fail_late(self, node: str) -> Callable[[], None]:
        """Its program crashes."""

        def fail() -> None:
            (found,) = [c for c in self.containers() if c.labels[requests.NODE] == node]
            found.kill()
            eventually(lambda: self._status(found) == "exited")

        return fail

    def add_foreign(self) -> set[str]:
        made = self.client.containers.run(
            self.image, ["sleep", "infinity"], detach=True, init=True, network=self.id
        )
        return {made.id[:12]}

    def limit(self, count: int) -> None:
        self.slots = count

    def fail(self, error: type[ProviderError]) -> None:
        self.proxy.fail(KINDS[error])

    def heal(self) -> None:
        self.proxy.heal()

    def lose_answers(self) -> None:
        self.proxy.fail(Fault(drop=True, after=True, match="^POST .*/(create|start)"))

    def fall_silent(self) -> None:
        self.proxy.fail(Fault(silent=True))

    def running(self, count: int) -> None:
        """Wait until so many run."""
        deadline = time.monotonic() + patience(60)
        while sum(c.status == "running" for c in self.containers()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.1)
