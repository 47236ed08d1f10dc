"""The actions that one request of slurmctld calls for. Pure.

They are rows of the table of repairs (``reconcile_rules``) for the nodes that it names: powering
up and nothing there -> launch, powered down and a machine there -> end it. slurmctld has just
asked, so nothing has to stand for a while, nothing is capped, and no list of the cloud is waited
for. Idempotent by node: a request that comes twice, or late, is dropped with a reason.
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
from slurm_elastic.policies.actions import Action, Drop, FailBoot, Launch, Suspend
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot


def requested(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """All that the snapshot's request calls for in the pass's cloud."""
    request = snapshot.request
    if request is None:
        return ()
    names = [n for n in request.nodes if snapshot.home(n) == snapshot.terms.cloud]
    rule = _resume if request.kind == "resume" else _suspend
    return rule(snapshot, request, names)


def _resume(snapshot: ClusterSnapshot, request: Request, names: Sequence[str]) -> Iterable[Action]:
    # From one power-up to the next SuspendTimeout passes at least. What came up after that may be
    # up still, and a slurmctld that was just killed have forgotten it: that is left to the repair.
    long_ago = snapshot.now - snapshot.terms.suspend_timeout
    past: dict[str, list[str]] = {}
    for machine in snapshot.mine:
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
            yield Launch(node=name, past=tuple(past.get(name, ())), cause=AskedBySlurm())


def _is_past(machine: Machine, long_ago: float) -> bool:
    life = machine.life
    return isinstance(life, Serving) and life.registered_at <= long_ago


def _served(snapshot: ClusterSnapshot, request: Request, long_ago: float) -> set[str]:
    """Nodes that have a machine, or an open launch that may have made one."""
    cloud, clouds = snapshot.terms.cloud, snapshot.terms.clouds
    oldest = snapshot.now - snapshot.terms.resume_timeout

    def serves(machine: Machine) -> bool:
        one = machine.instance
        if not machine.is_wanted or _is_past(machine, long_ago):
            return False
        if one.cloud == cloud or machine.registered_at is not None:
            return True
        # Another cloud's, which may still come up; one that has left the configuration is only
        # waited for where it was bought for this very request.
        of_this = generation_order(one.generation) > request.received
        return (one.cloud in clouds or of_this) and decided_at(one) > oldest

    found = {m.instance.node for m in snapshot.machines if serves(m)}
    for row in snapshot.launches:
        other = row.cloud in clouds and row.created > oldest
        if row.cloud == cloud or other or row.request == request.id:
            found.update(row.nodes)
    return found


def _suspend(snapshot: ClusterSnapshot, request: Request, names: Sequence[str]) -> Iterable[Action]:
    """Only machines launched before the request: an old one must not end a new machine, whatever
    the clock said when either was made (``generation_order``). Where a machine is the younger one
    by the clock, which may have been set back, what Slurm says now tells. So it does where the
    call of an earlier launch was made again and had its answer only after the request.
    """
    asked = frozenset(names)
    for machine in snapshot.mine:
        one = machine.instance
        if one.node not in asked:
            continue
        node = snapshot.nodes.get(one.node)
        # Powering up once more counts, too: the request is served late.
        goes = node is not None and phase(node) is not Phase.UP
        younger = max(generation_order(one.generation), one.launched) > request.received
        # One that the cloud does not list may have been taken while it booted.
        failed = request.kind == "resume-fail" and machine.boots and not machine.misses
        if failed and not younger:
            yield FailBoot(machine=one.id, cause=SuspendedBySlurm(), ends=goes)
        elif goes:
            yield Suspend(machine=one.id, cause=SuspendedBySlurm(), unproven=younger)
        if not goes:
            yield Drop(node=one.node, cause=NotPoweringDown())
