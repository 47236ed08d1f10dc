"""Steering the emulated OpenNebula: the control API under ``/_sandbox/``, both of its ends.

``GET state``; ``POST faults`` (a Fault, or ``{"clear": true}``), ``quota``, ``hosts``, ``pace``,
``place`` (a machine as it is to be), ``end``, ``restart``, ``reset`` (a World). Bodies and
answers are JSON; an answer other than 200 carries ``{"error": sentence}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, field

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.ec2_faults import Fault
from slurm_elastic.sandbox.one_world import Host, Image, Net, Pace, World
from slurm_elastic.sandbox.steering import Steering

if TYPE_CHECKING:
    from collections import Counter

    from slurm_elastic.sandbox.ec2_faults import Faults
    from slurm_elastic.sandbox.one_cloud import Cloud


NODE_TAG = "SLURM_ELASTIC_NODE"


class Steered(Protocol):
    """The server, as far as orders change it."""

    cloud: Cloud
    faults: Faults
    calls: Counter[str]


class VmView(Struct, frozen=True, kw_only=True):
    """A machine as a rehearsal sees it; times are Unix."""

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


class View(Struct, frozen=True, kw_only=True):
    """The whole cloud."""

    machines: tuple[VmView, ...]
    faults: tuple[Fault, ...]
    calls: dict[str, int]


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The quotas of a user or of a group, by id: VMS, CPU, MEMORY and the like; ``leases`` by
    network and ``runs`` by image, of a user. ``hidden``: the group's members may not read it.
    """

    user: int | None = None
    group: int | None = None
    vm: dict[str, float] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    hidden: bool = False


