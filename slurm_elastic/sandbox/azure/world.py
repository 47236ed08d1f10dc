"""The resources of the emulated subscription, and the resource manager's answers about them."""

from __future__ import annotations

import base64
import binascii
import copy
import re
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from msgspec import Struct, field

from slurm_elastic.sandbox.azure import schema

SIZES: Mapping[str, tuple[int, int]] = {
    "Standard_D2s_v5": (2, 8), "Standard_D4s_v5": (4, 16), "Standard_D16s_v5": (16, 64),
}  # fmt: skip
"""vCPUs and GiB of the sizes that exist."""
FAMILY = "standardDSv5Family"
MAX_CUSTOM_DATA = 65535
MAX_TAGS, MAX_TAG = 50, 256
CREATE, LIST, DELETE = "create", "list", "delete"
_VM_KIND = "Microsoft.Compute/virtualMachines"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,63}")
_VM = re.compile(
    r"/subscriptions/(?P<sub>[^/]+)/resourcegroups/(?P<group>[^/]+)/providers/microsoft\.compute"
    r"/virtualmachines(?:/(?P<name>[^/]+)(?:/(?P<action>\w+))?)?",
    re.IGNORECASE,
)
_PART = re.compile(
    r"/subscriptions/[^/]+/resourcegroups/(?P<group>[^/]+)/providers/microsoft\.(?:network|compute)"
    r"/(?P<kind>networkinterfaces|disks)(?:/(?P<name>[^/]+))?",
    re.IGNORECASE,
)
_SERVICE_VERSIONS = {
    "/microsoft.compute/skus": ("2021-07-01",),
    "/microsoft.compute/galleries/": ("2024-03-03", "2025-03-03", "2026-03-03"),
    "/microsoft.compute/disks": ("2024-03-02", "2025-01-02", "2026-03-02"),
}
"""Services of Microsoft.Compute whose versions differ from the versions of machines."""
_OPERATION = re.compile(r".*/locations/[^/]+/operations/(?P<id>[-0-9a-f]+)")


