"""Reads what a round of repair decides on: Slurm's nodes, and a cloud's part as ``CloudView``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm_elastic.controller.context import Site, generation_time
from slurm_elastic.controller.suspend import boots_still, oldest_boot
from slurm_elastic.errors import SlurmError
from slurm_elastic.ledger import Machine
from slurm_elastic.model import CAPACITY, Exclusion, Instance
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.node_state import Phase, at_anothers_address, phase
from slurm_elastic.policies.reconcile_rules import CloudView, Intent, TrackedInstance, is_pinged
from slurm_elastic.protocols import NO_NODE


def all_nodes(site: Site) -> Mapping[str, SlurmNode]:
    """Every node by Slurm. No cluster has none: that answer says nothing about any machine."""
    view = site.slurm.nodes()
    if not view:
        raise SlurmError(("sinfo",), 0, NO_NODE)
    return view


def machines_of(site: Site, cloud: str) -> list[Machine]:
    """The live machines of one cloud, by the ledger."""
    return [m for m in site.ledger.machines() if m.instance.cloud == cloud]


def capacity_holds(site: Site) -> list[Exclusion]:
    """Holds of nodes for which no offer was left."""
    return [row for row in site.ledger.holds() if row.kind == CAPACITY]


def cloud_view(
    site: Site, cloud: str, view: Mapping[str, SlurmNode], seen: tuple[Instance, ...] | None
) -> CloudView:
    """The cloud's part of the world; ``view`` has all of Slurm's nodes."""
    machines = site.ledger.machines()
    mine = [m for m in machines if m.instance.cloud == cloud]
    at_home = _at_home(site, view, machines)
    unshown = _unshown(site, mine)
    names = dict.fromkeys(n for pool in site.pools_of_cloud(cloud) for n in pool.nodes)
    names |= dict.fromkeys(m.instance.node for m in mine)
    intents = tuple(
        Intent(generation=row.generation, nodes=row.nodes, created=row.created)
        for row in site.ledger.open_launches()
        if row.cloud == cloud
    )
    return CloudView(
        now=site.now(),
        nodes={n: view[n] for n in names if n in view},
        known=tuple(_known(site, m, at_home, unshown) for m in mine),
        intents=intents,
        seen=seen,
        held=frozenset(row.scope for row in capacity_holds(site)),
        elsewhere=_elsewhere(site, cloud, view, machines),
        at_others=at_anothers_address([m.instance for m in machines], view.values()),
        pings=is_pinged(site.slurm.slurmd_timeout()),
        slurm_user=site.config.slurm.user,
    )


def _known(
    site: Site, machine: Machine, at_home: Mapping[str, str], unshown: Collection[str]
) -> TrackedInstance:
    one = machine.instance
    moved = _home(site, one.node) not in (None, one.cloud)
    return TrackedInstance(
        id=one.id,
        node=one.node,
        generation=one.generation,
        decided=generation_time(one.generation) or one.launched,
        misses=machine.misses,
        suspending=machine.suspending is not None,
        address=one.address,
        max_age=_max_age(site, machine),
        shown=one.id not in unshown,
        registered=machine.registered is not None,
        double_of=at_home.get(one.node, "") if moved else "",
    )


def _home(site: Site, node: str) -> str | None:
    """The cloud that has the node by the configuration."""
    pool = site.pool_of.get(node)
    return None if pool is None else pool.cloud


def _at_home(
    site: Site, view: Mapping[str, SlurmNode], machines: Sequence[Machine]
) -> dict[str, str]:
    """By node, the machine of its own cloud at whose address it is."""
    return {
        m.instance.node: m.instance.id
        for m in machines
        if m.suspending is None
        and m.instance.address
        and m.instance.node in view
        and view[m.instance.node].address == m.instance.address
        and _home(site, m.instance.node) == m.instance.cloud
    }


def _elsewhere(
    site: Site, cloud: str, view: Mapping[str, SlurmNode], machines: Sequence[Machine]
) -> frozenset[str]:
    """Nodes that machines and open launches of other clouds serve, as after a pool was given to
    another cloud. A machine that has not come up in ResumeTimeout serves no node that is powering
    up; nor does what it was up on before (``stale_instances``): the cloud that could end it may be
    one that cannot be read, or that the configuration lacks.
    """
    booting = {n for n, node in view.items() if phase(node) is Phase.POWERING_UP}
    nodes: set[str] = set()
    for m in machines:
        node = m.instance.node
        if m.instance.cloud == cloud or m.suspending is not None:
            continue
        if node not in booting or boots_still(site, m):
            nodes.add(node)
    for row in site.ledger.open_launches():
        if row.cloud != cloud:
            nodes |= {n for n in row.nodes if n not in booting or row.created > oldest_boot(site)}
    return frozenset(nodes)


def _max_age(site: Site, machine: Machine) -> float | None:
    """Its pool's; of a machine whose pool is not known any more, the longest of its cloud."""
    if machine.pool in site.pools:
        return site.pools[machine.pool].max_age
    ages = [pool.max_age for pool in site.pools_of_cloud(machine.instance.cloud)]
    return max((age for age in ages if age is not None), default=None) if all(ages) else None


def _unshown(site: Site, machines: Sequence[Machine]) -> frozenset[str]:
    """Machines that no read of the cloud has had: a fresh machine may be missing for minutes."""
    missing = [m for m in machines if m.misses > 0]
    if not missing:
        return frozenset()
    ends = site.ledger.finished({m.instance.generation for m in missing})
    return frozenset(
        m.instance.id
        for m in missing
        if m.instance.generation in ends and m.last_seen <= ends[m.instance.generation]
    )
