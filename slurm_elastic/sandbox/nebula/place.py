"""Makes machines of the emulated OpenNebula in any state, for tests and rehearsals."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.nebula.cloud import (
    DONE,
    Cloud,
    MachineWish,
    OneRefusal,
    OneVm,
    order_from,
)
from slurm_elastic.sandbox.nebula.vm_template import ParseError, parse


class Place(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine to make in a given state. An older machine with that id is discarded. ``template``:
    the id of a template; ``extra``: text in oned's form; ``host``: where it is deployed (None:
    nowhere).
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


def place(cloud: Cloud, spec: Place, now: float) -> OneVm:
    """Make the machine. The counter of ids does not change. Raises SandboxError."""
    owner = next((u for u in cloud.world.users if u.id == spec.uid), None)
    template = next((t for t in cloud.world.templates if t.id == spec.template), None)
    if owner is None or (template is None and spec.template is not None):
        raise SandboxError(f"machine {spec.id}: no such user or template")
    # Remove the owner's quotas for this call, so that a test can place more than they allow.
    before, cloud.next_id = cloud.next_id, spec.id
    cloud.vms.pop(spec.id, None)
    quotas = owner.quota, owner.leases, owner.runs
    owner.quota, owner.leases, owner.runs = {}, {}, {}
    try:
        extra = parse(spec.extra)
        order = (
            order_from(template, spec.name, spec.held, extra)
            if template
            else MachineWish(name=spec.name, hold=spec.held, base=extra)
        )
        vm = cloud.start(owner, order, now if spec.began is None else spec.began)
    except (ParseError, OneRefusal) as error:
        raise SandboxError(f"machine {spec.id}: {error}") from None
    finally:
        cloud.next_id = before
        owner.quota, owner.leases, owner.runs = quotas
    vm.state, vm.lcm, vm.locked, vm.due = spec.state, spec.lcm, spec.locked, float("inf")
    vm.user_template |= spec.user_template or {}
    vm.host = next((h for h in cloud.world.hosts if h.id == spec.host), None)
    if vm.host is not None:
        vm.deployed = now
        vm.template["TM_MAD_SYSTEM"] = ["dummy"]
    if vm.state == DONE:
        vm.ended, vm.action = now, 28
    return vm
