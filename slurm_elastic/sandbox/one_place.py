"""Putting a machine of the emulated OpenNebula there in any state, for tests and rehearsals."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.one_cloud import DONE, Cloud, MachineWish, Refusal, Vm, order_from
from slurm_elastic.sandbox.one_template import ParseError, parse


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


def place(cloud: Cloud, wanted: Place, now: float) -> Vm:
    """The machine; the counter of ids stands where it stood."""
    owner = next((u for u in cloud.world.users if u.id == wanted.uid), None)
    template = next((t for t in cloud.world.templates if t.id == wanted.template), None)
    if owner is None or (template is None and wanted.template is not None):
        raise SandboxError(f"machine {wanted.id}: no such user or template")
    before, cloud.next_id = cloud.next_id, wanted.id
    cloud.vms.pop(wanted.id, None)
    bounds = owner.quota, owner.leases, owner.runs
    owner.quota, owner.leases, owner.runs = {}, {}, {}
    try:
        extra = parse(wanted.extra)
        order = (
            order_from(template, wanted.name, wanted.held, extra)
            if template
            else MachineWish(name=wanted.name, hold=wanted.held, base=extra)
        )
        vm = cloud.start(owner, order, now if wanted.began is None else wanted.began)
    except (ParseError, Refusal) as error:
        raise SandboxError(f"machine {wanted.id}: {error}") from None
    finally:
        cloud.next_id = before
        owner.quota, owner.leases, owner.runs = bounds
    vm.state, vm.lcm, vm.locked, vm.due = wanted.state, wanted.lcm, wanted.locked, float("inf")
    vm.user_template |= wanted.user_template or {}
    vm.host = next((h for h in cloud.world.hosts if h.id == wanted.host), None)
    if vm.host is not None:
        vm.deployed = now
        vm.template["TM_MAD_SYSTEM"] = ["dummy"]
    if vm.state == DONE:
        vm.ended, vm.action = now, 28
    return vm
