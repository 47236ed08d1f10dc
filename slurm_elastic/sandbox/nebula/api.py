"""The XML-RPC methods of the emulated OpenNebula: arguments, permissions, answers and errors.

Checks have the same order as in oned: the session, the arguments, the object, the permission.
"""

from __future__ import annotations

import xmlrpc.client
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from slurm_elastic.sandbox.nebula import images as one_images
from slurm_elastic.sandbox.nebula import xml_form as xml
from slurm_elastic.sandbox.nebula.cloud import (
    DONE,
    HOLD,
    LCM_STATES,
    PENDING,
    STATES,
    Cloud,
    MachineWish,
    OneRefusal,
    OneVm,
    order_from,
)
from slurm_elastic.sandbox.nebula.vm_template import ParseError, Template, parse, scalars, vectors
from slurm_elastic.sandbox.nebula.world import EmulatedImage, OneUser, VmTemplate

Result = int | str
_INT, _STR, _BOOL = "integer", "string", "boolean"
_TYPES: Mapping[str, type] = {_INT: int, _STR: str, _BOOL: bool}
_ALL_STATES = frozenset({-2, -1, *range(12)})
_RESTRICTED_NIC = frozenset({"MAC", "VLAN_ID", "BRIDGE"})
_ACTIONS = {
    "poweroff", "poweroff-hard", "suspend", "stop", "resume", "reboot", "reboot-hard", "hold",
    "release", "undeploy", "undeploy-hard", "resched", "unresched",
}  # fmt: skip
_RUNNING_STATES = frozenset({(3, 3)})
_OFF_STATES = frozenset({(4, 0), (5, 0), (8, 0), (9, 0)})
_INSTANT: Mapping[str, tuple[frozenset[tuple[int, int]], tuple[int, int]]] = {
    "poweroff": (_RUNNING_STATES, (8, 0)),
    "poweroff-hard": (_RUNNING_STATES, (8, 0)),
    "suspend": (_RUNNING_STATES, (5, 0)),
    "stop": (_RUNNING_STATES, (4, 0)),
    "resume": (_OFF_STATES, (3, 3)),
}
_RECOVER_DELETE = 3
_OWN_OBJECTS = -3


class OneCall(Struct, frozen=True):
    """A call of an account, with checked arguments."""

    user: OneUser
    args: tuple[Any, ...]
    now: float


class OneMethod(Struct, frozen=True):
    """A method. ``required``: the number of required arguments. Further arguments are optional, and
    arguments beyond ``types`` are ignored.
    """

    do: Callable[[Cloud, OneCall], Result]
    types: tuple[str, ...] = ()
    required: int = 0


def call(cloud: Cloud, name: str, params: Sequence[Any], now: float) -> Result:
    """Return the answer to a call. Raises OneRefusal, or xmlrpc's Fault if the protocol is
    violated.
    """
    method = METHODS.get(name)
    if method is None:
        raise xmlrpc.client.Fault(-506, f"Method '{name}' not defined")
    if not params:
        raise xmlrpc.client.Fault(-501, "Not enough parameters")
    cloud.advance(now)
    user = cloud.user(str(params[0]))
    args = tuple(params[1:])
    if len(args) < method.required:
        raise xmlrpc.client.Fault(-501, "Not enough parameters")
    for value, kind in zip(args, method.types, strict=False):
        # Not ``isinstance``: a bool is an int in Python, but not in oned.
        if type(value) is not _TYPES[kind]:
            raise xmlrpc.client.Fault(-501, f"Parameter that is supposed to be {kind} is not")
    try:
        return method.do(cloud, OneCall(user, args, now))
    except ParseError as error:
        raise OneRefusal(0x2000, f"Parse error: {error}") from None


def _instantiate(cloud: Cloud, request: OneCall) -> Result:
    _, name, hold, text = (*request.args, *(False, "")[len(request.args) - 2 :])[:4]
    template = _template(cloud, request)
    extra = parse(text)
    _refuse_restricted(request.user, extra)
    return cloud.start(request.user, order_from(template, name, hold, extra), request.now).id


def _refuse_restricted(user: OneUser, extra: Template) -> None:
    restricted = any(_RESTRICTED_NIC & nic.keys() for nic in vectors(extra, "NIC"))
    if user.id != 0 and restricted:
        message = "User Template includes a restricted attribute NIC."
        raise OneRefusal(0x0200, f"User [{user.id}] : {message}")


