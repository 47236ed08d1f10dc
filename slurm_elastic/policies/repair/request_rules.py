"""The actions that one request of slurmctld calls for. Pure.

They are rows of the table of repairs (``reconcile_rules``) for the nodes of the request: powering
up without a machine -> launch, powered down with a machine -> end it. Because slurmctld has just
asked, nothing must stand for a while, no cap applies, and the cloud's list is not needed. Requests
are idempotent by node: one that comes twice, or late, is dropped with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_elastic.model.causes.machine_ends import SuspendedBySlurm
from slurm_elastic.model.causes.repairs import (
    AlreadyServed,
    AskedBySlurm,
    NotPoweringDown,
    NotPoweringUp,
)
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.memory import Machine, decided_at, generation_order
from slurm_elastic.model.slurm import Request
from slurm_elastic.policies.actions import Action, Drop, FailBoot, LaunchMachine, Suspend
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot


def requested(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Return all actions that the snapshot's request calls for in the pass's cloud."""
    request = snapshot.request
    if request is None:
        return ()
    names = [n for n in request.nodes if snapshot.home(n) == snapshot.terms.cloud]
    rule = _resume if request.kind == "resume" else _suspend
    return rule(snapshot, request, names)


def _resume(snapshot: ClusterSnapshot, request: Request, names: Sequence[str]) -> Iterable[Action]:
    # Between two power-ups of a node at least SuspendTimeout passes, so a machine that registered
    # before that belongs to an earlier power-up. A younger machine may still be up while a
    # slurmctld that was just killed has forgotten it: the repair decides about such a machine.
    long_ago = snapshot.now - snapshot.terms.suspend_timeout
    past: dict[str, list[str]] = {}
    for machine in snapshot.own_machines:
        if _is_past(machine, long_ago):
            past.setdefault(machine.instance.node, []).append(machine.instance.id)
    served = _served(snapshot, request, long_ago)
    for name in names:
        node = snapshot.nodes.get(name)
        if node is None or phase(node) is not Phase.POWERING_UP:
            yield Drop(node=name, cause=NotPoweringUp())
        elif name in served:
            yield Drop(node=name, cause=AlreadyServed())
        else:
            yield LaunchMachine(
                node=name, machines_to_end_first=tuple(past.get(name, ())), cause=AskedBySlurm()
            )


def _is_past(machine: Machine, long_ago: float) -> bool:
    life = machine.life
    return isinstance(life, Serving) and life.registered_at <= long_ago


def _served(snapshot: ClusterSnapshot, request: Request, long_ago: float) -> set[str]:
    """Return the nodes with a machine, or with an open launch whose call may have made one."""
    cloud, clouds = snapshot.terms.cloud, snapshot.terms.clouds

    def serves(machine: Machine) -> bool:
        instance = machine.instance
        if not machine.is_wanted or _is_past(machine, long_ago):
            return False
        if instance.cloud == cloud or machine.registered_at is not None:
            return True
        # A machine of another cloud may still come up within the time of that cloud. If its cloud
        # has left the configuration, wait only for a machine that was launched for this very
        # request.
        is_of_request = generation_order(instance.generation) > request.received
        return (instance.cloud in clouds or is_of_request) and snapshot.may_boot(
            decided_at(instance), instance.cloud
        )

    served_nodes = {m.instance.node for m in snapshot.machines if serves(m)}
    for row in snapshot.launches:
        may_boot_elsewhere = row.cloud in clouds and snapshot.may_boot(row.created, row.cloud)
        if row.cloud == cloud or may_boot_elsewhere or row.request == request.id:
            served_nodes.update(row.nodes)
    return served_nodes


def _suspend(snapshot: ClusterSnapshot, request: Request, names: Sequence[str]) -> Iterable[Action]:
    """End only machines that were launched before the request, because an old request must not end
    a new machine, whatever the clock said at either time (``generation_order``).

    If a machine seems younger than the request, the clock may have been set back, or an earlier
    launch was retried and answered only after the request. The node's present state then decides
    (``unproven``).
    """
    asked = frozenset(names)
    for machine in snapshot.own_machines:
        instance = machine.instance
        if instance.node not in asked:
            continue
        node = snapshot.nodes.get(instance.node)
        # POWERING_UP counts, too: this request is served late, and the node is already asked for
        # again.
        is_not_up = node is not None and phase(node) is not Phase.UP
        is_younger = (
            max(generation_order(instance.generation), instance.launched) > request.received
        )
        # A machine that the cloud no longer lists may have been taken away while it booted: that is
        # no failed boot.
        has_failed_boot = (
            request.kind == "resume-fail" and machine.boots and not machine.missed_listings
        )
        if has_failed_boot and not is_younger:
            yield FailBoot(machine=instance.id, cause=SuspendedBySlurm(), ends=is_not_up)
        elif is_not_up and not machine.is_stopping:
            # If our own stop of the machine had no answer, the repair repeats the stop. `Suspend`
            # would end the machine.
            yield Suspend(machine=instance.id, cause=SuspendedBySlurm(), unproven=is_younger)
        if not is_not_up:
            yield Drop(node=instance.node, cause=NotPoweringDown())
