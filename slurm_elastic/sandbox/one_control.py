"""The orders that the emulated OpenNebula takes, and who gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct, field

from slurm_elastic.sandbox.ec2_faults import Fault, Faults
from slurm_elastic.sandbox.one_cloud import DONE, Cloud
from slurm_elastic.sandbox.one_place import Place, place
from slurm_elastic.sandbox.one_world import EmulatedImage, Host, Net, Pace, World
from slurm_elastic.sandbox.steering import Order, Steering

NODE_TAG = "SLURM_ELASTIC_NODE"


class Steered(Protocol):
    """The server, as far as orders change it."""

    cloud: Cloud
    faults: Faults
    calls: Counter[str]


class VmView(Struct, frozen=True, kw_only=True):
    """A machine as a rehearsal sees it; times are Unix. ``ending``: its end was asked for."""

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


class View(Struct, frozen=True, kw_only=True):
    """The whole cloud."""

    machines: tuple[VmView, ...]
    faults: tuple[Fault, ...]
    calls: dict[str, int]


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The quotas of a user or of a group, by id: VMS, CPU, MEMORY and the like; ``leases`` by
    network and ``runs`` by image, of a user. ``stale``: counted and no longer used, as oned does
    after it was killed. ``hidden``: the group's members may not read it.
    """

    user: int | None = None
    group: int | None = None
    vm: dict[str, float] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    stale: dict[str, float] = field(default_factory=dict)
    hidden: bool = False


def view(front: Steered) -> View:
    """The cloud as it is."""
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
    return View(machines=tuple(machines), faults=front.faults.standing(), calls=dict(front.calls))


def _quota(front: Steered, _now: float, quota: Quota) -> None:
    world = front.cloud.world
    if quota.group is not None:
        world.groups[quota.group] = dict(quota.vm)
        (world.hidden_groups.add if quota.hidden else world.hidden_groups.discard)(quota.group)
    for user in world.users:
        if user.id == quota.user:
            user.quota, user.leases = dict(quota.vm), dict(quota.leases)
            user.runs = dict(quota.runs)
            user.stale = dict(quota.stale)


def _hosts(front: Steered, _now: float, hosts: list[Host]) -> None:
    front.cloud.world.hosts = hosts


def _nets(front: Steered, _now: float, nets: list[Net]) -> None:
    front.cloud.world.nets = nets


def _images(front: Steered, _now: float, images: list[EmulatedImage]) -> None:
    front.cloud.world.images = images


def _pace(front: Steered, _now: float, pace: Pace) -> None:
    front.cloud.world.pace = pace


def _place(front: Steered, now: float, machine: Place) -> int:
    return place(front.cloud, machine, now).id


def _count(front: Steered, _now: float, next_id: int) -> None:
    front.cloud.next_id = next_id


def _end(front: Steered, now: float, ids: tuple[int, ...]) -> None:
    for number in front.cloud.vms.keys() & set(ids):
        front.cloud.end(front.cloud.vms[number], now)


def _restart(front: Steered, now: float, answer: float) -> None:
    front.cloud.advance(now)
    front.cloud.restart(now, answer)


def _shut_down(front: Steered, _now: float, ids: tuple[int, ...]) -> None:
    for number in front.cloud.vms.keys() & set(ids):
        front.cloud.shut_down(front.cloud.vms[number])


def _reset(front: Steered, _now: float, world: World) -> None:
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
        """The text that a client is told."""
        return f"{self.url.rstrip('/')}/RPC2"

    def state(self) -> View:
        """Machines, faults and how many calls there were."""
        return msgspec.json.decode(self._ask("GET", "state"), type=View)

    def quota(self, quota: Quota) -> None:
        """Set the quotas of a user or a group."""
        self.order("quota", quota=quota)

    def hosts(self, hosts: Sequence[Host]) -> None:
        """Have these hosts and no others."""
        self.order("hosts", hosts=list(hosts))

    def nets(self, nets: Sequence[Net]) -> None:
        """Have these networks and no others."""
        self.order("nets", nets=list(nets))

    def images(self, images: Sequence[EmulatedImage]) -> None:
        """Have these images and no others."""
        self.order("images", images=list(images))

    def pace(self, pace: Pace) -> None:
        """Set how long things take, and what fails to boot."""
        self.order("pace", pace=pace)

    def place(self, machine: Place) -> None:
        """Put a machine there as it is."""
        self.order("place", machine=machine)

    def count_from(self, number: int) -> None:
        """Have the next machine get that number."""
        self.order("count", next_id=number)

    def end(self, ids: Sequence[int]) -> None:
        """Have machines end by themselves."""
        self.order("end", ids=tuple(ids))

    def restart(self, answer: float) -> None:
        """Oned is killed and started anew; drivers answer it after so many seconds."""
        self.order("restart", answer=answer)

    def shut_down(self, ids: Sequence[int]) -> None:
        """These machines power themselves off, as by ``shutdown -h now`` on them."""
        self.order("shut-down", ids=tuple(ids))

    def reset(self, world: World) -> None:
        """Begin anew."""
        self.order("reset", world=world)
