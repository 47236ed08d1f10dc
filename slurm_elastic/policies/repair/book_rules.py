"""The books of a cloud that was read: addresses, registrations, and whose drain is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from slurm_elastic.model.causes.machine_ends import OutOfService, SuspendedBySlurm
from slurm_elastic.model.causes.repairs import (
    ListRead,
    MachineThere,
    NameLookedUp,
    NodeUp,
    PoolWorks,
    TakesJobs,
    TakesNoJobs,
)
from slurm_elastic.model.cluster import OFF, InstanceState
from slurm_elastic.model.exclusion import BREAKER
from slurm_elastic.model.memory import Drained, Machine, decided_at
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import (
    Action,
    HideName,
    NoteDrain,
    NoteRead,
    Register,
    ReopenPool,
    SetAddress,
)
from slurm_elastic.policies.launch.exclusions import sickly
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    has_name_alone,
    is_down,
    is_drained,
    phase,
)
from slurm_elastic.policies.nodes.out_of_service import DrainTerms, ill
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot


def read(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Once all machines of a list are in the ledger, what they cost is in the limits."""
    if snapshot.listed is None or snapshot.read_whole:
        return
    counted = {m.instance.id for m in (*snapshot.mine, *snapshot.stopped)}
    opened = {row.generation for row in snapshot.launches}
    gone = (*OFF, InstanceState.TERMINATED)
    if all(i.id in counted or i.generation in opened or i.state in gone for i in snapshot.listed):
        yield NoteRead(cloud=snapshot.terms.cloud, cause=ListRead())


def addresses(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Addresses that the provider learnt after the launch (where it is the one to tell)."""
    for m in snapshot.mine if snapshot.terms.tells_addresses else ():
        node, address = snapshot.nodes.get(m.instance.node), m.instance.address
        if not address or not m.is_wanted or node is None or node.address == address:
            continue
        # Once slurmd has registered it is too late for the job, which is requeued (22.05,
        # measured).
        if phase(node) is Phase.POWERING_UP:
            yield SetAddress(
                node=node.name, address=address, cause=MachineThere(machine=m.instance.id)
            )


def names(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Nodes that are off and have their name for an address, as slurmctld sets it when a node has
    powered down. slurmctld looks the name up for 10 s a node, for example at ``scontrol
    reconfigure`` while the node boots for a job, and answers no command until then (22.05,
    measured).
    """
    if not snapshot.terms.looks_names_up:
        return
    for pool in snapshot.own_pools:
        for name in pool.nodes:
            node = snapshot.nodes.get(name)
            if node is not None and has_name_alone(node):
                yield HideName(node=name, cause=NameLookedUp())


def registrations(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Which booting machines' nodes are up; one that is proves that its pool works."""
    up: dict[str, list[str]] = {}
    for m in snapshot.mine:
        if m.boots and is_up(snapshot.nodes.get(m.instance.node), snapshot.terms.drain_terms):
            up.setdefault(m.pool, []).append(m.instance.node)
            yield Register(machine=m.instance.id, cause=NodeUp(node=m.instance.node))
    broken = {one.scope: one for one in snapshot.exclusions if one.kind == BREAKER}
    for pool, nodes in up.items():
        if pool in broken and not sickly(broken[pool]):
            yield reopen(pool, nodes)
    for breaker in broken.values():
        if sickly(breaker) and (well := _sound(snapshot, breaker.scope)):
            yield reopen(breaker.scope, well)


def drains(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Begin and end the spans in which nodes of the cloud's machines take no jobs."""
    now, nodes = snapshot.now, snapshot.nodes
    drained = {
        node
        for m in snapshot.mine
        if m.is_wanted and (node := m.instance.node) in nodes and is_drained(nodes[node])
    }
    opened = {
        row.node: row
        for row in snapshot.drains
        if snapshot.home(row.node) in (None, snapshot.terms.cloud)
    }
    for node in sorted(drained - opened.keys()):
        yield NoteDrain(span=Drained(node=node, begin=now), cause=TakesNoJobs())
    for node in opened.keys() - drained:
        span = replace(opened[node], end=now)
        yield NoteDrain(span=span, cause=TakesJobs())


def reopen(pool: str, nodes: Sequence[str]) -> ReopenPool:
    """The end of the cool-down and the pause of a pool, as these nodes of it came up."""
    return ReopenPool(
        pool=pool,
        nodes=tuple(nodes),
        cause=PoolWorks(pool=pool),
    )


def is_up(node: SlurmNode | None, terms: DrainTerms) -> bool:
    """Whether it has registered, and Slurm takes it as it is."""
    if node is None or phase(node) is not Phase.UP or is_down(node):
        return False
    return ill(node, terms) is None


def _sound(snapshot: ClusterSnapshot, pool: str) -> list[str]:
    """The nodes that show that a pool whose machines Slurm took out of service works again: one
    that registered since has been in service for a while, or was until Slurm powered it down. A
    Prolog fails at the first job only.
    """
    terms = snapshot.terms
    mine = [m for m in snapshot.recent if m.pool == pool and m.instance.cloud == terms.cloud]
    failed = [decided_at(m.instance) for m in mine if isinstance(m.cause, OutOfService)]
    since = max(failed, default=0.0)
    return [
        m.instance.node
        for m in mine
        if decided_at(m.instance) > since
        and _service(m, snapshot.now) >= terms.served
        and (_left_in_peace(m) or is_up(snapshot.nodes.get(m.instance.node), terms.drain_terms))
    ]


def _service(machine: Machine, now: float) -> float:
    """For how many seconds it has been in service, or was."""
    ends = [at for at in (machine.retired_at, machine.ended_at, now) if at is not None]
    return min(ends) - machine.registered_at if machine.registered_at is not None else 0.0


def _left_in_peace(machine: Machine) -> bool:
    """Whether Slurm had it in service to the end."""
    return machine.retired_at is not None and machine.cause == SuspendedBySlurm()