class Place(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine put there as it is; an older one of that id is forgotten. ``template`` and
    ``extra`` are texts in oned's form; with ``host`` it is deployed there.
    """

    id: int
    name: str = "vm"
    uid: int = 0
    state: int = 3
    lcm: int = 3
    template: int | None = None
    extra: str = ""
    user_template: dict[str, str] | None = None
    host: int | None = None
    held: bool = False
    locked: bool = False
    began: float | None = None


class _Hosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hosts: list[Host] | None = None
    nets: list[Net] | None = None
    images: list[Image] | None = None


class _Count(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    next_id: int


class _Restart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    answer: float


class _End(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ids: tuple[int, ...]


def carry_out(front: Steered, method: str, name: str, body: bytes, now: float) -> object:
    """One request to the control API: what it answers. SandboxError where it is wrong."""
    if (method, name) == ("GET", "state"):
        return view(front)
    order = _ORDERS.get(name) if method == "POST" else None
    if order is None:
        raise SandboxError(f"the control API has no {method} {name!r}")
    try:
        return order(front, body or b"{}", now)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise SandboxError(f"{name}: {error}") from error


def view(front: Steered) -> View:
    """The cloud as it is."""
    machines = []
    for vm in front.cloud.vms.values():
        context = next((c for c in vm.template.get("CONTEXT", []) if isinstance(c, dict)), {})
        machines.append(
            VmView(
                id=vm.id,
                name=vm.name,
                node=vm.user_template.get(NODE_TAG, ""),
                uid=vm.owner.id,
                state=vm.state,
                lcm=vm.lcm,
                launched=vm.began,
                tags=dict(vm.user_template),
                context=context,
                addresses=tuple(vm.addresses),
            )
        )
    return View(machines=tuple(machines), faults=front.faults.standing(), calls=dict(front.calls))


def _faults(front: Steered, body: bytes, _now: float) -> object:
    if msgspec.json.decode(body) == {"clear": True}:
        front.faults.clear()
    else:
        front.faults.add(msgspec.json.decode(body, type=Fault))
    return front.faults.standing()


def _quota(front: Steered, body: bytes, _now: float) -> object:
    order = msgspec.json.decode(body, type=Quota)
    if order.group is not None:
        front.cloud.world.groups[order.group] = dict(order.vm)
        hidden = front.cloud.world.hidden_groups
        (hidden.add if order.hidden else hidden.discard)(order.group)
    for user in front.cloud.world.users:
        if user.id == order.user:
            user.quota, user.leases = dict(order.vm), dict(order.leases)
            user.runs = dict(order.runs)
    return {}


def _hosts(front: Steered, body: bytes, _now: float) -> object:
    order = msgspec.json.decode(body, type=_Hosts)
    world = front.cloud.world
    world.hosts = world.hosts if order.hosts is None else order.hosts
    world.nets = world.nets if order.nets is None else order.nets
    world.images = world.images if order.images is None else order.images
    return {}


def _pace(front: Steered, body: bytes, _now: float) -> object:
    front.cloud.world.pace = msgspec.json.decode(body, type=Pace)
    return {}


def _place(front: Steered, body: bytes, now: float) -> object:
    from slurm_elastic.sandbox.one_place import place

    return place(front.cloud, msgspec.json.decode(body, type=Place), now).id


def _count(front: Steered, body: bytes, _now: float) -> object:
    front.cloud.next_id = msgspec.json.decode(body, type=_Count).next_id
    return {}


def _end(front: Steered, body: bytes, now: float) -> object:
    for number in msgspec.json.decode(body, type=_End).ids:
        if number in front.cloud.vms:
            front.cloud.end(front.cloud.vms[number], now)
    return {}


def _restart(front: Steered, body: bytes, now: float) -> object:
    front.cloud.advance(now)
    front.cloud.restart(now, msgspec.json.decode(body, type=_Restart).answer)
    return {}


def _shut_down(front: Steered, body: bytes, _now: float) -> object:
    for number in msgspec.json.decode(body, type=_End).ids:
        if number in front.cloud.vms:
            front.cloud.shut_down(front.cloud.vms[number])
    return {}


def _reset(front: Steered, body: bytes, _now: float) -> object:
    from slurm_elastic.sandbox.one_cloud import Cloud

    front.cloud = Cloud(msgspec.json.decode(body, type=World))
    front.faults.clear()
    front.calls.clear()
    return {}


_ORDERS: Mapping[str, Callable[[Steered, bytes, float], object]] = {
    "faults": _faults,
    "quota": _quota,
    "hosts": _hosts,
    "pace": _pace,
    "place": _place,
    "count": _count,
    "end": _end,
    "restart": _restart,
    "shut-down": _shut_down,
    "reset": _reset,
}


class OneControl(Steering):
    """The other end: steers the emulated front end at ``url``. Methods may raise SandboxError.

    The ``action`` of a fault is a method such as one.vm.action.
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
        self._ask("POST", "quota", quota)

    def hosts(self, hosts: Sequence[Host]) -> None:
        """Have these hosts and no others."""
        self._ask("POST", "hosts", _Hosts(hosts=list(hosts)))

    def nets(self, nets: Sequence[Net]) -> None:
        """Have these networks and no others."""
        self._ask("POST", "hosts", _Hosts(nets=list(nets)))

    def images(self, images: Sequence[Image]) -> None:
        """Have these images and no others."""
        self._ask("POST", "hosts", _Hosts(images=list(images)))

    def pace(self, pace: Pace) -> None:
        """Set how long things take, and what fails to boot."""
        self._ask("POST", "pace", pace)

    def place(self, machine: Place) -> None:
        """Put a machine there as it is."""
        self._ask("POST", "place", machine)

    def count_from(self, number: int) -> None:
        """Have the next machine get that number."""
        self._ask("POST", "count", _Count(next_id=number))

    def end(self, ids: Sequence[int]) -> None:
        """Have machines end by themselves."""
        self._ask("POST", "end", _End(ids=tuple(ids)))

    def restart(self, answer: float) -> None:
        """Oned is killed and started anew; drivers answer it after so many seconds."""
        self._ask("POST", "restart", _Restart(answer=answer))

    def shut_down(self, ids: Sequence[int]) -> None:
        """These machines power themselves off, as by ``shutdown -h now`` on them."""
        self._ask("POST", "shut-down", _End(ids=tuple(ids)))

    def reset(self, world: World) -> None:
        """Begin anew."""
        self._ask("POST", "reset", world)
