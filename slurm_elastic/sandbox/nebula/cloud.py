"""The machines of the emulated OpenNebula: started, placed, booted and ended as by oned.

Nothing runs in the background: ``advance`` computes the states of all machines at a time. Codes and
messages are oned's own (recorded from 6.10.5).
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

from slurm_elastic.sandbox.nebula.parts import disk, filled_context, nic, security_rules
from slurm_elastic.sandbox.nebula.vm_template import Template, scalars, vectors
from slurm_elastic.sandbox.nebula.world import (
    EmulatedImage,
    Net,
    OneHost,
    OneUser,
    OneWorld,
    VmTemplate,
)

PENDING, HOLD, ACTIVE, STOPPED, SUSPENDED, DONE, POWEROFF = 1, 2, 3, 4, 5, 6, 8
PROLOG, BOOT, RUNNING, EPILOG, SHUTDOWN, BOOT_FAILURE = 1, 2, 3, 11, 12, 36
STATES = {0: "INIT", 1: "PENDING", 2: "HOLD", 4: "STOPPED", 5: "SUSPENDED", 6: "DONE",
          8: "POWEROFF"}  # fmt: skip
LCM_STATES = {0: "LCM_INIT", 1: "PROLOG", 2: "BOOT", 3: "RUNNING", 11: "EPILOG", 12: "SHUTDOWN",
              36: "BOOT_FAILURE"}  # fmt: skip
_NO_HOST = "Cannot dispatch VM: No host with enough capacity to deploy the VM"
_NOT_NOW = (
    "Cannot dispatch VM to any Host. Possible reasons: Not enough capacity in Host or System DS, "
    "dispatch limit reached, or limit of free leases reached"
)
_IN_TEMPLATE = frozenset({
    "CPU", "VCPU", "MEMORY", "DISK", "NIC", "CONTEXT", "OS", "FEATURES", "GRAPHICS", "RAW", "INPUT",
})  # fmt: skip
_TERMINATE, _TERMINATE_HARD = 27, 28


RUNNING_AFTER_TERMINATE_S = 0.1
"""Seconds for which a machine is still RUNNING after oned has accepted its termination."""
DISK_SIZE_MIB = 1024.0
"""MiB of every image."""


class OneRefusal(Exception):  # noqa: N818
    """An error of oned: its code, the message without its prefix, and the object's id."""

    def __init__(self, code: int, message: str, about: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.about = about


class OneVm(Struct, kw_only=True):
    """A machine. ``began``: its exact start; ``due``: when its state changes next (Unix time)."""

    id: int
    owner: OneUser
    name: str
    template: Template
    user_template: dict[str, str]
    began: float
    due: float
    state: int = PENDING
    lcm: int = 0
    ended: float = 0.0
    host: OneHost | None = None
    deployed: float = 0.0
    action: int = 0
    locked: bool = False
    net: int | None = None

    @property
    def cpu(self) -> float:
        """The physical CPUs."""
        return float(scalars(self.template).get("CPU", "0"))

    @property
    def memory(self) -> float:
        """The memory in MiB."""
        return float(scalars(self.template).get("MEMORY", "0"))

    @property
    def images(self) -> list[int]:
        """The ids of the images of its disks."""
        return [int(d["IMAGE_ID"]) for d in vectors(self.template, "DISK") if d.get("IMAGE_ID")]

    @property
    def addresses(self) -> list[str]:
        """The addresses of its network cards, also after its end."""
        return [nic["IP"] for nic in vectors(self.template, "NIC") if "IP" in nic]


class MachineWish(Struct, frozen=True, kw_only=True):
    """The parsed arguments of an instantiate or allocate call."""

    name: str
    hold: bool
    base: Template
    extra: Template = field(default_factory=dict)
    template_id: int | None = None


class Cloud:
    """The state of the emulated cloud. Callers hold the server's lock."""

    def __init__(self, world: OneWorld) -> None:
        self.world = world
        self.vms: dict[int, OneVm] = {}
        self.next_id = 0
        self._dispatched: Counter[tuple[int, int | None]] = Counter()

    def user(self, session: str) -> OneUser:
        """Return the user of a session string. Raises OneRefusal."""
        name, _, password = session.partition(":")
        for user in self.world.users:
            if user.name == name and user.password == password:
                return user
        raise OneRefusal(0x0100, "User couldn't be authenticated, aborting call.")

    def image(self, number: str) -> EmulatedImage | None:
        """Return the image with that id in digits, or None."""
        image_id = int(number) if number.isdecimal() else -1
        return next((i for i in self.world.images if i.id == image_id), None)

    def living(self) -> list[OneVm]:
        """Return all machines that are not DONE."""
        return [vm for vm in self.vms.values() if vm.state != DONE]

    # starting

    def start(self, user: OneUser, order: MachineWish, now: float) -> OneVm:
        """Make a machine, PENDING or on HOLD, and lease its addresses. Raises OneRefusal."""
        template = deepcopy(order.base)
        template.update(deepcopy(order.extra))
        attributes = scalars(template)
        user_attributes = {
            k: v for k, v in attributes.items() if k not in _IN_TEMPLATE and k != "NAME"
        }
        machine_template: Template = {k: v for k, v in template.items() if k in _IN_TEMPLATE}
        _require_positive(user, scalars(machine_template))
        leases = self._check_parts(
            user, machine_template, by_template=order.template_id is not None
        )
        images = [int(d["IMAGE_ID"]) for d in vectors(machine_template, "DISK") if "IMAGE_ID" in d]
        self._check_quota(user, scalars(machine_template), leases, images)
        number = self.next_id
        name = order.name or attributes.get("NAME") or f"one-{number}"
        _require_name(name)
        addresses: list[str] = []
        for net, card in leases:
            addresses.append(self._lease(net, card, addresses))
        cards = [(n, c, a) for (n, c), a in zip(leases, addresses, strict=True)]
        _complete(machine_template, number, cards, order)
        self.next_id += 1
        vm = OneVm(
            id=number,
            owner=user,
            name=name,
            template=machine_template,
            user_template=user_attributes,
            began=now,
            due=now + self.world.pace.schedule,
            state=HOLD if order.hold else PENDING,
        )
        self.vms[number] = vm
        return vm

    def _check_parts(
        self, user: OneUser, template: Template, *, by_template: bool
    ) -> list[tuple[Net, dict[str, str]]]:
        for n, requested_disk in enumerate(vectors(template, "DISK")):
            number = requested_disk.get("IMAGE_ID", "")
            image = self.image(number)
            if number and image is None:
                raise _unallocated(f"DISK {n}: Image with ID: {number} does not exist")
            if image is not None:
                requested_disk.setdefault("IMAGE", image.name)
                # oned 6.10.5 checks the permission to USE an image only in one.vm.allocate.
                if not (by_template or user.id in (0, image.uid) or image.everybody):
                    message = f"Not authorized to perform USE IMAGE [{image.id}]."
                    raise OneRefusal(0x0200, f"User [{user.id}] : {message}")
        return [(self._net(nic), nic) for nic in vectors(template, "NIC")]

    def _net(self, nic: Mapping[str, str]) -> Net:
        net_id, name = nic.get("NETWORK_ID"), nic.get("NETWORK")
        for net in self.world.nets:
            if str(net.id) == net_id or (net_id is None and net.name == name):
                return net
        raise _unallocated(f"Virtual network with ID: {net_id} does not exist")

    def _lease(self, net: Net, card: Mapping[str, str], further: Sequence[str]) -> str:
        used_addresses = {a for vm in self.living() for a in vm.addresses} | set(further)
        first_address = int(ip_address(net.first))
        free = (str(ip_address(first_address + n)) for n in range(net.size))
        requested = card.get("IP")
        address = next(
            (a for a in free if a not in used_addresses and requested in (None, a)), None
        )
        if address is None:
            raise _unallocated(f"Cannot get IP/MAC lease from virtual network {net.id}.")
        return address

    def _check_quota(
        self,
        user: OneUser,
        attributes: Mapping[str, str],
        leases: Sequence[tuple[Net, object]],
        images: Sequence[int],
    ) -> None:
        if user.id == 0:
            return
        amounts = {
            "VMS": 1.0,
            "CPU": float(attributes.get("CPU", "0")),
            "MEMORY": float(attributes.get("MEMORY", "0")),
            "SYSTEM_DISK_SIZE": DISK_SIZE_MIB * len(images),
        }
        amounts |= {f"RUNNING_{key}": amounts[key] for key in ("VMS", "CPU", "MEMORY")}
        user_vms = [vm for vm in self.living() if vm.owner.id == user.id]
        group_vms = [vm for vm in self.living() if vm.owner.gid == user.gid]
        bounds = (("user", user.id, user.quota, user_vms),
                  ("group", user.gid, self.world.groups.get(user.gid, {}), group_vms))  # fmt: skip
        for owner_kind, number, quota, vms in bounds:
            for key, amount in amounts.items():
                limit = quota.get(key, -1)
                # The sum of fractional CPUs may be slightly too large by rounding.
                if limit >= 0 and used_amount(vms, key) + amount > limit + 1e-9:
                    message = (
                        f"{owner_kind} [{number}] limit of {limit:g} reached for {key} quota in VM."
                    )
                    raise OneRefusal(0x0200, f"User [{user.id}] : {message}")
        for net, _ in leases:
            limit = user.leases.get(net.id, -1)
            if limit >= 0 and sum(len(vm.addresses) for vm in user_vms) + 1 > limit:
                message = f"limit of {limit} reached for LEASES quota in NETWORK with ID: {net.id}."
                raise OneRefusal(0x0200, f"User [{user.id}] : user [{user.id}] {message}")
        for number in images:
            limit = user.runs.get(number, -1)
            if limit >= 0 and runs_of(user_vms, number) + 1 > limit:
                message = f"limit of {limit} reached for RVMS quota in IMAGE with ID: {number}."
                raise OneRefusal(0x0200, f"User [{user.id}] : user [{user.id}] {message}")

    # time

    def advance(self, now: float) -> None:
        """Bring every machine into its state at ``now``."""
        for vm in sorted(self.living(), key=lambda v: v.id):
            while vm.state != DONE and vm.due <= now and self._step(vm, now):
                pass

    def _step(self, vm: OneVm, now: float) -> bool:
        """Make one due change of state. False if no further change follows by itself."""
        pace = self.world.pace
        match (vm.state, vm.lcm):
            case (1, 0):
                return self._place(vm, now)
            case (3, 1):
                # Count from the due time and not from now, because no call may have advanced the
                # machine for a long time.
                vm.lcm, vm.due = BOOT, vm.due + pace.boot / 2
            case (3, 2) if pace.broken and fnmatchcase(vm.name, pace.broken):
                vm.lcm = BOOT_FAILURE
                driver = f"DEPLOY: {vm.host.name if vm.host else ''}:{vm.name}:dummy"
                vm.user_template["ERROR"] = f"{format_date(now)}: {driver}"
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

    def _place(self, vm: OneVm, now: float) -> bool:
        fitting = [h for h in self.world.hosts if self._has_room(h, vm)]
        host = next((h for h in fitting if self._may_dispatch(h, vm.due)), None)
        if fitting and host is None:
            vm.user_template["SCHED_MESSAGE"] = f"{format_date(now)}: {_NOT_NOW}"
            vm.due = (self._cycle(vm.due) + 1) * self.world.pace.schedule
            return True
        if host is None:
            vm.user_template["SCHED_MESSAGE"] = f"{format_date(now)}: {_NO_HOST}"
            vm.due = now + self.world.pace.schedule
            return False
        if "SCHED_MESSAGE" in vm.user_template:
            vm.user_template["SCHED_MESSAGE"] = ""
        vm.host, vm.state, vm.lcm, vm.deployed = host, ACTIVE, PROLOG, vm.due
        vm.due += self.world.pace.boot / 2
        vm.template["TM_MAD_SYSTEM"] = ["dummy"]
        return True

    def _cycle(self, time: float) -> int:
        # Add a little against rounding, because the beginning of a cycle belongs to it.
        return int(time / self.world.pace.schedule + 1e-6)

    def _may_dispatch(self, host: OneHost, time: float) -> bool:
        """Return True, and count the machine, if the scheduler's cycle at that time may place
        another machine on the host.
        """
        pace = self.world.pace
        if pace.dispatch is None and pace.per_host is None:
            return True
        cycle_key, host_key = (self._cycle(time), None), (self._cycle(time), host.id)
        full = pace.dispatch is not None and self._dispatched[cycle_key] >= pace.dispatch
        if full or (pace.per_host is not None and self._dispatched[host_key] >= pace.per_host):
            return False
        self._dispatched.update((cycle_key, host_key))
        return True

    def _has_room(self, host: OneHost, vm: OneVm) -> bool:
        cpu, memory = self.host_use(host)
        return cpu + vm.cpu * 100 <= host.cpu and memory + vm.memory * 1024 <= host.memory

    def host_use(self, host: OneHost) -> tuple[float, float]:
        """Return the hundredths of a CPU and the KiB that the host's machines use."""
        vms = [vm for vm in self.living() if vm.host is host]
        return sum(vm.cpu for vm in vms) * 100, sum(vm.memory for vm in vms) * 1024

    # ending

    def terminate(self, vm: OneVm, action: str, now: float) -> None:
        """Carry out terminate or terminate-hard. Raises OneRefusal if the state forbids it. On DONE
        it does nothing.
        """
        if vm.state == DONE:
            return
        if vm.state == ACTIVE and vm.lcm in (0, PROLOG, BOOT, EPILOG):
            message = f"Could not terminate VM {vm.id}, wrong state {LCM_STATES[vm.lcm]}."
            raise OneRefusal(0x0800, f'Error performing action "{action}": {message}')
        vm.action = _TERMINATE_HARD if action.endswith("hard") else _TERMINATE
        if vm.state == ACTIVE and vm.lcm == RUNNING:
            vm.due = min(vm.due, now + RUNNING_AFTER_TERMINATE_S)
        elif vm.state == ACTIVE and vm.lcm == SHUTDOWN:
            vm.due = now + self.world.pace.shutdown / 2
        else:
            self.end(vm, now)

    def restart(self, now: float, answer: float) -> None:
        """Emulate a kill and restart of oned. Machines between two states stay there until their
        drivers answer after ``answer`` seconds. Drivers of machines in SHUTDOWN never answer.
        """
        for vm in self.living():
            if vm.state == ACTIVE and vm.lcm in (PROLOG, BOOT, EPILOG):
                vm.due = now + answer
            # The driver's answer went to the killed oned.
            elif vm.state == ACTIVE and vm.lcm == SHUTDOWN:
                vm.due = float("inf")

    def shut_down(self, vm: OneVm) -> None:
        """Let a machine power itself off. It stays in POWEROFF."""
        if (vm.state, vm.lcm) == (ACTIVE, RUNNING):
            vm.state, vm.lcm, vm.due = POWEROFF, 0, float("inf")

    def end(self, vm: OneVm, now: float) -> None:
        """Set a machine to DONE. It uses no resources, but can still be read."""
        vm.state, vm.lcm, vm.ended, vm.due = DONE, 0, now, float("inf")


def used_amount(vms: Iterable[OneVm], key: str) -> float:
    """Return how much of a quota these machines use."""
    match key.removeprefix("RUNNING_"):
        case "VMS":
            return float(sum(1 for _ in vms))
        case "SYSTEM_DISK_SIZE":
            return float(sum(DISK_SIZE_MIB * len(vm.images) for vm in vms))
        case "CPU":
            return float(sum(vm.cpu for vm in vms))
    return float(sum(vm.memory for vm in vms))


def runs_of(vms: Iterable[OneVm], image: int) -> int:
    """Return how many disks of these machines come from an image."""
    return sum(vm.images.count(image) for vm in vms)


def format_date(now: float) -> str:
    """Return a time in the form of oned's messages."""
    return strftime("%a %b %d %H:%M:%S %Y", gmtime(now))


def order_from(template: VmTemplate, name: str, hold: bool, extra: Template) -> MachineWish:
    """Return the arguments for a machine of a stored template."""
    base, number = template.values, template.id
    return MachineWish(name=name, hold=hold, base=base, extra=extra, template_id=number)


def _unallocated(reason: str) -> OneRefusal:
    return OneRefusal(0x4000, f"Error allocating a new virtual machine template. {reason}")


def _require_name(name: str) -> None:
    for char in "<>&\"/\\'`":
        if char in name:
            raise _unallocated(f"Invalid NAME, char '{char}' is not allowed")
    if len(name) > 128:
        raise _unallocated("Invalid NAME, max length is 128 chars")


def _require_positive(user: OneUser, attributes: Mapping[str, str]) -> None:
    try:
        is_valid = int(attributes.get("MEMORY", "1")) > 0
    except ValueError:
        is_valid = False
    message = "MEMORY attribute must be a positive integer value."
    if not is_valid:
        raise OneRefusal(0x0200, f"User [{user.id}] : user [{user.id}] {message}")


def _complete(
    template: Template,
    number: int,
    leases: Sequence[tuple[Net, Mapping[str, str], str]],
    order: MachineWish,
) -> None:
    """Add the attributes that oned adds by itself."""
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
    for key in [key for key in ("NIC", "DISK") if not template[key]]:
        del template[key]