class ArmError(Exception):
    """A refusal of the resource manager."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    @property
    def body(self) -> Mapping[str, object]:
        """The JSON of the answer."""
        return {"error": {"code": self.code, "message": self.message}}


class Vm(Struct, kw_only=True):
    """A VM. ``record``: as it was ordered. ``due``: when its creation ends (Unix time)."""

    name: str
    record: dict[str, Any]
    created: float
    due: float
    state: str = "Creating"
    power: str = ""
    failure: tuple[str, str] = ("", "")


class Part(Struct, kw_only=True):
    """A network card or disk. ``vm``: the machine that has it; "" for none. ``address``: the
    private address of a card.
    """

    name: str
    vm: str
    tags: dict[str, str] = field(default_factory=dict)
    address: str = ""


class World(Struct, kw_only=True):
    """All there is in the subscription. ``capacity``: machines that fit; ``capacity_late``: a lack
    shows only after the order was accepted. ``late``: the failure of VMs of these nodes.
    ``late_start``: the failure of each start, which shows after the start was accepted.
    ``evictions``: when VMs are taken (Unix time). ``visible_after``: for so long (s) lists lack a
    new VM. ``leaves_parts``: the end of a VM leaves its card and disk. ``meters``: the published
    prices; None for the usual ones. ``price_page``: how many of them a page has.
    """

    subscription: str
    group: str
    vms: dict[str, Vm] = field(default_factory=dict)
    cards: dict[str, Part] = field(default_factory=dict)
    disks: dict[str, Part] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)
    made: int = 0
    validated: int = 0
    refused_by_schema: list[str] = field(default_factory=list)
    capacity: int = 10**6
    capacity_late: bool = False
    late: dict[str, tuple[str, str]] = field(default_factory=dict)
    late_start: tuple[str, str] = ("", "")
    boot_s: float = 0.0
    visible_after: float = 0.0
    page: int = 500
    leaves_parts: bool = False
    locks: list[str] = field(default_factory=list)
    protected: set[str] = field(default_factory=set)
    restrictions: list[dict[str, Any]] = field(default_factory=list)
    spot_cores: int = 100
    evictions: dict[str, float] = field(default_factory=dict)
    meters: list[dict[str, Any]] | None = None
    price_page: int = 100


class Reply(Struct, kw_only=True):
    """An answer: its status, JSON and further headers."""

    status: int = 200
    content: Any = None
    operation: str = ""


def action_of(method: str, path: str) -> str:
    """The name of a request for faults, such as ``create``."""
    found = _VM.fullmatch(path)
    if found is None:
        return "operation" if _OPERATION.fullmatch(path) else path.rpartition("/")[2]
    if found["name"] is None:
        return LIST
    if found["action"]:
        return found["action"]
    return {"PUT": CREATE, "DELETE": DELETE, "PATCH": "update"}.get(method, "get")


def answer(
    world: World, method: str, path: str, query: Mapping[str, str], body: Any,  # noqa: ANN401
    headers: Mapping[str, str],
) -> Reply:  # fmt: skip
    """The answer to a request with valid credentials. Raises ArmError."""
    _advance(world)
    if "api-version" not in query:
        raise ArmError(400, "MissingApiVersionParameter", "The api-version parameter is required")
    _require_version(method, path.lower(), query["api-version"])
    if found := _VM.fullmatch(path):
        _require_group(world, found["sub"], found["group"])
        return _vm_answer(world, method, found["name"], found["action"], query, body, headers)
    if found := _PART.fullmatch(path):
        _require_group(world, world.subscription, found["group"])
        return _part_answer(world, method, found["kind"].lower(), found["name"])
    if found := _OPERATION.fullmatch(path):
        return _operation(world, found["id"])
    return _read(world, path)


def _require_version(method: str, path: str, version: str) -> None:
    """Refuse a version that the resource does not have. A body needs the version of the models,
    because they check it.
    """
    services = [service for service in _SERVICE_VERSIONS if service in path]
    versions = [v for service in services for v in _SERVICE_VERSIONS[service]]
    if not services and _VM.fullmatch(path) and method in ("PUT", "PATCH"):
        versions = [schema.version() or version]
    if versions and version not in versions:
        text = f"No registered resource provider found for API version '{version}' of {path}."
        raise ArmError(400, "NoRegisteredProviderFound", text)


def _require_group(world: World, subscription: str, group: str) -> None:
    if subscription.lower() != world.subscription.lower():
        text = f"The subscription '{subscription}' could not be found."
        raise ArmError(404, "SubscriptionNotFound", text)
    if group.lower() != world.group.lower():
        raise ArmError(
            404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found."
        )


def evict(world: World, name: str, notice_s: float = 30.0) -> None:
    """Announce that a spot VM will be taken, and take it after ``notice_s``."""
    world.evictions[name.lower()] = time.time() + notice_s


def metadata_of(world: World, name: str, path: str) -> Any:  # noqa: ANN401
    """The answer of the VM's metadata service at a path: JSON, or text."""
    _advance(world)
    vm = world.vms.get(name.lower())
    if vm is None:
        raise ArmError(404, "NotFound", "There is no such machine.")
    if path == "instance/compute/name":
        return vm.name
    if path != "scheduledevents":
        raise ArmError(404, "NotFound", f"There is nothing at {path}.")
    taken_at = world.evictions.get(name.lower())
    if taken_at is None:
        return {"DocumentIncarnation": 1, "Events": []}
    event = {
        "EventId": f"evict-{vm.name}", "EventStatus": "Scheduled", "EventType": "Preempt",
        "ResourceType": "VirtualMachine", "Resources": [vm.name],
        "NotBefore": formatdate(taken_at, usegmt=True),
    }  # fmt: skip
    return {"DocumentIncarnation": 2, "Events": [event]}


def _advance(world: World) -> None:
    """Bring each VM into its state of now."""
    now = time.time()
    for name in [name for name, taken_at in world.evictions.items() if taken_at <= now]:
        del world.evictions[name]
        if name in world.vms:
            remove(world, name)
    for vm in world.vms.values():
        if vm.state == "Creating" and vm.due <= now:
            vm.state, vm.power = ("Failed", "") if vm.failure[0] else ("Succeeded", "running")