def _allocate(cloud: Cloud, request: OneCall) -> Result:
    text, hold = (*request.args, False)[:2]
    base = parse(text)
    name = scalars(base).get("NAME", "")
    return cloud.start(request.user, MachineWish(name=name, hold=hold, base=base), request.now).id


def _template_info(cloud: Cloud, request: OneCall) -> Result:
    template = _template(cloud, request)
    return xml.template(template, _owner(cloud, template.uid))


def _templates(cloud: Cloud, request: OneCall) -> Result:
    visible = [t for t in cloud.world.templates if request.user.id in (0, t.uid) or t.everybody]
    visible.sort(key=lambda t: -t.id)
    return xml.pool("VMTEMPLATE_POOL", (xml.template(t, _owner(cloud, t.uid)) for t in visible))


def _image_info(cloud: Cloud, request: OneCall) -> Result:
    one_images.advance(cloud.world, request.now)
    image = _image(cloud, request, "USE")
    return xml.image(image, _owner(cloud, image.uid))


def _images(cloud: Cloud, request: OneCall) -> Result:
    """List the images, newest first."""
    one_images.advance(cloud.world, request.now)
    visible = [i for i in cloud.world.images if _is_listed(i, request.user, request.args[0])]
    visible.sort(key=lambda i: -i.id)
    return xml.pool("IMAGE_POOL", (xml.image(i, _owner(cloud, i.uid)) for i in visible))


def _image_allocate(cloud: Cloud, request: OneCall) -> Result:
    text, store = request.args[:2]
    return one_images.allocate(cloud.world, request.user, scalars(parse(text)), store, request.now)


def _image_update(cloud: Cloud, request: OneCall) -> Result:
    number, text, append = request.args[:3]
    image = _image(cloud, request, "MANAGE")
    new = scalars(parse(text))
    image.template = image.template | new if append else new
    return int(number)


def _image_delete(cloud: Cloud, request: OneCall) -> Result:
    image = _image(cloud, request, "MANAGE")
    cloud.world.images.remove(image)
    return image.id


def _image(cloud: Cloud, request: OneCall, right: str) -> EmulatedImage:
    number, user = request.args[0], request.user
    image = cloud.image(str(number))
    if image is None:
        raise OneRefusal(0x0400, f"Error getting image [{number}].", number)
    if not (user.id in (0, image.uid) or (right == "USE" and image.everybody)):
        raise _unauthorized(user, f"{right} IMAGE [{number}]")
    return image


def _is_listed(image: EmulatedImage, user: OneUser, owner: int) -> bool:
    """Return True if a list contains the image. ``owner``: an account, or all usable images."""
    owner_id = {_OWN_OBJECTS: user.id}.get(owner, owner)
    if owner_id >= 0 and image.uid != owner_id:
        return False
    return user.id in (0, image.uid) or image.everybody


def _vm_info(cloud: Cloud, request: OneCall) -> Result:
    return xml.vm_full(_vm(cloud, request, "USE"))


def _vms(shown: Callable[[OneVm], str], cloud: Cloud, request: OneCall) -> Result:
    return xml.pool("VM_POOL", map(shown, _vms_of(cloud, request)))


def _vms_of(cloud: Cloud, request: OneCall) -> list[OneVm]:
    """Return the requested machines, newest first. ``start, end``: a range of ids, or, with a
    negative end, a page.
    """
    owner, start, end, state = request.args[:4]
    if owner < -4:
        raise OneRefusal(0x1000, "Incorrect filter_flag")
    if state not in _ALL_STATES:
        raise OneRefusal(0x1000, "Incorrect filter_flag, state")
    if len(request.args) > 4 and request.args[4]:
        raise OneRefusal(0x2000, "JSON query search is not supported by the SQL backend")
    visible_until = request.now - cloud.world.pace.visible_after
    machines = [
        vm
        for vm in sorted(cloud.vms.values(), key=lambda v: -v.id)
        if _visible(vm, request.user, owner)
        and _in_state(vm, state)
        and (vm.began <= visible_until or not cloud.world.pace.visible_after)
    ]
    if end < -1:
        return machines[max(start, 0) :][:-end]
    return [vm for vm in machines if vm.id >= start and (end < 0 or vm.id <= end)]


def _visible(vm: OneVm, user: OneUser, owner: int) -> bool:
    if owner >= 0:
        return vm.owner.id == owner and user.id in (0, owner)
    if owner == -3:
        return vm.owner.id == user.id
    if owner == -4:
        return vm.owner.gid == user.gid and user.id in (0, vm.owner.id)
    return user.id in (0, vm.owner.id)


def _in_state(vm: OneVm, state: int) -> bool:
    return state == -2 or (vm.state != DONE if state == -1 else vm.state == state)


