"""Libcloud's dummy cloud with what it lacks: machines keep what they are made with, ids are never
used again, and calls go wrong when they are told to.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import InvalidCredsError, MalformedResponseError
from libcloud.compute.drivers.dummy import DummyNodeDriver
from requests import ConnectionError as NoConnection
from requests import ReadTimeout
from slurm_elastic_libcloud import LibcloudCloud
from slurm_elastic_libcloud.provider import LibcloudProvider

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.providers.base.tags import NodeNames
from slurm_elastic.testing.contract import UUID
from slurm_elastic.testing.matrix import FOR_GOOD, times

REFUSALS: dict[str, Callable[[], Exception]] = {
    "capacity": lambda: BaseHTTPError(409, "No valid host was found"),
    "quota": lambda: BaseHTTPError(403, "Quota exceeded for instances"),
    "throttle": lambda: BaseHTTPError(429, "Rate limit"),
    "auth": lambda: InvalidCredsError("wrong key"),
    "internal": lambda: BaseHTTPError(500, "Internal error"),
    "reset before": lambda: NoConnection("reset by peer"),
}
AFTER: dict[str, Callable[[], Exception]] = {
    "reset after": lambda: NoConnection("reset by peer"),
    "time-out": lambda: ReadTimeout("no answer"),
    "wrong data": lambda: MalformedResponseError("a web page", body="<html>", driver=None),
}
CALLS = {"launch": "create_node", "list": "list_nodes", "terminate": "destroy_node"}
BY_ERROR = {
    CapacityError: "capacity", QuotaError: "quota", AuthError: "auth", TransientError: "internal",
}  # fmt: skip
EVERY = 10**6


class Dummy:
    """The cloud behind all drivers: its machines, and what is to go wrong by call."""

    def __init__(self) -> None:
        self.nodes: dict[str, object] = {}
        self.made: list[str] = []
        self.most: int | None = None
        self.visible: dict[str, float] = {}
        self.hide = 0.0
        self.now: Callable[[], float] = time.monotonic
        self.trouble: dict[str, list] = {}
        self.silent = threading.Event()
        self.silent.set()

    def driver(self) -> Driver:
        return Driver(self)


class Driver(DummyNodeDriver):
    def __init__(self, cloud: Dummy) -> None:
        super().__init__("1")
        self.cloud = cloud
        self.count = itertools.count(len(cloud.made) + 1)

    def list_nodes(self):
        cloud = self.cloud
        now = cloud.now()
        return self._struck(
            "list_nodes",
            lambda: [n for i, n in cloud.nodes.items() if cloud.visible.get(i, 0) <= now],
        )

    def list_sizes(self):
        return self._struck("list_sizes", super().list_sizes)

    def create_node(self, name, size, image, ex_metadata=None):
        return self._struck("create_node", lambda: self._made(name, size, image, ex_metadata))

    def destroy_node(self, node):
        return self._struck("destroy_node", lambda: self._destroyed(node))

    def _made(self, name, size, image, metadata):
        cloud = self.cloud
        if cloud.most is not None and len(cloud.nodes) >= cloud.most:
            raise REFUSALS["capacity"]()
        self.nl.clear()
        node = super().create_node(name=name, size=size, image=image)
        number = f"dummy-{len(cloud.made) + 1}"
        node.id, node.name, node.extra = number, name, {"metadata": metadata}
        cloud.made.append(number)
        cloud.nodes[number] = node
        cloud.visible[number] = cloud.now() + cloud.hide
        return node

    def _destroyed(self, node):
        if self.cloud.nodes.pop(node.id, None) is None:
            raise BaseHTTPError(404, "no such machine")
        return True

    def _struck(self, call, do):
        """Do it, or not, or without an answer, as was asked for."""
        if not self.cloud.silent.wait(0) and not self.cloud.silent.wait(self.connection.timeout):
            raise ReadTimeout("no answer")
        fault, left = self.cloud.trouble.get(call, ("", 0))
        if not left:
            return do()
        self.cloud.trouble[call] = [fault, left - 1]
        if fault in REFUSALS:
            raise REFUSALS[fault]()
        answer = do()
        if fault in AFTER:
            raise AFTER[fault]()
        return answer  # a slow one


class DummyBed:
    """For the contract and, opened with its clock, for the fault matrix."""

    name = "libcloud"
    pool = Pool(
        name="b", cloud="dummy", nodes=tuple(f"b{n}" for n in range(1, 1101)), cpus=2,
        real_memory=3000, instance_types=("Big",), markets=(Market.ON_DEMAND,),
    )  # fmt: skip

    def __init__(self) -> None:
        self.cloud = Dummy()

    def settings(self, timeout: float = 6.0) -> LibcloudCloud:
        return LibcloudCloud(
            name="dummy", location=Location.PUBLIC, driver="dummy", credentials="none", image="1",
            types={"Big": InstanceType(cpus=2, memory=4096, price=0.2)}, api_timeout=timeout,
        )  # fmt: skip

    def open(self, uuid: str = UUID, timeout: float = 60.0) -> LibcloudProvider:
        return self._opened(self.settings(timeout), uuid, self.cloud.now)

    def _opened(self, settings, uuid, clock) -> LibcloudProvider:
        cluster = Cluster(name="site", uuid=uuid)
        return LibcloudProvider(settings, cluster, None, self.cloud.driver(), clock)

    def alive(self) -> set[str]:
        return set(self.cloud.nodes)

    def made(self) -> int:
        return len(self.cloud.made)

    def add_foreign(self) -> set[str]:
        driver = self.cloud.driver()
        node = driver.create_node("pet", driver.list_sizes()[0], driver.list_images()[0], {})
        return {node.id}

    def limit(self, count: int) -> None:
        self.cloud.most = count

    def fail_late(self, node: str) -> Callable[[], None]:
        def fail() -> None:
            for one in self.cloud.nodes.values():
                if one.name == node:
                    one.state = "error"

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        calls = CALLS.values() if error in (AuthError, TransientError) else ["create_node"]
        self.cloud.trouble = {call: [BY_ERROR[error], EVERY] for call in calls}

    def lose_answers(self) -> None:
        self.cloud.trouble = {"create_node": ["reset after", EVERY]}

    def fall_silent(self) -> None:
        self.cloud.silent.clear()

    def heal(self) -> None:
        self.cloud.trouble = {}
        self.cloud.silent.set()

    def hide_fresh(self, seconds: float) -> None:
        self.cloud.hide = seconds

    def wait(self, seconds: float) -> None:
        ahead, now = seconds, self.cloud.now
        self.cloud.now = lambda: now() + ahead


class MatrixBed(DummyBed):
    def open(self, clock) -> LibcloudProvider:  # type: ignore[override]
        return self._opened(self.settings(), UUID, clock)

    def nodes(self) -> Mapping[str, str]:
        found = self.cloud.nodes.items()
        return {i: NodeNames().node(n.extra["metadata"], 0) for i, n in found}

    def show(self) -> None:
        self.cloud.hide = 0.0
        self.cloud.visible = {}

    def strike(self, fault: str, call: str) -> bool:
        if fault in FOR_GOOD and call != "launch":
            return False
        self.cloud.trouble[CALLS[call]] = [
            fault,
            EVERY if fault in FOR_GOOD else times(fault, call),
        ]
        return True

    def standing(self) -> object:
        return {call: list(left) for call, left in self.cloud.trouble.items()}