def _vm_answer(
    world: World, method: str, name: str | None, action: str | None, query: Mapping[str, str],
    body: Any, headers: Mapping[str, str],  # noqa: ANN401
) -> Reply:  # fmt: skip
    if name is None:
        return _vms(world, query)
    if method == "PUT":
        return _create(world, name, body, headers)
    vm = world.vms.get(name.lower())
    if vm is None:
        if method == "DELETE":
            return Reply(status=204)
        text = f"The Resource 'Microsoft.Compute/virtualMachines/{name}' was not found."
        raise ArmError(404, "ResourceNotFound", text)
    if method == "DELETE":
        return _delete(world, vm)
    if method == "PATCH":
        _check(world, schema.UPDATE, body)
        vm.record |= body
        return Reply(content=shown(world, vm))
    if action is None:
        return Reply(content=shown(world, vm))
    return _act(world, vm, action)


def _vms(world: World, query: Mapping[str, str]) -> Reply:
    visible_until = time.time() - world.visible_after
    visible = [
        vm for vm in world.vms.values()
        if not world.visible_after or vm.created <= visible_until
    ]  # fmt: skip
    start = int(query.get("$skiptoken", "0"))
    page = [shown(world, vm) for vm in visible[start : start + world.page]]
    content: dict[str, Any] = {"value": page}
    if start + world.page < len(visible):
        content["nextLink"] = str(start + world.page)
    return Reply(content=content)


def shown(world: World, vm: Vm) -> dict[str, Any]:
    """The VM as the resource manager shows it. Custom data is never shown."""
    record = copy.deepcopy(vm.record)
    record["properties"].get("osProfile", {}).pop("customData", None)
    record["properties"] |= {
        "provisioningState": vm.state,
        "vmId": str(uuid.uuid5(uuid.NAMESPACE_URL, vm.name)),
        "timeCreated": datetime.fromtimestamp(vm.created, UTC).isoformat(),
    }
    return record | {"name": vm.name, "id": _vm_id(world, vm.name), "type": _VM_KIND}


def _vm_id(world: World, name: str) -> str:
    """The id of a VM. Azure often writes the group in upper case."""
    group = f"/subscriptions/{world.subscription}/resourceGroups/{world.group.upper()}"
    return f"{group}/providers/{_VM_KIND}/{name}"


def _address(number: int) -> str:
    """The private address of the card of the n-th machine."""
    return f"10.0.{number // 250}.{number % 250 + 4}"


def _create(world: World, name: str, body: Any, headers: Mapping[str, str]) -> Reply:  # noqa: ANN401
    existing = world.vms.get(name.lower())
    if existing is not None:
        if headers.get("If-None-Match") == "*":
            raise ArmError(412, "PreconditionFailed", f"The resource '{name}' already exists.")
        raise ArmError(409, "PropertyChangeNotAllowed", "Changing property is not allowed.")
    _check(world, schema.CREATE, body)
    _check_order(name, body)
    size = str(body["properties"]["hardwareProfile"]["vmSize"])
    if size not in SIZES:
        raise ArmError(400, "InvalidParameter", f"The value {size} of parameter vmSize is invalid.")
    is_full = len(world.vms) >= world.capacity
    if is_full and not world.capacity_late:
        text = f"The requested size for resource '{name}' is currently not available in location."
        raise ArmError(409, "SkuNotAvailable", text)
    failure = ("AllocationFailed", "Allocation failed.") if is_full else ("", "")
    return add(world, name, body, failure)


def add(
    world: World, name: str, body: dict[str, Any], failure: tuple[str, str] = ("", "")
) -> Reply:
    """Make a VM with its card and disk."""
    node = str(body["properties"].get("osProfile", {}).get("computerName", ""))
    now = time.time()
    vm = Vm(
        name=name, record=body, created=now, due=now + world.boot_s,
        failure=world.late.get(node, failure),
    )  # fmt: skip
    world.vms[name.lower()] = vm
    world.made += 1
    properties = body["properties"]
    for card in properties.get("networkProfile", {}).get("networkInterfaceConfigurations", ()):
        world.cards[card["name"]] = Part(
            name=card["name"], vm=name, tags=card.get("tags") or {}, address=_address(world.made)
        )
    disk = properties.get("storageProfile", {}).get("osDisk", {}).get("name")
    if disk:
        world.disks[disk] = Part(name=disk, vm=name)
    return Reply(status=201, content=shown(world, vm), operation=_operation_of(world, vm))