def _vm_set(cloud: Cloud, request: OneCall) -> Result:
    ids = {int(text) for text in request.args[0].split(",") if text.strip().isdigit()}
    render = xml.vm_full if request.args[1] else xml.vm_short
    machines = [
        vm
        for vm in sorted(cloud.vms.values(), key=lambda v: -v.id)
        if vm.id in ids and request.user.id in (0, vm.owner.id)
    ]
    return xml.pool("VM_POOL", map(render, machines))


def _action(cloud: Cloud, request: OneCall) -> Result:
    action, number = request.args[:2]
    if not (action in _ACTIONS or action in ("terminate", "terminate-hard")):
        raise OneRefusal(0x0800, f'Action "{action}" is not supported')
    vm = _vm(cloud, request, "MANAGE", about=1)
    if action.startswith("terminate"):
        cloud.terminate(vm, action, request.now)
    elif action == "release":
        _require_state(vm, action, vm.state == HOLD)
        vm.state, vm.due = PENDING, request.now + cloud.world.pace.schedule
    elif action in _INSTANT:
        sources, target = _INSTANT[action]
        _require_state(vm, action, (vm.state, vm.lcm) in sources)
        vm.state, vm.lcm = target
    return int(number)


def _require_state(vm: OneVm, action: str, allowed: bool) -> None:
    if not allowed:
        name = LCM_STATES.get(vm.lcm, "?") if vm.state == 3 else STATES.get(vm.state, "?")
        message = f"This action is not available for state {name}"
        raise OneRefusal(0x0800, f'Error performing action "{action}": {message}')


def _update(cloud: Cloud, request: OneCall) -> Result:
    number, text, append = request.args[:3]
    vm = _vm(cloud, request, "MANAGE")
    new = scalars(parse(text))
    vm.user_template = (vm.user_template | new) if append else new
    return int(number)


def _recover(cloud: Cloud, request: OneCall) -> Result:
    number, operation = request.args[:2]
    vm = _vm(cloud, request, "ADMIN")
    if operation not in range(6):
        raise OneRefusal(0x0800, "Wrong recovery operation code")
    if operation == _RECOVER_DELETE:
        if vm.state != DONE:
            cloud.end(vm, request.now)
        return int(number)
    state = STATES.get(vm.state) or LCM_STATES.get(vm.lcm, "?")
    names = {0: "failure", 1: "success", 2: "retry"}
    operation_name = names.get(operation, "recover")
    raise OneRefusal(
        0x0800, f"Could not perform a {operation_name} on VM {number}, wrong state {state}."
    )


def _deploy(cloud: Cloud, request: OneCall) -> Result:
    number, host = request.args[:2]
    vm = _vm(cloud, request, "ADMIN")
    vm.host = next((h for h in cloud.world.hosts if h.id == host), None)
    vm.state, vm.lcm, vm.deployed = 3, 1, request.now
    vm.due = request.now + cloud.world.pace.boot / 2
    return int(number)


def _rename(cloud: Cloud, request: OneCall) -> Result:
    _vm(cloud, request, "MANAGE").name = request.args[1]
    return int(request.args[0])


def _lock(cloud: Cloud, request: OneCall, *, locked: bool) -> Result:
    vm = _vm(cloud, request, "USE")
    vm.locked = locked
    return vm.id


def _user_info(cloud: Cloud, request: OneCall) -> Result:
    number = request.args[0]
    is_own = number in (-1, request.user.id)
    if not is_own and request.user.id != 0:
        raise _unauthorized(request.user, f"USE USER [{number}]")
    user = request.user if is_own else _owner(cloud, number)
    return xml.user(user, cloud)


def _group_info(cloud: Cloud, request: OneCall) -> Result:
    number = request.user.gid if request.args[0] == -1 else request.args[0]
    is_own = number == request.user.gid and number not in cloud.world.hidden_groups
    if not is_own and request.user.id != 0:
        raise _unauthorized(request.user, f"USE GROUP [{number}]")
    name = next((u.group for u in cloud.world.users if u.gid == number), None)
    if name is None:
        raise OneRefusal(0x0400, f"Error getting group [{number}].", number)
    return xml.group(number, name, cloud)


def _user_quota(cloud: Cloud, request: OneCall) -> Result:
    number, text = request.args[:2]
    if request.user.id != 0:
        raise _unauthorized(request.user, f"ADMIN USER [{number}]")
    if number == 0:
        raise OneRefusal(0x0800, "Cannot set quotas for oneadmin user")
    user = _owner(cloud, number)
    for vector in vectors(parse(text), "VM"):
        user.quota |= {key: float(value) for key, value in vector.items()}
    for vector in vectors(parse(text), "NETWORK"):
        user.leases[int(vector["ID"])] = int(vector["LEASES"])
    return int(number)


