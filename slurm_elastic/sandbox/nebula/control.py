"""The control orders of the emulated OpenNebula, and the client that sends them.

The parameters of an order's function are the fields of its JSON body (``steering``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct, field

from slurm_elastic.sandbox.ec2.faults import Fault, Faults
from slurm_elastic.sandbox.nebula.cloud import DONE, Cloud
from slurm_elastic.sandbox.nebula.place import Place, place
from slurm_elastic.sandbox.nebula.world import EmulatedImage, Net, OneHost, OnePace, OneWorld
from slurm_elastic.sandbox.steering import Order, Steering

NODE_TAG = "SLURM_ELASTIC_NODE"


class SteeredServer(Protocol):
    """The part of the server that orders change."""

    cloud: Cloud
    faults: Faults
    calls: Counter[str]


class VmView(Struct, frozen=True, kw_only=True):
    """A machine in the control API's answer. Times are Unix time. ``ending``: its termination was
    requested.
    """

    id: int
    name: str
    node: str
    uid: int
    state: int
    lcm: int
    launched: float
    tags: dict[str, str]
    context: dict[str, str]
    addresses: tuple[str, ...] = ()
    ending: bool = False


class OneView(Struct, frozen=True, kw_only=True):
    """The whole cloud, as the control API shows it."""

    machines: tuple[VmView, ...]
    faults: tuple[Fault, ...]
    calls: dict[str, int]


class OneQuota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The quotas of a user or a group (by id). ``vm``: VMS, CPU, MEMORY and the like. For a user
    also ``leases`` by network and ``runs`` by image. ``stale``: amounts that are counted but no
    longer used, as happens when oned was killed. ``hidden``: the group's members may not read it.
    """

    user: int | None = None
    group: int | None = None
    vm: dict[str, float] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    stale: dict[str, float] = field(default_factory=dict)
    hidden: bool = False


def view(front: SteeredServer) -> OneView:
    """Return the present state of the cloud."""
    machines = []
    for vm in front.cloud.vms.values():
        context = next((c for c in vm.template.get("CONTEXT", []) if isinstance(c, dict)), {})
        machines.append(
            VmView(
                id=vm.id, name=vm.name, node=vm.user_template.get(NODE_TAG, ""), uid=vm.owner.id,
                state=vm.state, lcm=vm.lcm, launched=vm.began, tags=dict(vm.user_template),
                context=context, addresses=tuple(vm.addresses),
                ending=vm.action > 0 and vm.state != DONE,
            )
        )  # fmt: skip
    return OneView(
        machines=tuple(machines), faults=front.faults.standing(), calls=dict(front.calls)
    )


def _quota(front: SteeredServer, _now: float, quota: OneQuota) -> None:
    world = front.cloud.world
    if quota.group is not None:
        world.groups[quota.group] = dict(quota.vm)
        (world.hidden_groups.add if quota.hidden else world.hidden_groups.discard)(quota.group)
    for user in world.users:
        if user.id == quota.user:
            user.quota, user.leases = dict(quota.vm), dict(quota.leases)
            user.runs = dict(quota.runs)
            user.stale = dict(quota.stale)


def _hosts(front: SteeredServer, _now: float, hosts: list[OneHost]) -> None:
    front.cloud.world.hosts = hosts


def _nets(front: SteeredServer, _now: float, nets: list[Net]) -> None:
    front.cloud.world.nets = nets


def _images(front: SteeredServer, _now: float, images: list[EmulatedImage]) -> None:
    front.cloud.world.images = images


def _pace(front: SteeredServer, _now: float, pace: OnePace) -> None:
    front.cloud.world.pace = pace


def _place(front: SteeredServer, now: float, machine: Place) -> int:
    return place(front.cloud, machine, now).id


def _count(front: SteeredServer, _now: float, next_id: int) -> None:
    front.cloud.next_id = next_id


def _end(front: SteeredServer, now: float, ids: tuple[int, ...]) -> None:
    for number in front.cloud.vms.keys() & set(ids):
        front.cloud.end(front.cloud.vms[number], now)


def _restart(front: SteeredServer, now: float, answer: float) -> None:
    front.cloud.advance(now)
    front.cloud.restart(now, answer)


def _shut_down(front: SteeredServer, _now: float, ids: tuple[int, ...]) -> None:
    for number in front.cloud.vms.keys() & set(ids):
        front.cloud.shut_down(front.cloud.vms[number])


def _reset(front: SteeredServer, _now: float, world: OneWorld) -> None:
    front.cloud = Cloud(world)
    front.faults.clear()
    front.calls.clear()


ORDERS: Mapping[str, Order] = {
    "quota": _quota,
    "hosts": _hosts,
    "nets": _nets,
    "images": _images,
    "pace": _pace,
    "place": _place,
    "count": _count,
    "end": _end,
    "restart": _restart,
    "shut-down": _shut_down,
    "reset": _reset,
}


class OneControl(Steering):
    """Steers the emulated front end at ``url``. Every method may raise SandboxError. The ``action``
    of a fault is a method such as one.vm.action.
    """

    cloud = "OpenNebula"

    @property
    def endpoint(self) -> str:
        """The endpoint to configure in a client."""
        return f"{self.url.rstrip('/')}/RPC2"

    def state(self) -> OneView:
        """Return machines, faults and the numbers of calls."""
        return msgspec.json.decode(self._ask("GET", "state"), type=OneView)

    def quota(self, quota: OneQuota) -> None:
        """Set the quotas of a user or a group."""
        self.order("quota", quota=quota)

    def hosts(self, hosts: Sequence[OneHost]) -> None:
        """Replace all hosts."""
        self.order("hosts", hosts=list(hosts))

    def nets(self, nets: Sequence[Net]) -> None:
        """Replace all networks."""
        self.order("nets", nets=list(nets))

    def images(self, images: Sequence[EmulatedImage]) -> None:
        """Replace all images."""
        self.order("images", images=list(images))

    def pace(self, pace: OnePace) -> None:
        """Set the durations, and which machines fail to boot."""
        self.order("pace", pace=pace)

    def place(self, machine: Place) -> None:
        """Make a machine in a given state."""
        self.order("place", machine=machine)

    def count_from(self, number: int) -> None:
        """Set the id of the next machine."""
        self.order("count", next_id=number)

    def end(self, ids: Sequence[int]) -> None:
        """End machines, as if by themselves."""
        self.order("end", ids=tuple(ids))

    def restart(self, answer: float) -> None:
        """Emulate a kill and restart of oned. Drivers answer after ``answer`` seconds."""
        self.order("restart", answer=answer)

    def shut_down(self, ids: Sequence[int]) -> None:
        """Let these machines power themselves off, as ``shutdown -h now`` on them does."""
        self.order("shut-down", ids=tuple(ids))

    def reset(self, world: OneWorld) -> None:
        """Replace the whole cloud by one without machines, faults and counts."""
        self.order("reset", world=world)