def _check(world: World, model: str, body: Any) -> None:  # noqa: ANN401
    found = schema.mistakes(model, body)
    world.validated += schema.MODELS is not None
    if found:
        world.refused_by_schema += found
        raise ArmError(400, "InvalidRequestContent", "; ".join(found))


def _check_order(name: str, body: Mapping[str, Any]) -> None:
    """Rules that the models do not have. Azure refuses such an order with a 400."""
    if not _NAME.fullmatch(name):
        raise ArmError(400, "InvalidParameter", f"Resource name {name} is invalid.")
    properties, tags = body.get("properties") or {}, body.get("tags") or {}
    if len(tags) > MAX_TAGS or any(len(value) > MAX_TAG for value in tags.values()):
        raise ArmError(400, "InvalidTag", "The tags are too many or too long.")
    if any(set(key) & set("<>%&\\?/") for key in tags):
        raise ArmError(400, "InvalidTagNameCharacters", "The tag names have reserved characters.")
    os_profile = properties.get("osProfile")
    if not os_profile:
        raise ArmError(400, "InvalidParameter", "Required parameter 'osProfile' is missing (null).")
    try:
        data = base64.b64decode(os_profile.get("customData", ""), validate=True)
    except (binascii.Error, ValueError):
        raise ArmError(400, "InvalidParameter", "Custom data must be in Base64.") from None
    if len(data) > MAX_CUSTOM_DATA:
        raise ArmError(400, "InvalidParameter", "Custom data is too long.")
    is_spot = properties.get("priority") == "Spot"
    if not is_spot and ("evictionPolicy" in properties or "billingProfile" in properties):
        raise ArmError(400, "InvalidParameter", "The eviction policy needs the priority Spot.")
    linux = os_profile.get("linuxConfiguration") or {}
    if not (os_profile.get("adminPassword") or (linux.get("ssh") or {}).get("publicKeys")):
        text = "Authentication using SSH keys or a password is required."
        raise ArmError(400, "InvalidParameter", text)


def _delete(world: World, vm: Vm) -> Reply:
    if world.locks:
        text = f"The scope '{vm.name}' cannot perform delete operation because of locks."
        raise ArmError(409, "ScopeLocked", text)
    if vm.name in world.protected:
        raise ArmError(409, "OperationNotAllowed", f"Operation 'delete' on {vm.name} not allowed.")
    remove(world, vm.name)
    return Reply(status=202)


def remove(world: World, name: str) -> None:
    """End a VM, with its card and disk unless ``leaves_parts``."""
    vm = world.vms.pop(name.lower())
    for parts in (world.cards, world.disks):
        for part in [p for p in parts.values() if p.vm == vm.name]:
            part.vm = ""
            if not world.leaves_parts:
                del parts[part.name]


def _act(world: World, vm: Vm, action: str) -> Reply:
    if action.lower() == "instanceview":
        state = vm.state.lower()
        code, message = vm.failure if vm.state == "Failed" else ("", "")
        statuses = [{"code": f"ProvisioningState/{state}{f'/{code}' if code else ''}",
                     "message": message}]  # fmt: skip
        if vm.power:
            statuses.append({"code": f"PowerState/{vm.power}"})
        return Reply(content={"statuses": statuses})
    if action == "deallocate":
        vm.state, vm.power, vm.failure = "Succeeded", "deallocated", ("", "")
    elif action == "start":
        _start(world, vm)
    else:
        raise ArmError(404, "NotFound", f"There is no action {action}.")
    return Reply(status=202, operation=_operation_of(world, vm))


