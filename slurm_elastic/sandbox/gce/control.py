"""The control orders of the emulated Compute Engine, and the client that sends them.

The parameters of an order's function are the fields of its JSON body (``steering``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from slurm_elastic.sandbox.ec2.faults import Fault, Faults
from slurm_elastic.sandbox.gce.cloud import GceCloud
from slurm_elastic.sandbox.gce.world import GcePace, GceWorld
from slurm_elastic.sandbox.steering import Order, Steering


class SteeredServer(Protocol):
    """The part of the server that orders change."""

    cloud: GceCloud
    faults: Faults
    calls: Counter[str]
    tokens: set[str]
    violations: list[str]
    checked: int


class GceView(Struct, frozen=True, kw_only=True):
    """A machine in the control API's answer. ``created`` is Unix time. ``ending``: somebody has
    deleted it.
    """

    name: str
    zone: str
    status: str
    created: float
    labels: dict[str, str]
    ending: bool


class GceState(Struct, frozen=True, kw_only=True):
    """The whole cloud, as the control API shows it. ``violations``: requests and answers that
    Google's description does not allow. ``checked``: how many requests were compared with it.
    """

    machines: tuple[GceView, ...]
    faults: tuple[Fault, ...]
    calls: dict[str, int]
    made: tuple[str, ...]
    violations: tuple[str, ...]
    checked: int


def view(server: SteeredServer) -> GceState:
    """Return the present state of the cloud."""
    machines = tuple(
        GceView(
            name=m.name, zone=m.zone, status=m.status, created=m.created,
            labels=m.record.get("labels") or {}, ending=not m.is_alive,
        )
        for m in server.cloud.machines.values()
    )  # fmt: skip
    return GceState(
        machines=machines, faults=server.faults.standing(), calls=dict(server.calls),
        made=tuple(server.cloud.ever_made), violations=tuple(server.violations),
        checked=server.checked,
    )  # fmt: skip


def _capacity(server: SteeredServer, _now: float, machines: int) -> None:
    server.cloud.world.capacity = machines


def _pace(server: SteeredServer, _now: float, pace: GcePace) -> None:
    server.cloud.world.pace = pace


def _halt(server: SteeredServer, now: float, names: tuple[str, ...]) -> None:
    server.cloud.halt(names, now)


def _add(server: SteeredServer, now: float, names: tuple[str, ...], zone: str) -> None:
    for name in names:
        server.cloud.add(name, zone, {}, now)


def _protect(server: SteeredServer, _now: float, machine: str, keep: bool) -> None:
    server.cloud.machines[machine].keeper = keep


def _silence(server: SteeredServer, _now: float, zones: tuple[str, ...]) -> None:
    server.cloud.silent_zones = set(zones)


def _preempt(server: SteeredServer, now: float, machine: str, notice: float) -> None:
    server.cloud.preempt(machine, notice, now)


def _maintain(server: SteeredServer, _now: float, machine: str, at: float) -> None:
    server.cloud.machines[machine].maintenance_at = at


def _forget_tokens(server: SteeredServer, _now: float) -> None:
    server.tokens.clear()


def _forget_requests(server: SteeredServer, _now: float) -> None:
    for operation in server.cloud.operations.values():
        operation.request = ""


def _reset(server: SteeredServer, _now: float, world: GceWorld) -> None:
    server.cloud = GceCloud(world)
    server.faults.clear()
    server.calls.clear()


ORDERS: Mapping[str, Order] = {
    "capacity": _capacity,
    "pace": _pace,
    "halt": _halt,
    "add": _add,
    "protect": _protect,
    "silence": _silence,
    "maintain": _maintain,
    "preempt": _preempt,
    "forget-tokens": _forget_tokens,
    "forget-requests": _forget_requests,
    "reset": _reset,
}


class GceControl(Steering):
    """Steers the emulated Compute Engine at ``url``. Every method may raise SandboxError. The
    ``action`` of a fault is a method such as instances.bulkInsert.
    """

    cloud = "Compute Engine"

    @property
    def token_url(self) -> str:
        """Where the key file of a service account sends for tokens."""
        return f"{self.url.rstrip('/')}/token"

    def state(self) -> GceState:
        """Return machines, faults and the numbers of calls."""
        return msgspec.json.decode(self._ask("GET", "state"), type=GceState)

    def capacity(self, machines: int) -> None:
        """Limit the machines of the project."""
        self.order("capacity", machines=machines)

    def pace(self, pace: GcePace) -> None:
        """Set the durations."""
        self.order("pace", pace=pace)

    def halt(self, names: Sequence[str]) -> None:
        """Let these machines go off by themselves."""
        self.order("halt", names=tuple(names))

    def add(self, names: Sequence[str], zone: str) -> None:
        """Add machines of somebody else."""
        self.order("add", names=tuple(names), zone=zone)

    def protect(self, name: str, *, keep: bool) -> None:
        """Protect a machine from deletion, or no longer."""
        self.order("protect", machine=name, keep=keep)

    def silence(self, zones: Sequence[str]) -> None:
        """Let lists of exactly these zones say that the zone did not answer."""
        self.order("silence", zones=tuple(zones))

    def preempt(self, name: str, notice: float) -> None:
        """Tell a machine that Google takes it back, and take it ``notice`` seconds later."""
        self.order("preempt", machine=name, notice=notice)

    def maintain(self, name: str, at: float) -> None:
        """Announce maintenance of a machine's host (Unix time)."""
        self.order("maintain", machine=name, at=at)

    def reset(self, world: GceWorld) -> None:
        """Replace the whole cloud by one without machines, faults and counts."""
        self.order("reset", world=world)
