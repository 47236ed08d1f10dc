"""OpenNebula and OpenStack without sockets and on a clock of the test's: the providers' own code, the
emulators' own answers, and what goes wrong between them.
"""

from __future__ import annotations

import json
import threading
import xmlrpc.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock
from urllib.parse import urlsplit

from keystoneauth1 import exceptions as ksa
from providers.opennebula import bed as one_bed
from providers.openstack import bed as stack_bed
from providers.openstack import stand_in as nova_stand_in

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.opennebula import front_end
from slurm_elastic.providers.opennebula import provider as opennebula
from slurm_elastic.providers.opennebula.client import OneServer, Transport
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud
from slurm_elastic.providers.openstack import convert, launch, project
from slurm_elastic.providers.openstack.client import HttpRefused
from slurm_elastic.providers.openstack.provider import OpenStackProvider
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.world import OnePace
from slurm_elastic.sandbox.opennebula import OneFront
from slurm_elastic.testing.contract import UUID

CLUSTER = Cluster(name="site", uuid=UUID)
BEFORE, AFTER = (
    ("reset before", "internal", "unavailable"),
    ("reset after", "internal after", "page"),
)


class Clock:
    """Stands in for the module ``time``, too."""

    def __init__(self) -> None:
        self.now = 1_795_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = __call__ = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Cloud(Protocol):
    clock: Clock
    pool: Pool

    def open(self) -> Provider:
        """As a process that has just started opens it."""
        ...

    def fail_next(self, fault: str, count: int) -> None:
        """So many orders from now on."""
        ...

    def heal(self) -> None: ...

    def made(self) -> list[str]:
        """The node of each machine that was ever made."""
        ...


class OneInProcess:
    pool = one_bed.OneBed.pool
    KINDS = {  # noqa: RUF012
        "reset before": FaultKind.RESET_BEFORE,
        "internal": FaultKind.INTERNAL,
        "unavailable": FaultKind.THROTTLE,
        "reset after": FaultKind.RESET_AFTER,
        "internal after": FaultKind.INTERNAL_AFTER,
        "page": FaultKind.GARBAGE,
    }

    def __init__(self, lag: float) -> None:
        self.clock = Clock()
        world = one_bed.world()
        world.pace = OnePace(schedule=1.0, boot=1.0, shutdown=1.0, visible_after=lag)
        self.front = OneFront(world, self.clock)

    @classmethod
    @contextmanager
    def serving(cls, lag: float) -> Iterator[OneInProcess]:
        cloud = cls(lag)
        with mock.patch.object(front_end, "open_server", return_value=cloud.server()):
            yield cloud

    def server(self) -> Any:
        server = OneServer("http://one/RPC2", session="elastic:secretpw")
        server._ServerProxy__transport = _OneTransport(self.front)
        return server

    def open(self) -> Provider:
        settings = OpenNebulaCloud(
            name=one_bed.NAME,
            location=Location.ON_PREMISES,
            endpoint="http://one/RPC2",
            types={"small": OneTemplate(cpus=2, memory=4096, template=0)},
        )
        return opennebula.OpenNebulaProvider(
            settings, CLUSTER, clock=self.clock, monotonic=self.clock
        )

    def fail_next(self, fault: str, count: int) -> None:
        kind = self.KINDS[fault]
        self.front.faults.add(Fault(kind=kind, action=one_bed.INSTANTIATE, count=count))

    def heal(self) -> None:
        self.front.faults.clear()

    def made(self) -> list[str]:
        return [vm.user_template["SLURM_ELASTIC_NODE"] for vm in self.front.cloud.vms.values()]


class _OneTransport(Transport):
    def __init__(self, front: OneFront) -> None:
        super().__init__(20.0, None)
        self._front = front

    def _post(self, host: str, handler: str, body: bytes) -> bytes:
        answer = self._front.rpc(body)
        if answer.status != 200:
            raise xmlrpc.client.ProtocolError(host + handler, answer.status, "no", {})
        return answer.body


class StackInProcess:
    pool = stack_bed.StackBed.pool
    url = "http://stack"
    PREFIX = {"compute": "/compute/v2.1", "image": "/image/v2", "network": "/network/v2.0"}  # noqa: RUF012

    def __init__(self, lag: float) -> None:
        self.clock = Clock()
        self.world = nova_stand_in.World(visible_after=lag)
        self.lock = threading.RLock()
        self.faults: list[str] = []

    @classmethod
    @contextmanager
    def serving(cls, lag: float) -> Iterator[StackInProcess]:
        cloud = cls(lag)
        with (
            mock.patch.object(nova_stand_in, "time", cloud.clock),
            mock.patch.object(launch, "time", cloud.clock),
            mock.patch.object(project, "OpenStackApi", return_value=cloud),
        ):
            yield cloud

    def open(self) -> Provider:
        settings = OpenStackCloud(
            name=stack_bed.NAME,
            location=Location.ON_PREMISES,
            cloud="hpc",
            image="worker",
            types={"small": Flavor(cpus=2, memory=4096)},
            schedule_timeout=2.0,
        )
        return OpenStackProvider(settings, CLUSTER, clock=self.clock, monotonic=self.clock)

    def call(
        self, service: str, method: str, path: str, body: object = None, content: str = ""
    ) -> Any:
        ordered = (method, path) == ("POST", "/servers")
        fault = self.faults.pop(0) if ordered and self.faults else ""
        if fault in BEFORE:
            self._fail(fault)
        target = self.PREFIX[service] + path
        with self.lock:
            words = json.loads(json.dumps(body))
            status, answer = nova_stand_in._route(self, method, target, words)  # type: ignore[arg-type]
        if status >= 400:
            raise HttpRefused(method, urlsplit(path).path, status, json.dumps(answer))
        if fault:
            self._fail(fault)
        return answer

    def _fail(self, fault: str) -> None:
        if fault.startswith("reset"):
            raise ksa.ConnectFailure("Connection reset by peer")
        if fault == "page":
            raise json.JSONDecodeError("Expecting value", "<html>", 0)
        status = 503 if fault == "unavailable" else 500
        raise HttpRefused("POST", "/servers", status, "Unexpected API Error.")

    def fail_next(self, fault: str, count: int) -> None:
        self.faults += [fault] * count

    def heal(self) -> None:
        self.faults.clear()

    def made(self) -> list[str]:
        assert not self.world.deleted
        return [s.node for s in convert.servers(list(self.world.servers.values()))]


CLOUDS: dict[str, Callable[[float], Any]] = {
    "opennebula": OneInProcess.serving,
    "openstack": StackInProcess.serving,
}
