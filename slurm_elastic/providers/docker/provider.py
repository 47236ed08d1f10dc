"""The provider for containers on Docker engines (API 1.41 and later), through the docker SDK.

A container's name contains the cluster, node and generation, and a name is unique in an engine. So
a repeated launch meets the containers of the first one. To end a machine we kill it and keep its
container for a while: it proves that the launch was there, and its log says why it went.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.hosts.host_rows import Tagged
from slurm_elastic.providers.base.hosts.hosted import HostedProvider, Room, room
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.tags import GENERATION
from slurm_elastic.providers.docker import convert, preflight, requests
from slurm_elastic.providers.docker.client import DockerClient
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.errors import NAME_TAKEN, NOT_RUNNING
from slurm_elastic.providers.docker.settings import DockerCloud, DockerType

log = logging.getLogger(__name__)

LISTING_LAG_S = 10.0
"""For so long a listing may still show a killed container as running."""
PRINTED_LINES = 500


class DockerProvider(HostedProvider[DockerType]):
    """One or more engines. The contract is in protocols.Provider. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_killed_at")}

    def __init__(
        self,
        settings: DockerCloud,
        cluster: Cluster,
        ownership: Ownership | None = None,
        head: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = Engines(settings)
        owners = ownership or ownership_of(settings, cluster, None)
        super().__init__(settings, settings.types, cluster, owners, self._engines, clock)
        self._settings = settings
        self._head = head
        self._lock = threading.Lock()
        self._killed_at: dict[str, float] = {}

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:  # noqa: ARG002 - all are alike
        """Findings about version, image and network of each host."""
        return preflight.examine(self._settings, self._engines)

    def console(self, instance: str) -> str:
        """The last lines that the container's program printed, even if the container has ended.
        Empty if there is no such container of ours.
        """
        with self._hosts.limited():
            search_errors = self._search_hosts([instance])
            container = self._machines_of([instance]).get(instance)
            if container is None and search_errors:
                raise search_errors[0]
            if container is None:
                return ""
            printed = self._engines.call(
                container.host, lambda client: client.logs(container.name, tail=PRINTED_LINES)
            )
        return bytes(printed).decode(errors="replace")

    def _ping(self, host: str) -> None:
        self._engines.call(host, lambda client: client.version())

    def _room(
        self, host: str, types: Mapping[str, DockerType], present: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        size, used = self._size(host), convert.used(present)
        return {name: room(kind, size, used) for name, kind in types.items()}

    def _size(self, host: str) -> tuple[int, int]:
        """The CPUs and MiB that containers may use on the host."""
        host_settings = self._settings.hosts[host]
        if host_settings.cpus is not None and host_settings.memory is not None:
            return host_settings.cpus, host_settings.memory
        info = self._engines.call(host, lambda client: client.info())
        return host_settings.cpus or int(info["NCPU"]), host_settings.memory or int(
            info["MemTotal"]
        ) >> 20

    def _run(self, spec: LaunchSpec, node: str, kind: DockerType) -> None:
        host = spec.offer.zone
        machine = requests.ContainerToBe(
            settings=self._settings,
            cluster=self._cluster,
            spec=spec,
            node=node,
            kind=kind,
            head=self._head,
        )
        container_id = self._make(host, machine)
        try:
            self._engines.call(host, lambda client: client.start(container_id))
        except TransientError:  # it may have started, so it must stay
            raise
        except ProviderError:
            self._remove_container(host, container_id)
            raise

    def _make(self, host: str, machine: requests.ContainerToBe) -> str:
        """Create the container and return its id. If the name is taken by this same machine, return
        that one's id.
        """
        try:
            created = self._engines.call(host, lambda client: _create(client, machine))
        except ProviderError as error:
            if error.code != NAME_TAKEN:
                raise
            name_taken = error
        else:
            return str(created["Id"])
        # Outside the except block: an error that happens here must not be reported as the earlier
        # refusal.
        existing = self._engines.call(host, lambda client: client.inspect_container(machine.name))
        labels = existing["Config"].get("Labels") or {}
        key = requests.SPELLING.key
        identity_labels = (requests.CLUSTER, key(GENERATION), requests.NODE)
        if any(labels.get(label) != machine.labels[label] for label in identity_labels):
            raise name_taken
        return str(existing["Id"])

    def _rows(self, host: str) -> Sequence[Tagged]:
        """All containers with the label of any cluster of ours, including ended ones."""
        label_filter = {"label": requests.CLUSTER}

        def read(client: DockerClient) -> Sequence[Tagged]:
            return convert.containers(
                client.containers(all=True, filters=label_filter), host, self._settings
            )

        listed = self._engines.call(host, read)
        lag_began = self._clock() - LISTING_LAG_S
        with self._lock:
            self._killed_at = {
                container_id: killed_at
                for container_id, killed_at in self._killed_at.items()
                if killed_at > lag_began
            }
            return convert.without(self._killed_at, listed)

    def _all_ids(self, host: str) -> set[str]:
        rows = self._engines.call(host, lambda client: client.containers(all=True))
        return {convert.machine_id(row) for row in rows}

    def _end(self, machine: Tagged) -> None:
        try:
            self._engines.call(machine.host, lambda client: client.kill(machine.name))
        except InstanceNotFound:
            log.info("already gone cloud=%s id=%s", self.name, machine.short)
            return
        except ProviderError as error:
            if error.code != NOT_RUNNING:
                raise
        else:
            with self._lock:
                self._killed_at[machine.name] = self._clock()
            return
        self._end_idle(machine)

    def _end_idle(self, machine: Tagged) -> None:
        """Remove the machine's container if it was created and never started, because only that
        prevents a later start.
        """
        try:
            container = self._engines.call(
                machine.host, lambda client: client.inspect_container(machine.name)
            )
        except InstanceNotFound:
            return
        if container["State"]["Status"] == convert.CREATED:
            self._remove_container(machine.host, machine.name)

    def _remove(self, machine: Tagged) -> None:
        self._remove_container(machine.host, machine.name)

    def _remove_container(self, host: str, container_id: str) -> None:
        try:
            self._engines.call(
                # ``v`` also removes its anonymous volumes, which nothing else would delete.
                host,
                lambda client: client.remove_container(container_id, force=True, v=True),
            )
        except InstanceNotFound:
            log.debug("already removed cloud=%s id=%s", self.name, container_id)


def _create(client: DockerClient, machine: requests.ContainerToBe) -> Mapping[str, Any]:
    settings = machine.settings
    # Docker's DNS then finds the container by its node's name.
    endpoint = client.create_endpoint_config(aliases=[machine.node])
    answer: Mapping[str, Any] = client.create_container(
        settings.image,
        command=list(settings.command) or None,
        hostname=machine.node,
        name=machine.name,
        labels=machine.labels,
        environment=machine.environment,
        host_config=client.create_host_config(**machine.limits),
        networking_config={"EndpointsConfig": {settings.network: endpoint}},
    )
    return answer
