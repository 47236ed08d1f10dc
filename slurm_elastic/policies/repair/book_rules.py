"""Rules for the ledger's rows after a cloud was read: addresses, registrations, the ends of drains.
Pure.
"""

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
from slurm_elastic.policies.launch.boots import ended_by_others_soon
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
    """Record that the cloud was read, once the ledger has every machine of its list: only then do
    the limits count all that the machines cost.
    """
    if snapshot.listed is None or snapshot.read_whole:
        return
    counted = {m.instance.id for m in (*snapshot.own_machines, *snapshot.stopped)}
    opened = {row.generation for row in snapshot.launches}
    off_or_terminated = (*OFF, InstanceState.TERMINATED)
    # A machine of an open launch is not in the ledger yet, but the launch's intent counts for the
    # limits.
    if all(
        i.id in counted or i.generation in opened or i.state in off_or_terminated
        for i in snapshot.listed
    ):
        yield NoteRead(cloud=snapshot.terms.cloud, cause=ListRead())


def addresses(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Set the addresses that the provider learnt after the launch, if it is the provider that
    reports them.
    """
    for m in snapshot.own_machines if snapshot.terms.tells_addresses else ():
        node, address = snapshot.nodes.get(m.instance.node), m.instance.address
        if not address or not m.is_wanted or node is None or node.address == address:
            continue
        # After the registration a change would be too late for the node's job, which Slurm requeues
        # (22.05, measured).
        if phase(node) is Phase.POWERING_UP:
            yield SetAddress(
                node=node.name, address=address, cause=MachineThere(machine=m.instance.id)
            )


def names(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Hide the names of powered-down nodes whose address is their name. slurmctld sets this address
    when a node has powered down.

    slurmctld then looks the name up for 10 s per node, for example at ``scontrol reconfigure``
    while the node boots for a job. It answers no command until the look-ups are over (22.05,
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
    """Register the booting machines whose nodes are up, and reopen the pools that these prove to
    work.
    """
    up: dict[str, list[str]] = {}
    for m in snapshot.own_machines:
        if m.boots and is_up(snapshot.nodes.get(m.instance.node), snapshot.terms.drain_terms):
            up.setdefault(m.pool, []).append(m.instance.node)
            yield Register(machine=m.instance.id, cause=NodeUp(node=m.instance.node))
    breaker_by_pool = {
        exclusion.scope: exclusion for exclusion in snapshot.exclusions if exclusion.kind == BREAKER
    }
    for pool, nodes in up.items():
        # Machines of a sickly pool did register before they failed, so a registration alone does
        # not prove that the pool works (``_sound_nodes``).
        if pool in breaker_by_pool and not sickly(breaker_by_pool[pool]):
            yield reopen(pool, nodes)
    for breaker in breaker_by_pool.values():
        if sickly(breaker) and (sound_nodes := _sound_nodes(snapshot, breaker.scope)):
            yield reopen(breaker.scope, sound_nodes)


def drains(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Open and close the spans in which nodes of the cloud's machines take no jobs."""
    now, nodes = snapshot.now, snapshot.nodes
    drained = {
        node
        for m in snapshot.own_machines
        if m.is_wanted and (node := m.instance.node) in nodes and is_drained(nodes[node])
    }
    open_span_by_node = {
        row.node: row
        for row in snapshot.drains
        # A node without a cloud may have left the configuration; any cloud's pass may close its
        # span.
        if snapshot.home(row.node) in (None, snapshot.terms.cloud)
    }
    for node in sorted(drained - open_span_by_node.keys()):
        yield NoteDrain(span=Drained(node=node, begin=now), cause=TakesNoJobs())
    for node in open_span_by_node.keys() - drained:
        span = replace(open_span_by_node[node], end=now)
        yield NoteDrain(span=span, cause=TakesJobs())


def reopen(pool: str, nodes: Sequence[str]) -> ReopenPool:
    """End the cool-down and the pause of a pool, because these nodes of it came up."""
    return ReopenPool(
        pool=pool,
        nodes=tuple(nodes),
        cause=PoolWorks(pool=pool),
    )


def is_up(node: SlurmNode | None, terms: DrainTerms) -> bool:
    """Whether the node has registered, and Slurm has not taken it out of service."""
    if node is None or phase(node) is not Phase.UP or is_down(node):
        return False
    return ill(node, terms) is None


def _sound_nodes(snapshot: ClusterSnapshot, pool: str) -> list[str]:
    """The nodes that prove that a pool works again after Slurm took machines of it out of service.

    The proof is a machine launched after the last failed machine that has served for
    ``terms.served`` seconds: its node still is up, or Slurm itself powered it down. Registration is
    no proof, because a Prolog fails at the first job only.
    """
    terms = snapshot.terms
    pool_machines = [
        m for m in snapshot.recent if m.pool == pool and m.instance.cloud == terms.cloud
    ]
    failed_launches_at = [
        decided_at(m.instance)
        for m in pool_machines
        if isinstance(m.cause, OutOfService) or ended_by_others_soon(m)
    ]
    last_failed_launch_at = max(failed_launches_at, default=0.0)
    return [
        m.instance.node
        for m in pool_machines
        if decided_at(m.instance) > last_failed_launch_at
        and _service_s(m, snapshot.now) >= terms.proven_after_s
        and (_ended_by_slurm(m) or is_up(snapshot.nodes.get(m.instance.node), terms.drain_terms))
    ]


def _service_s(machine: Machine, now: float) -> float:
    """Return the time that the machine has been in service, or was, in seconds."""
    possible_ends = [end for end in (machine.retired_at, machine.ended_at, now) if end is not None]
    return min(possible_ends) - machine.registered_at if machine.registered_at is not None else 0.0


def _ended_by_slurm(machine: Machine) -> bool:
    """Whether the machine served until Slurm powered its node down."""
    return machine.retired_at is not None and machine.cause == SuspendedBySlurm()
