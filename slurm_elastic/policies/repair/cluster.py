"""The decisions of slurm-elasticd's pass over a cloud: one snapshot in, actions out. Pure.

A pass reads all that it needs once, as a ``ClusterSnapshot``. ``decide`` runs each due rule on the
snapshot and collects the actions. ``controller.apply`` carries them out; nothing else writes. The
next pass's snapshot shows the outcome. The rules of a cloud's books run in the same pass, after its
repairs were carried out.
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
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, RoundRule
from slurm_elastic.policies.repair.hold_rules import holds
from slurm_elastic.policies.repair.reconcile_rules import repairs


def decide(snapshot: ClusterSnapshot, due: Iterable[RoundRule]) -> tuple[Action, ...]:
    """Return the actions of the ``due`` rules, in the order in which they must be carried out."""
    due_rules = frozenset(due)
    return tuple(
        action
        for rule, rule_actions in _RULES.items()
        if rule in due_rules
        for action in rule_actions(snapshot)
    )


def _repairs(snapshot: ClusterSnapshot) -> Iterable[Action]:
    return repairs(cloud_view(snapshot), snapshot.terms.thresholds)


def cloud_view(snapshot: ClusterSnapshot) -> CloudView:
    """Return the cloud's part of the snapshot in the form that repair compares."""
    nodes, own_machines = snapshot.nodes, snapshot.own_machines
    home_machine_by_node, unshown_ids = _at_home(snapshot), _unshown(snapshot)
    names = dict.fromkeys(n for pool in snapshot.own_pools for n in pool.nodes)
    # A live machine's node may be of no pool any longer; repair still needs its state.
    names |= dict.fromkeys(m.instance.node for m in own_machines)
    return CloudView(
        now=snapshot.now,
        nodes={n: nodes[n] for n in names if n in nodes},
        tracked=tuple(
            _tracked(snapshot, m, home_machine_by_node, unshown_ids) for m in own_machines
        ),
        intents=tuple(
            Intent(generation=row.generation, nodes=row.nodes, created=row.created)
            for row in snapshot.launches
            if row.cloud == snapshot.terms.cloud
        ),
        listed=snapshot.listed,
        held=frozenset(
            exclusion.scope for exclusion in snapshot.exclusions if exclusion.kind == CAPACITY
        ),
        elsewhere=_elsewhere(snapshot),
        machines=tuple(m.instance for m in snapshot.machines),
        all_nodes=nodes,
        slurmd_timeout=snapshot.slurmd_timeout,
        drain_terms=snapshot.terms.drain_terms,
        stopped=_stopped(snapshot) if snapshot.stopped else (),
    )


def _stopped(snapshot: ClusterSnapshot) -> tuple[StoppedInstance, ...]:
    stopped_machines = [m for m in snapshot.stopped if m.instance.cloud == snapshot.terms.cloud]
    if not stopped_machines:
        return ()
    now = snapshot.now
    leaving = departing(stopped_machines, snapshot.directives, now)
    unwanted_causes = unwanted(
        stopped_machines, snapshot.terms.pools, snapshot.recipes, leaving, now
    )
    return tuple(
        StoppedInstance(
            id=m.instance.id,
            node=m.instance.node,
            missed_listings=m.missed_listings,
            unwanted=unwanted_causes.get(m.instance.id),
        )
        for m in stopped_machines
    )


def _tracked(
    snapshot: ClusterSnapshot,
    machine: Machine,
    home_machine_by_node: Mapping[str, str],
    unshown_ids: frozenset[str],
) -> TrackedInstance:
    instance = machine.instance
    has_moved = snapshot.home(instance.node) not in (None, instance.cloud)
    return TrackedInstance(
        id=instance.id,
        node=instance.node,
        generation=instance.generation,
        decided_at=decided_at(instance),
        missed_listings=machine.missed_listings,
        is_ending=machine.retired_at is not None,
        address=instance.address,
        max_age=_max_age(snapshot, machine),
        was_listed=instance.id not in unshown_ids,
        has_registered=machine.registered_at is not None,
        double_of=home_machine_by_node.get(instance.node, "") if has_moved else "",
        is_stopping=machine.is_stopping,
        first_launched_at=machine.first_launched_at,
    )


def _at_home(snapshot: ClusterSnapshot) -> dict[str, str]:
    """Return, by node, the id of the machine at whose address Slurm has the node. Machines of
    other clouds than the node's own do not count.
    """
    # Two machines may carry one node's tag, so only the address that Slurm has decides.
    nodes = snapshot.nodes
    return {
        m.instance.node: m.instance.id
        for m in snapshot.machines
        if m.is_wanted
        and m.instance.address
        and m.instance.node in nodes
        and nodes[m.instance.node].address == m.instance.address
        and snapshot.home(m.instance.node) == m.instance.cloud
    }


def _elsewhere(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the nodes that machines and open launches of other clouds serve, as after a pool was
    given to another cloud.

    While a node powers up, only machines that still boot within their cloud's time count. An older
    machine, or a machine from before this power-up (``find_stale_machines``), must not block it:
    if its cloud is unreadable or no longer configured, we cannot end it.
    """
    cloud = snapshot.terms.cloud
    other_machines = [m for m in snapshot.machines if m.instance.cloud != cloud and m.is_wanted]
    other_launches = [row for row in snapshot.launches if row.cloud != cloud]

    def boots(name: str) -> bool:
        return name in snapshot.nodes and phase(snapshot.nodes[name]) is Phase.POWERING_UP

    served_nodes = {
        m.instance.node
        for m in other_machines
        if not boots(m.instance.node)
        or (m.registered_at is None and snapshot.may_boot(decided_at(m.instance), m.instance.cloud))
    }
    for row in other_launches:
        is_young = snapshot.may_boot(row.created, row.cloud)
        served_nodes.update(n for n in row.nodes if is_young or not boots(n))
    return frozenset(served_nodes)


def _max_age(snapshot: ClusterSnapshot, machine: Machine) -> float | None:
    """Return the maximum age (s) of the machine's pool. If its pool is no longer configured, return
    the longest of its cloud's pools.
    """
    if machine.pool in snapshot.terms.pools:
        return snapshot.terms.pools[machine.pool].max_age
    # A pool without a maximum may be the machine's pool, so the machine must not end by its age.
    ages = [pool.max_age for pool in snapshot.own_pools]
    return max((age for age in ages if age is not None), default=None) if all(ages) else None


def _unshown(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the ids of machines that no list of the cloud has shown since their launch was
    answered. Clouds may hide a fresh machine for minutes.
    """
    answered_at = snapshot.answered
    return frozenset(
        m.instance.id
        for m in snapshot.own_machines
        if m.missed_listings > 0
        and m.instance.generation in answered_at
        and m.last_seen <= answered_at[m.instance.generation]
    )


# The actions are carried out in the order of this table: repairs before the cloud's books.
_RULES: Mapping[RoundRule, Callable[[ClusterSnapshot], Iterable[Action]]] = {
    RoundRule.REPAIR: _repairs,
    RoundRule.READ: read,
    RoundRule.ADDRESSES: addresses,
    RoundRule.NAMES: names,
    RoundRule.REGISTRATIONS: registrations,
    RoundRule.DRAINS: drains,
    RoundRule.HOLDS: holds,
}