def _hosts(cloud: Cloud, request: OneCall) -> Result:
    visible = cloud.world.hosts if request.user.id == 0 else []
    return xml.pool("HOST_POOL", (xml.host(h, cloud) for h in sorted(visible, key=lambda h: -h.id)))


def _users(cloud: Cloud, request: OneCall) -> Result:
    return xml.users((u for u in cloud.world.users if request.user.id in (0, u.id)), cloud)


def _template(cloud: Cloud, request: OneCall) -> VmTemplate:
    number, user = request.args[0], request.user
    template = next(
        (candidate for candidate in cloud.world.templates if candidate.id == number), None
    )
    if template is None:
        raise OneRefusal(0x0400, f"Error getting virtual machine template [{number}].", number)
    if not (user.id in (0, template.uid) or template.everybody):
        raise _unauthorized(user, f"USE TEMPLATE [{number}]")
    return template


def _owner(cloud: Cloud, number: int) -> OneUser:
    for user in cloud.world.users:
        if user.id == number:
            return user
    raise OneRefusal(0x0400, f"Error getting user [{number}].", number)


def _vm(cloud: Cloud, request: OneCall, right: str, about: int = 0) -> OneVm:
    number = request.args[about]
    vm = cloud.vms.get(number)
    if vm is None:
        raise OneRefusal(0x0400, f"Error getting virtual machine [{number}].", number)
    user = request.user
    is_permitted = user.id == 0 or (user.id == vm.owner.id and right != "ADMIN")
    if not is_permitted or (vm.locked and right == "MANAGE" and user.id != 0):
        raise _unauthorized(user, f"{right} VM [{number}]")
    return vm


def _unauthorized(user: OneUser, operation: str) -> OneRefusal:
    return OneRefusal(0x0200, f"User [{user.id}] : Not authorized to perform {operation}.")


_LIST = (_INT, _INT, _INT, _INT, _STR)
METHODS: Mapping[str, OneMethod] = {
    "one.system.version": OneMethod(lambda cloud, _: cloud.world.version),
    "one.template.instantiate": OneMethod(_instantiate, (_INT, _STR, _BOOL, _STR, _BOOL), 2),
    "one.template.info": OneMethod(_template_info, (_INT,), 1),
    "one.templatepool.info": OneMethod(_templates, (_INT, _INT, _INT), 3),
    "one.image.info": OneMethod(_image_info, (_INT,), 1),
    "one.image.allocate": OneMethod(_image_allocate, (_STR, _INT), 2),
    "one.image.update": OneMethod(_image_update, (_INT, _STR, _INT), 3),
    "one.image.delete": OneMethod(_image_delete, (_INT,), 1),
    "one.imagepool.info": OneMethod(_images, (_INT, _INT, _INT), 3),
    "one.vm.allocate": OneMethod(_allocate, (_STR, _BOOL), 1),
    "one.vm.info": OneMethod(_vm_info, (_INT,), 1),
    "one.vm.action": OneMethod(_action, (_STR, _INT), 2),
    "one.vm.update": OneMethod(_update, (_INT, _STR, _INT), 3),
    "one.vm.recover": OneMethod(_recover, (_INT, _INT), 2),
    "one.vm.deploy": OneMethod(_deploy, (_INT, _INT, _BOOL, _INT, _STR), 5),
    "one.vm.rename": OneMethod(_rename, (_INT, _STR), 2),
    "one.vm.lock": OneMethod(partial(_lock, locked=True), (_INT, _INT), 2),
    "one.vm.unlock": OneMethod(partial(_lock, locked=False), (_INT,), 1),
    "one.vmpool.info": OneMethod(partial(_vms, xml.vm_short), _LIST, 4),
    "one.vmpool.infoextended": OneMethod(partial(_vms, xml.vm_full), _LIST, 4),
    "one.vmpool.infoset": OneMethod(_vm_set, (_STR, _BOOL), 2),
    "one.group.info": OneMethod(_group_info, (_INT,), 1),
    "one.user.info": OneMethod(_user_info, (_INT,), 1),
    "one.user.quota": OneMethod(_user_quota, (_INT, _STR), 2),
    "one.userpool.info": OneMethod(_users),
    "one.hostpool.info": OneMethod(_hosts),
}
