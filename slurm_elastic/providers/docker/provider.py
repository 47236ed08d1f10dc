"""Containers on Docker engines (API 1.41 and later), by the docker SDK.

A container's name is made of the cluster, node and generation, and an engine has a name only once:
a launch that is repeated, or carried out twice, meets its own containers. A machine that is ended
is killed and its container kept for a while: it shows that the launch was there, and its log why
it went.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.hosted import HostedProvider, Room, Tagged, room
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.tags import GENERATION
from slurm_elastic.providers.docker import convert, preflight, requests
from slurm_elastic.providers.docker.client import Client
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.errors import NAME_TAKEN, NOT_RUNNING
from slurm_elastic.providers.docker.settings import DockerCloud, DockerType

log = logging.getLogger(__name__)

LISTED_LATE = 10.0
"""Seconds for which a list may show as running what was killed."""
PRINTED_LINES = 500


class DockerProvider(HostedProvider[DockerType]):
    """One or more engines; see protocols.Provider for the contract. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_killed")}

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
        self._killed: dict[str, float] = {}

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:  # noqa: ARG002 - all are alike
        """Version, image and network of each host."""
        return preflight.examine(self._settings, self._engines)

    def console(self, instance: str) -> str:
        """The last lines that the container's program has printed, also of one that has ended.
        Empty where there is no such container of ours.
        """
        with self._hosts.limited():
            failed = self._search_hosts([instance])
            one = self._machines_of([instance]).get(instance)
            if one is None and failed:
                raise failed[0]
            if one is None:
                return ""
            printed = self._engines.call(
                one.host, lambda client: client.logs(one.name, tail=PRINTED_LINES)
            )
        return bytes(printed).decode(errors="replace")

    def _ping(self, host: str) -> None:
        self._engines.call(host, lambda client: client.version())

    def _room(
        self, host: str, types: Mapping[str, DockerType], there: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        size, used = self._size(host), convert.used(there)
        return {name: room(kind, size, used) for name, kind in types.items()}

    def _size(self, host: str) -> tuple[int, int]:
        """Cpus and MiB that containers may have there."""
        own = self._settings.hosts[host]
        if own.cpus is not None and own.memory is not None:
            return own.cpus, own.memory
        whole = self._engines.call(host, lambda client: client.info())
        return own.cpus or int(whole["NCPU"]), own.memory or int(whole["MemTotal"]) >> 20

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
        number = self._make(host, machine)
        try:
            self._engines.call(host, lambda client: client.start(number))
        except TransientError:  # It may have been started.
            raise
        except ProviderError:
            self._remove_number(host, number)
            raise

    def _make(self, host: str, machine: requests.ContainerToBe) -> str:
        """Its id; where there is one of that name, that one's, if it is this very machine."""
        try:
            made = self._engines.call(host, lambda client: _created(client, machine))
        except ProviderError as error:
            if error.code != NAME_TAKEN:
                raise
            taken = error
        else:
            return str(made["Id"])
        # Not while the refusal is handled: what fails now would be told by its words.
        there = self._engines.call(host, lambda client: client.inspect_container(machine.name))
        labels = there["Config"].get("Labels") or {}
        key = requests.SPELLING.key
        same = (requests.CLUSTER, key(GENERATION), requests.NODE)
        if any(labels.get(one) != machine.labels[one] for one in same):
            raise taken
        return str(there["Id"])

    def _rows(self, host: str) -> Sequence[Tagged]:
        """All containers with a cluster's label, ours or not, the ended ones included."""
        ours = {"label": requests.CLUSTER}

        def read(client: Client) -> Sequence[Tagged]:
            return convert.containers(
                client.containers(all=True, filters=ours), host, self._settings
            )

        listed = self._engines.call(host, read)
        since = self._clock() - LISTED_LATE
        with self._lock:
            self._killed = {number: when for number, when in self._killed.items() if when > since}
            return convert.without(self._killed, listed)

    def _end(self, one: Tagged) -> None:
        try:
            self._engines.call(one.host, lambda client: client.kill(one.name))
        except InstanceNotFound:
            log.info("already gone cloud=%s id=%s", self.name, one.short)
            return
        except ProviderError as error:
            if error.code != NOT_RUNNING:
                raise
        else:
            with self._lock:
                self._killed[one.name] = self._clock()
            return
        self._end_idle(one)

    def _end_idle(self, one: Tagged) -> None:
        """It has ended already, or was made and never started: then nothing but its removal keeps
        it from being started.
        """
        try:
            there = self._engines.call(one.host, lambda client: client.inspect_container(one.name))
        except InstanceNotFound:
            return
        if there["State"]["Status"] == convert.CREATED:
            self._remove_number(one.host, one.name)

    def _remove(self, one: Tagged) -> None:
        self._remove_number(one.host, one.name)

    def _remove_number(self, host: str, number: str) -> None:
        try:
            self._engines.call(
                host, lambda client: client.remove_container(number, force=True, v=True)
            )
        except InstanceNotFound:
            log.debug("already removed cloud=%s id=%s", self.name, number)


def _created(client: Client, machine: requests.ContainerToBe) -> Mapping[str, Any]:
    settings = machine.settings
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