def _start(world: World, vm: Vm) -> None:
    vm.failure = world.late_start if vm.power != "running" else ("", "")
    if vm.failure[0]:
        vm.state = "Failed"  # its power stays as it was
    else:
        vm.state, vm.power = "Succeeded", "running"


def _operation_of(world: World, vm: Vm) -> str:
    """A new operation on the VM. Its outcome is the VM's state."""
    operation = str(uuid.uuid4())
    world.operations[operation] = vm.name.lower()
    return operation


def _part_answer(world: World, method: str, kind: str, name: str | None) -> Reply:
    is_card = kind == "networkinterfaces"
    parts = world.cards if is_card else world.disks
    if name is None:
        shown_parts = [_card(world, p) if is_card else _disk(p) for p in parts.values()]
        return Reply(content={"value": shown_parts})
    part = parts.get(name)
    if part is None:
        return Reply(status=204)
    if method == "DELETE":
        if part.vm:
            code = "NicInUse" if is_card else "OperationNotAllowed"
            raise ArmError(400 if is_card else 409, code, f"{name} is in use by {part.vm}.")
        del parts[name]
        return Reply(status=202)
    return Reply(content=_card(world, part) if is_card else _disk(part))


def _card(world: World, part: Part) -> dict[str, Any]:
    at_subnet = {
        "primary": True, "privateIPAddress": part.address, "privateIPAllocationMethod": "Dynamic",
        "privateIPAddressVersion": "IPv4",
    }  # fmt: skip
    properties: dict[str, Any] = {
        "provisioningState": "Succeeded", "primary": True,
        "ipConfigurations": [{"name": "primary", "properties": at_subnet}],
    }  # fmt: skip
    if part.vm:
        properties["virtualMachine"] = {"id": _vm_id(world, part.vm)}
    return {"name": part.name, "tags": part.tags, "properties": properties}


def _disk(part: Part) -> dict[str, Any]:
    state = "Attached" if part.vm else "Unattached"
    record: dict[str, Any] = {"name": part.name, "properties": {"diskState": state}}
    return record | ({"managedBy": f"/x/{part.vm}"} if part.vm else {})


def _operation(world: World, number: str) -> Reply:
    vm = world.vms.get(world.operations.get(number, ""))
    if vm is None:
        return Reply(content={"name": number, "status": "Canceled"})
    if vm.state == "Failed":
        code, message = vm.failure
        return Reply(content={"name": number, "status": "Failed",
                              "error": {"code": code, "message": message}})  # fmt: skip
    status = "InProgress" if vm.state == "Creating" else "Succeeded"
    return Reply(content={"name": number, "status": status})


def _read(world: World, path: str) -> Reply:
    """Answers about things that only exist: locks, sizes, quotas, images, subnets."""
    last = path.rpartition("/")[2].lower()
    if last == "locks":
        return Reply(content={"value": [{"name": n, "properties": {"level": "CanNotDelete"}}
                                        for n in world.locks]})  # fmt: skip
    if last == "skus" and path.lower().endswith("microsoft.compute/skus"):
        return Reply(content={"value": [_size(world, name) for name in SIZES]})
    if last == "usages":
        rows = {"cores": 1000, FAMILY: 500, "lowPriorityCores": world.spot_cores}
        return Reply(content={"value": [
            {"name": {"value": n, "localizedValue": n}, "limit": limit, "currentValue": 0,
             "unit": "Count"} for n, limit in rows.items()
        ]})  # fmt: skip
    if "/missing" in path.lower():
        raise ArmError(404, "ResourceNotFound", f"The Resource '{path}' was not found.")
    if "/subnets/" in path.lower():
        return Reply(content={"id": path, "properties": {"addressPrefix": "10.0.0.0/16"}})
    return Reply(content={"id": path, "name": last})


def _size(world: World, name: str) -> dict[str, Any]:
    cpus, memory = SIZES[name]
    capabilities = [
        {"name": "vCPUs", "value": str(cpus)},
        {"name": "MemoryGB", "value": str(memory)},
    ]
    return {
        "resourceType": "virtualMachines", "name": name, "family": FAMILY,
        "capabilities": capabilities, "restrictions": world.restrictions,
    }  # fmt: skip
