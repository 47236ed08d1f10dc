"""The decisions of slurm-elasticd's passes over a cloud: one snapshot in, actions out. Pure.

A pass reads all it needs once, as a ``ClusterSnapshot``. ``decide`` asks each rule that is due what
is to be done; ``controller.apply`` does it, and alone writes. The outcome is in the snapshot of
the next pass; the books of a cloud are decided in the same pass after its repairs were done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.model.memory import Machine, decided_at
from slurm_elastic.policies.actions import Action
from slurm_elastic.policies.growth.stopped import departing, unwanted
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.book_rules import addresses, drains, names, read, registrations
from slurm_elastic.policies.repair.cloud_view import (
    CloudView,
    Intent,
    StoppedInstance,
    TrackedInstance,
)
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, Rule
from slurm_elastic.policies.repair.hold_rules import holds
from slurm_elastic.policies.repair.reconcile_rules import repairs


def decide(snapshot: ClusterSnapshot, due: Iterable[Rule]) -> tuple[Action, ...]:
    """All that is to be done now by the rules that are ``due``, in the order of doing it."""
    asked = frozenset(due)
    return tuple(
        action for rule, ask in _RULES.items() if rule in asked for action in ask(snapshot)
    )


def _repairs(snapshot: ClusterSnapshot) -> Iterable[Action]:
    return repairs(cloud_view(snapshot), snapshot.terms.patience)


def cloud_view(snapshot: ClusterSnapshot) -> CloudView:
    """The cloud's part of the snapshot, as repair compares it."""
    view, mine = snapshot.nodes, snapshot.mine
    at_home, unshown = _at_home(snapshot), _unshown(snapshot)
    names = dict.fromkeys(n for pool in snapshot.own_pools for n in pool.nodes)
    names |= dict.fromkeys(m.instance.node for m in mine)
    return CloudView(
        now=snapshot.now,
        nodes={n: view[n] for n in names if n in view},
        known=tuple(_known(snapshot, m, at_home, unshown) for m in mine),
        intents=tuple(
            Intent(generation=row.generation, nodes=row.nodes, created=row.created)
            for row in snapshot.launches
            if row.cloud == snapshot.terms.cloud
        ),
        seen=snapshot.listed,
        held=frozenset(one.scope for one in snapshot.exclusions if one.kind == CAPACITY),
        elsewhere=_elsewhere(snapshot),
        machines=tuple(m.instance for m in snapshot.machines),
        all_nodes=view,
        slurmd_timeout=snapshot.slurmd_timeout,
        drain_terms=snapshot.terms.drain_terms,
        stopped=_stopped(snapshot) if snapshot.stopped else (),
    )


def _stopped(snapshot: ClusterSnapshot) -> tuple[StoppedInstance, ...]:
    mine = [m for m in snapshot.stopped if m.instance.cloud == snapshot.terms.cloud]
    if not mine:
        return ()
    now = snapshot.now
    leaving = departing(mine, snapshot.directives, now)
    ends = unwanted(mine, snapshot.terms.pools, snapshot.recipes, leaving, now)
    return tuple(
        StoppedInstance(
            id=m.instance.id,
            node=m.instance.node,
            misses=m.misses,
            unwanted=ends.get(m.instance.id),
        )
        for m in mine
    )


def _known(
    snapshot: ClusterSnapshot,
    machine: Machine,
    at_home: Mapping[str, str],
    unshown: frozenset[str],
) -> TrackedInstance:
    one = machine.instance
    moved = snapshot.home(one.node) not in (None, one.cloud)
    return TrackedInstance(
        id=one.id,
        node=one.node,
        generation=one.generation,
        decided=decided_at(one),
        misses=machine.misses,
        suspending=machine.retired_at is not None,
        address=one.address,
        max_age=_max_age(snapshot, machine),
        shown=one.id not in unshown,
        registered=machine.registered_at is not None,
        double_of=at_home.get(one.node, "") if moved else "",
        stopping=machine.is_stopping,
        born=machine.born,
    )


def _at_home(snapshot: ClusterSnapshot) -> dict[str, str]:
    """By node, the machine of its own cloud at whose address it is."""
    view = snapshot.nodes
    return {
        m.instance.node: m.instance.id
        for m in snapshot.machines
        if m.is_wanted
        and m.instance.address
        and m.instance.node in view
        and view[m.instance.node].address == m.instance.address
        and snapshot.home(m.instance.node) == m.instance.cloud
    }


def _elsewhere(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Nodes that machines and open launches of other clouds serve, as after a pool was given to
    another cloud. A machine that has not come up in ResumeTimeout serves no node that is powering
    up; nor does what it was up on before (``stale_instances``): the cloud that could end it may be
    one that cannot be read, or that the configuration lacks.
    """
    cloud, oldest = snapshot.terms.cloud, snapshot.now - snapshot.terms.resume_timeout
    others = [m for m in snapshot.machines if m.instance.cloud != cloud and m.is_wanted]
    opened = [row for row in snapshot.launches if row.cloud != cloud]

    def boots(node: str) -> bool:
        return node in snapshot.nodes and phase(snapshot.nodes[node]) is Phase.POWERING_UP

    found = {
        m.instance.node
        for m in others
        if not boots(m.instance.node)
        or (m.registered_at is None and decided_at(m.instance) > oldest)
    }
    for row in opened:
        found.update(n for n in row.nodes if row.created > oldest or not boots(n))
    return frozenset(found)


def _max_age(snapshot: ClusterSnapshot, machine: Machine) -> float | None:
    """Its pool's; of a machine whose pool is not known any more, the longest of its cloud."""
    if machine.pool in snapshot.terms.pools:
        return snapshot.terms.pools[machine.pool].max_age
    # Where one of them has no maximum, the machine may be of that pool.
    ages = [pool.max_age for pool in snapshot.own_pools]
    return max((age for age in ages if age is not None), default=None) if all(ages) else None


def _unshown(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Machines that no read of the cloud has had: a fresh machine may be missing for minutes."""
    ends = snapshot.answered
    return frozenset(
        m.instance.id
        for m in snapshot.mine
        if m.misses > 0
        and m.instance.generation in ends
        and m.last_seen <= ends[m.instance.generation]
    )


_RULES: Mapping[Rule, Callable[[ClusterSnapshot], Iterable[Action]]] = {
    Rule.REPAIR: _repairs,
    Rule.READ: read,
    Rule.ADDRESSES: addresses,
    Rule.NAMES: names,
    Rule.REGISTRATIONS: registrations,
    Rule.DRAINS: drains,
    Rule.HOLDS: holds,
}
