"""The machines of the emulated OpenNebula: started, placed, booted and ended as oned does it.

Nothing runs by itself: ``advance`` brings all machines to where they are at a time. oned's codes
and messages are kept to the letter (recorded from 6.10.5).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from ipaddress import ip_address
from time import gmtime, strftime

from msgspec import Struct, field

from slurm_elastic.sandbox.one_parts import disk, filled_context, nic, security_rules
from slurm_elastic.sandbox.one_template import Template, scalars, vectors
from slurm_elastic.sandbox.one_world import EmulatedImage, Host, Net, User, VmTemplate, World

PENDING, HOLD, ACTIVE, STOPPED, SUSPENDED, DONE, POWEROFF = 1, 2, 3, 4, 5, 6, 8
PROLOG, BOOT, RUNNING, EPILOG, SHUTDOWN, BOOT_FAILURE = 1, 2, 3, 11, 12, 36
STATES = {
    0: "INIT",
    1: "PENDING",
    2: "HOLD",
    4: "STOPPED",
    5: "SUSPENDED",
    6: "DONE",
    8: "POWEROFF",
}
LCM_STATES = {0: "LCM_INIT", 1: "PROLOG", 2: "BOOT", 3: "RUNNING", 11: "EPILOG", 12: "SHUTDOWN",
              36: "BOOT_FAILURE"}  # fmt: skip
_NO_HOST = "Cannot dispatch VM: No host with enough capacity to deploy the VM"
_NOT_NOW = (
    "Cannot dispatch VM to any Host. Possible reasons: Not enough capacity in Host or System DS, "
    "dispatch limit reached, or limit of free leases reached"
)
_IN_TEMPLATE = frozenset(
    {
        "CPU",
        "VCPU",
        "MEMORY",
        "DISK",
        "NIC",
        "CONTEXT",
        "OS",
        "FEATURES",
        "GRAPHICS",
        "RAW",
        "INPUT",
    }
)
_TERMINATE, _TERMINATE_HARD = 27, 28


ANSWERS_BEFORE = 0.1
"""Seconds for which a machine is RUNNING yet after oned has answered that it ends it."""
DISK_SIZE = 1024.0
"""MiB of every image."""


class Refusal(Exception):  # noqa: N818
    """oned's no: a code, the message after its prefix and the object it is about."""

    def __init__(self, code: int, message: str, about: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.about = about


class Vm(Struct, kw_only=True):
    """One machine. ``began`` is the stand-in's exact clock, ``due`` when its state changes next."""

    id: int
    owner: User
    name: str
    template: Template
    user_template: dict[str, str]
    began: float
    due: float
    state: int = PENDING
    lcm: int = 0
    ended: float = 0.0
    host: Host | None = None
    deployed: float = 0.0
    action: int = 0
    locked: bool = False
    net: int | None = None

    @property
    def cpu(self) -> float:
        """Physical cpus."""
        return float(scalars(self.template).get("CPU", "0"))

    @property
    def memory(self) -> float:
        """MiB."""
        return float(scalars(self.template).get("MEMORY", "0"))

    @property
    def images(self) -> list[int]:
        """The images of its disks."""
        return [int(d["IMAGE_ID"]) for d in vectors(self.template, "DISK") if d.get("IMAGE_ID")]

    @property
    def addresses(self) -> list[str]:
        """The addresses of its network cards; kept after its end."""
        return [nic["IP"] for nic in vectors(self.template, "NIC") if "IP" in nic]


class MachineWish(Struct, frozen=True, kw_only=True):
    """The wish of an instantiate or allocate call, its texts parsed."""

    name: str
    hold: bool
    base: Template
    extra: Template = field(default_factory=dict)
    template_id: int | None = None


class Cloud:
    """Everything there is; callers hold the server's lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.vms: dict[int, Vm] = {}
        self.next_id = 0
        self._dispatched: Counter[tuple[int, int | None]] = Counter()

    def user(self, session: str) -> User:
        """Whose session string it is."""
        name, _, password = session.partition(":")
        for user in self.world.users:
            if user.name == name and user.password == password:
                return user
        raise Refusal(0x0100, "User couldn't be authenticated, aborting call.")

    def image(self, number: str) -> EmulatedImage | None:
        """The image that a text names by its id."""
        wanted = int(number) if number.isdecimal() else -1
        return next((i for i in self.world.images if i.id == wanted), None)

    def living(self) -> list[Vm]:
        """All that are not DONE."""
        return [vm for vm in self.vms.values() if vm.state != DONE]

    # starting

    def start(self, user: User, order: MachineWish, now: float) -> Vm:
        """A new machine, PENDING or on HOLD; its addresses are leased already."""
        template = deepcopy(order.base)
        template.update(deepcopy(order.extra))
        plain = scalars(template)
        own = {k: v for k, v in plain.items() if k not in _IN_TEMPLATE and k != "NAME"}
        kept: Template = {k: v for k, v in template.items() if k in _IN_TEMPLATE}
        _require_positive(user, scalars(kept))
        leases = self._check_parts(user, kept, by_template=order.template_id is not None)
        images = [int(d["IMAGE_ID"]) for d in vectors(kept, "DISK") if "IMAGE_ID" in d]
        self._check_quota(user, scalars(kept), leases, images)
        number = self.next_id
        name = order.name or plain.get("NAME") or f"one-{number}"
        _require_name(name)
        addresses: list[str] = []
        for net, card in leases:
            addresses.append(self._lease(net, card, addresses))
        cards = [(n, c, a) for (n, c), a in zip(leases, addresses, strict=True)]
        _complete(kept, number, cards, order)
        self.next_id += 1
        vm = Vm(
            id=number,
            owner=user,
            name=name,
            template=kept,
            user_template=own,
            began=now,
            due=now + self.world.pace.schedule,
            state=HOLD if order.hold else PENDING,
        )
        self.vms[number] = vm
        return vm

    def _check_parts(
        self, user: User, template: Template, *, by_template: bool
    ) -> list[tuple[Net, dict[str, str]]]:
        for n, wanted in enumerate(vectors(template, "DISK")):
            number = wanted.get("IMAGE_ID", "")
            image = self.image(number)
            if number and image is None:
                raise _unallocated(f"DISK {n}: Image with ID: {number} does not exist")
            if image is not None:
                wanted.setdefault("IMAGE", image.name)
                # oned 6.10.5 asks for USE of an image in one.vm.allocate alone.
                if not (by_template or user.id in (0, image.uid) or image.everybody):
                    words = f"Not authorized to perform USE IMAGE [{image.id}]."
                    raise Refusal(0x0200, f"User [{user.id}] : {words}")
        return [(self._net(nic), nic) for nic in vectors(template, "NIC")]

    def _net(self, nic: Mapping[str, str]) -> Net:
        wanted, name = nic.get("NETWORK_ID"), nic.get("NETWORK")
        for net in self.world.nets:
            if str(net.id) == wanted or (wanted is None and net.name == name):
                return net
        raise _unallocated(f"Virtual network with ID: {wanted} does not exist")

    def _lease(self, net: Net, card: Mapping[str, str], also: Sequence[str]) -> str:
        taken = {a for vm in self.living() for a in vm.addresses} | set(also)
        first = int(ip_address(net.first))
        free = (str(ip_address(first + n)) for n in range(net.size))
        wanted = card.get("IP")
        address = next((a for a in free if a not in taken and wanted in (None, a)), None)
        if address is None:
            raise _unallocated(f"Cannot get IP/MAC lease from virtual network {net.id}.")
        return address

    def _check_quota(
        self,
        user: User,
        plain: Mapping[str, str],
        leases: Sequence[tuple[Net, object]],
        images: Sequence[int],
    ) -> None:
        if user.id == 0:
            return
        adds = {
            "VMS": 1.0,
            "CPU": float(plain.get("CPU", "0")),
            "MEMORY": float(plain.get("MEMORY", "0")),
            "SYSTEM_DISK_SIZE": DISK_SIZE * len(images),
        }
        adds |= {f"RUNNING_{key}": adds[key] for key in ("VMS", "CPU", "MEMORY")}
        mine = [vm for vm in self.living() if vm.owner.id == user.id]
        group = [vm for vm in self.living() if vm.owner.gid == user.gid]
        bounds = (("user", user.id, user.quota, mine),
                  ("group", user.gid, self.world.groups.get(user.gid, {}), group))  # fmt: skip
        for who, number, quota, vms in bounds:
            for key, more in adds.items():
                limit = quota.get(key, -1)
                # A sum of cpus, which are fractions, may be a hair above what it is.
                if limit >= 0 and used(vms, key) + more > limit + 1e-9:
                    words = f"{who} [{number}] limit of {limit:g} reached for {key} quota in VM."
                    raise Refusal(0x0200, f"User [{user.id}] : {words}")
        for net, _ in leases:
            limit = user.leases.get(net.id, -1)
            if limit >= 0 and sum(len(vm.addresses) for vm in mine) + 1 > limit:
                words = f"limit of {limit} reached for LEASES quota in NETWORK with ID: {net.id}."
                raise Refusal(0x0200, f"User [{user.id}] : user [{user.id}] {words}")
        for number in images:
            limit = user.runs.get(number, -1)
            if limit >= 0 and runs_of(mine, number) + 1 > limit:
                words = f"limit of {limit} reached for RVMS quota in IMAGE with ID: {number}."
                raise Refusal(0x0200, f"User [{user.id}] : user [{user.id}] {words}")

    # time

    def advance(self, now: float) -> None:
        """Bring every machine to where it is at ``now``."""
        for vm in sorted(self.living(), key=lambda v: v.id):
            while vm.state != DONE and vm.due <= now and self._step(vm, now):
                pass

    def _step(self, vm: Vm, now: float) -> bool:
        """One change of state that is due; False where nothing more happens by itself."""
        pace = self.world.pace
        match (vm.state, vm.lcm):
            case (1, 0):
                return self._place(vm, now)
            case (3, 1):
                # From when it was due, not from now: nobody may have looked at it for long.
                vm.lcm, vm.due = BOOT, vm.due + pace.boot / 2
            case (3, 2) if pace.broken and fnmatchcase(vm.name, pace.broken):
                vm.lcm = BOOT_FAILURE
                driver = f"DEPLOY: {vm.host.name if vm.host else ''}:{vm.name}:dummy"
                vm.user_template["ERROR"] = f"{dated(now)}: {driver}"
            case (3, 2):
                vm.lcm, vm.due = RUNNING, float("inf")
            case (3, 3) if vm.action:
                vm.lcm, vm.due = SHUTDOWN, vm.due + pace.shutdown / 2
            case (3, 12):
                vm.lcm, vm.due = EPILOG, vm.due + pace.shutdown / 2
            case (3, 11):
                self.end(vm, vm.due)
            case _:
                return False
        return vm.lcm != BOOT_FAILURE

    def _place(self, vm: Vm, now: float) -> bool:
        fitting = [h for h in self.world.hosts if self._fits(h, vm)]
        host = next((h for h in fitting if self._has_turn(h, vm.due)), None)
        if fitting and host is None:
            vm.user_template["SCHED_MESSAGE"] = f"{dated(now)}: {_NOT_NOW}"
            vm.due = (self._cycle(vm.due) + 1) * self.world.pace.schedule
            return True
        if host is None:
            vm.user_template["SCHED_MESSAGE"] = f"{dated(now)}: {_NO_HOST}"
            vm.due = now + self.world.pace.schedule
            return False
        if "SCHED_MESSAGE" in vm.user_template:
            vm.user_template["SCHED_MESSAGE"] = ""
        vm.host, vm.state, vm.lcm, vm.deployed = host, ACTIVE, PROLOG, vm.due
        vm.due += self.world.pace.boot / 2
        vm.template["TM_MAD_SYSTEM"] = ["dummy"]
        return True

    def _cycle(self, at: float) -> int:
        # A hair more than the quotient: the beginning of a cycle belongs to it.
        return int(at / self.world.pace.schedule + 1e-6)

    def _has_turn(self, host: Host, at: float) -> bool:
        """Whether the scheduler's cycle of that time places one more there; counts it if so."""
        pace = self.world.pace
        if pace.dispatch is None and pace.per_host is None:
            return True
        whole, here = (self._cycle(at), None), (self._cycle(at), host.id)
        full = pace.dispatch is not None and self._dispatched[whole] >= pace.dispatch
        if full or (pace.per_host is not None and self._dispatched[here] >= pace.per_host):
            return False
        self._dispatched.update((whole, here))
        return True

    def _fits(self, host: Host, vm: Vm) -> bool:
        cpu, memory = self.host_use(host)
        return cpu + vm.cpu * 100 <= host.cpu and memory + vm.memory * 1024 <= host.memory

    def host_use(self, host: Host) -> tuple[float, float]:
        """Hundredths of a cpu and KiB that its machines have."""
        there = [vm for vm in self.living() if vm.host is host]
        return sum(vm.cpu for vm in there) * 100, sum(vm.memory for vm in there) * 1024

    # ending

    def terminate(self, vm: Vm, action: str, now: float) -> None:
        """Terminate and terminate-hard; what the state forbids is refused, on DONE it is done."""
        if vm.state == DONE:
            return
        if vm.state == ACTIVE and vm.lcm in (0, PROLOG, BOOT, EPILOG):
            why = f"Could not terminate VM {vm.id}, wrong state {LCM_STATES[vm.lcm]}."
            raise Refusal(0x0800, f'Error performing action "{action}": {why}')
        vm.action = _TERMINATE_HARD if action.endswith("hard") else _TERMINATE
        if vm.state == ACTIVE and vm.lcm == RUNNING:
            vm.due = min(vm.due, now + ANSWERS_BEFORE)
        elif vm.state == ACTIVE and vm.lcm == SHUTDOWN:
            vm.due = now + self.world.pace.shutdown / 2
        else:
            self.end(vm, now)

    def restart(self, now: float, answer: float) -> None:
        """Oned is killed and started anew: machines between two states stay where they are. Drivers
        answer after so long (s), but not for machines that are shut down.
        """
        for vm in self.living():
            if vm.state == ACTIVE and vm.lcm in (PROLOG, BOOT, EPILOG):
                vm.due = now + answer
            # Its driver's answer went to the old oned.
            elif vm.state == ACTIVE and vm.lcm == SHUTDOWN:
                vm.due = float("inf")

    def shut_down(self, vm: Vm) -> None:
        """It powers itself off: POWEROFF, and there to stay."""
        if (vm.state, vm.lcm) == (ACTIVE, RUNNING):
            vm.state, vm.lcm, vm.due = POWEROFF, 0, float("inf")

    def end(self, vm: Vm, now: float) -> None:
        """DONE: it frees what it had and stays readable."""
        vm.state, vm.lcm, vm.ended, vm.due = DONE, 0, now, float("inf")


def used(vms: Iterable[Vm], key: str) -> float:
    """The part of a quota that these machines use."""
    match key.removeprefix("RUNNING_"):
        case "VMS":
            return float(sum(1 for _ in vms))
        case "SYSTEM_DISK_SIZE":
            return float(sum(DISK_SIZE * len(vm.images) for vm in vms))
        case "CPU":
            return float(sum(vm.cpu for vm in vms))
    return float(sum(vm.memory for vm in vms))


def runs_of(vms: Iterable[Vm], image: int) -> int:
    """How many machines run from an image."""
    return sum(vm.images.count(image) for vm in vms)


def dated(now: float) -> str:
    """Oned's way to date a message."""
    return strftime("%a %b %d %H:%M:%S %Y", gmtime(now))


def order_from(template: VmTemplate, name: str, hold: bool, extra: Template) -> MachineWish:
    """An order by a stored template."""
    return MachineWish(
        name=name, hold=hold, base=template.values, extra=extra, template_id=template.id
    )


def _unallocated(why: str) -> Refusal:
    return Refusal(0x4000, f"Error allocating a new virtual machine template. {why}")


def _require_name(name: str) -> None:
    for char in "<>&\"/\\'`":
        if char in name:
            raise _unallocated(f"Invalid NAME, char '{char}' is not allowed")
    if len(name) > 128:
        raise _unallocated("Invalid NAME, max length is 128 chars")


def _require_positive(user: User, plain: Mapping[str, str]) -> None:
    try:
        good = int(plain.get("MEMORY", "1")) > 0
    except ValueError:
        good = False
    if not good:
        words = "MEMORY attribute must be a positive integer value."
        raise Refusal(0x0200, f"User [{user.id}] : user [{user.id}] {words}")


def _complete(
    template: Template,
    number: int,
    leases: Sequence[tuple[Net, Mapping[str, str], str]],
    order: MachineWish,
) -> None:
    """The attributes that oned adds by itself."""
    template["NIC"] = [nic(number, n, *lease) for n, lease in enumerate(leases)]
    template["DISK"] = [disk(n, d) for n, d in enumerate(vectors(template, "DISK"))]
    if contexts := vectors(template, "CONTEXT"):
        template["CONTEXT"] = [
            filled_context(contexts[-1], vectors(template, "NIC"), len(template["DISK"]))
        ]
    if leases:
        template["SECURITY_GROUP_RULE"] = [*security_rules()]
        template["AUTOMATIC_NIC_REQUIREMENTS"] = ['("CLUSTERS/ID" @> 0)']
    if leases or template["DISK"]:
        template["AUTOMATIC_DS_REQUIREMENTS"] = ['("CLUSTERS/ID" @> 0)']
    inside = "(CLUSTER_ID = 0) & " if leases or template["DISK"] else ""
    template["AUTOMATIC_REQUIREMENTS"] = [f"{inside}!(PUBLIC_CLOUD = YES) & !(PIN_POLICY = PINNED)"]
    template["OS"] = [{"UUID": str(uuid.uuid4())}]
    if order.hold:
        template["SUBMIT_ON_HOLD"] = ["YES"]
    if order.template_id is not None:
        template["TEMPLATE_ID"] = [str(order.template_id)]
    template["VMID"] = [str(number)]
    for key in ("NIC", "DISK"):
        if not template[key]:
            del template[key]
