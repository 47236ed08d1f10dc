"""The decisions of slurm-elasticd's passes over a cloud: one snapshot in, actions out. Pure.

A pass reads all it needs once, as a ``ClusterSnapshot``. ``decide`` asks each rule that is due what
is to be done; ``controller.apply`` does it, and alone writes. The outcome is in the snapshot of
the next pass; the books of a cloud are decided in the same pass after its repairs were done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.directive import Directive
from slurm_elastic.model import (
    BREAKER,
    CAPACITY,
    OFF,
    OPERATOR,
    POLICY,
    Exclusion,
    Instance,
    InstanceState,
    NodeRequest,
    Offer,
    Pool,
)
from slurm_elastic.model_ledger import (
    OUT_OF_SERVICE,
    SUSPENDED,
    Drained,
    Launch,
    Machine,
    generation_time,
)
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.actions import (
    Action,
    Hold,
    NoteDrain,
    NoteRead,
    Register,
    Release,
    ReopenPool,
    SetAddress,
)
from slurm_elastic.policies.cloud_view import (
    CloudView,
    Intent,
    StoppedInstance,
    Thresholds,
    TrackedInstance,
)
from slurm_elastic.policies.exclusions import sickly
from slurm_elastic.policies.node_state import Phase, is_down, is_drained, phase
from slurm_elastic.policies.out_of_service import ill
from slurm_elastic.policies.ranking import DEFAULT_KEYS, Scope, serving
from slurm_elastic.policies.reconcile_rules import HOLD_MARK, DueRepairs, due_repairs, repairs
from slurm_elastic.policies.stopped import NO_RECIPES, Recipes, departing, unwanted


class Rule(Enum):
    """The rules, in the order in which they are asked."""

    REPAIR = "repair"
    READ = "read"
    ADDRESSES = "addresses"
    REGISTRATIONS = "registrations"
    DRAINS = "drains"
    HOLDS = "holds"


BOOKS = (Rule.READ, Rule.ADDRESSES, Rule.REGISTRATIONS, Rule.DRAINS, Rule.HOLDS)
"""The rules of a cloud's pass that go by the ledger as it is after the repairs."""


class Terms(Struct, frozen=True, kw_only=True):
    """The part of the configuration that a pass over one cloud goes by: ``clouds`` are those that
    are configured; ``pools`` and ``pool_of`` are of all of them. ``served`` is how long (s) a
    machine is in service until it proves that its pool works, ``first`` whether the cloud is the
    first one: what is done once a round is done with that.
    """

    cloud: str
    clouds: frozenset[str]
    pools: Mapping[str, Pool]
    pool_of: Mapping[str, Pool]
    resume_timeout: float
    patience: Thresholds
    served: float
    slurm_user: str
    tells_addresses: bool = False
    first: bool = False
    keys: Sequence[str] = DEFAULT_KEYS


class ClusterSnapshot(Struct, frozen=True, kw_only=True):
    """Slurm, the ledger and a cloud, read once for one pass, which began at ``now``.

    ``machines`` are the ledger's live ones, ``launches`` its open ones, of all clouds; ``recent``
    also those that ended in the last day, where a rule asks for them. ``listed`` is the cloud's
    list, None where it could not be read; ``read_whole`` whether an earlier one was taken in.
    ``answered``: by generation, when launches were answered whose machines are missing. ``offers``
    and ``scopes`` are there, by pool, where holds are to be looked at; ``drains`` are the ledger's
    that go on, ``stopped`` its stopped machines, of all clouds, and ``recipes`` those of the pass's
    cloud. ``writable``: whether the ledger can be written; one that cannot may lack what is in its
    file.
    """

    now: float
    terms: Terms
    nodes: Mapping[str, SlurmNode]
    machines: tuple[Machine, ...]
    launches: tuple[Launch, ...]
    exclusions: tuple[Exclusion, ...]
    listed: tuple[Instance, ...] | None = None
    read_whole: bool = True
    writable: bool = True
    slurmd_timeout: float = 0.0
    answered: Mapping[str, float] = field(default_factory=dict)
    recent: tuple[Machine, ...] = ()
    drains: tuple[Drained, ...] = ()
    offers: Mapping[str, Sequence[Offer]] = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    stopped: tuple[Machine, ...] = ()
    directives: tuple[Directive, ...] = ()
    recipes: Recipes = NO_RECIPES

    @property
    def mine(self) -> list[Machine]:
        """The live machines of the pass's cloud."""
        return [m for m in self.machines if m.instance.cloud == self.terms.cloud]

    @property
    def own_pools(self) -> list[Pool]:
        """The pools of the pass's cloud."""
        return [pool for pool in self.terms.pools.values() if pool.cloud == self.terms.cloud]


def decide_repairs(
    snapshot: ClusterSnapshot, standing: Mapping[tuple[str, str], float], clock: float
) -> DueRepairs:
    """The repairs of a round: ``standing`` is what the round before left, ``clock`` monotonic."""
    return due_repairs(cloud_view(snapshot), snapshot.terms.patience, standing, clock)


def decide(snapshot: ClusterSnapshot, due: Iterable[Rule]) -> tuple[Action, ...]:
    """All that is to be done now by the rules that are ``due``, in the order of doing it."""
    asked = frozenset(due)
    return tuple(
        action for rule, ask in _RULES.items() if rule in asked for action in ask(snapshot)
    )


# repair


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
        slurm_user=snapshot.terms.slurm_user,
        stopped=_stopped(snapshot),
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
            unwanted=ends.get(m.instance.id, ""),
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
    moved = _home(snapshot, one.node) not in (None, one.cloud)
    return TrackedInstance(
        id=one.id,
        node=one.node,
        generation=one.generation,
        decided=decided_at(one),
        misses=machine.misses,
        suspending=machine.suspending is not None,
        address=one.address,
        max_age=_max_age(snapshot, machine),
        shown=one.id not in unshown,
        registered=machine.registered is not None,
        double_of=at_home.get(one.node, "") if moved else "",
        stopping=machine.stopping is not None,
        born=machine.born,
    )


def decided_at(one: Instance) -> float:
    """When its launch was decided by the head's clock, else when its cloud says that it began."""
    return generation_time(one.generation) or one.launched


def _home(snapshot: ClusterSnapshot, node: str) -> str | None:
    """The cloud that has the node by the configuration."""
    pool = snapshot.terms.pool_of.get(node)
    return None if pool is None else pool.cloud


def _at_home(snapshot: ClusterSnapshot) -> dict[str, str]:
    """By node, the machine of its own cloud at whose address it is."""
    view = snapshot.nodes
    return {
        m.instance.node: m.instance.id
        for m in snapshot.machines
        if m.suspending is None
        and m.instance.address
        and m.instance.node in view
        and view[m.instance.node].address == m.instance.address
        and _home(snapshot, m.instance.node) == m.instance.cloud
    }


def _elsewhere(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Nodes that machines and open launches of other clouds serve, as after a pool was given to
    another cloud. A machine that has not come up in ResumeTimeout serves no node that is powering
    up; nor does what it was up on before (``stale_instances``): the cloud that could end it may be
    one that cannot be read, or that the configuration lacks.
    """
    cloud, oldest = snapshot.terms.cloud, snapshot.now - snapshot.terms.resume_timeout
    others = [m for m in snapshot.machines if m.instance.cloud != cloud and m.suspending is None]
    opened = [row for row in snapshot.launches if row.cloud != cloud]

    def boots(node: str) -> bool:
        return node in snapshot.nodes and phase(snapshot.nodes[node]) is Phase.POWERING_UP

    found = {
        m.instance.node
        for m in others
        if not boots(m.instance.node) or (m.registered is None and decided_at(m.instance) > oldest)
    }
    for row in opened:
        found.update(n for n in row.nodes if row.created > oldest or not boots(n))
    return frozenset(found)


def _max_age(snapshot: ClusterSnapshot, machine: Machine) -> float | None:
    """Its pool's; of a machine whose pool is not known any more, the longest of its cloud."""
    if machine.pool in snapshot.terms.pools:
        return snapshot.terms.pools[machine.pool].max_age
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


# the books


def _read(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Once all machines of a list are in the ledger, what they cost is in the limits."""
    if snapshot.listed is None or snapshot.read_whole:
        return
    counted = {m.instance.id for m in (*snapshot.mine, *snapshot.stopped)}
    opened = {row.generation for row in snapshot.launches}
    gone = (*OFF, InstanceState.TERMINATED)
    if all(i.id in counted or i.generation in opened or i.state in gone for i in snapshot.listed):
        yield NoteRead(cloud=snapshot.terms.cloud, reason="all that it lists is in the ledger")


def _addresses(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Addresses that the provider learnt after the launch (where it is the one to tell)."""
    for m in snapshot.mine if snapshot.terms.tells_addresses else ():
        node, address = snapshot.nodes.get(m.instance.node), m.instance.address
        if not address or m.suspending is not None or node is None or node.address == address:
            continue
        if phase(node) is Phase.POWERING_UP:
            yield SetAddress(node=node.name, address=address, reason=f"{m.instance.id} is there")


def _registrations(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Which booting machines' nodes are up; one that is proves that its pool works."""
    up: dict[str, list[str]] = {}
    for m in snapshot.mine:
        if m.boots and is_up(snapshot.nodes.get(m.instance.node), snapshot.terms.slurm_user):
            up.setdefault(m.pool, []).append(m.instance.node)
            yield Register(machine=m.instance.id, reason=f"node {m.instance.node} is up")
    broken = {one.scope: one for one in snapshot.exclusions if one.kind == BREAKER}
    for pool, nodes in up.items():
        if pool in broken and not sickly(broken[pool]):
            yield reopen(pool, nodes)
    for breaker in broken.values():
        if sickly(breaker) and (well := _sound(snapshot, breaker.scope)):
            yield reopen(breaker.scope, well)


def _drains(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Begin and end the spans in which nodes of the cloud's machines take no jobs."""
    now, nodes = snapshot.now, snapshot.nodes
    drained = {
        node
        for m in snapshot.mine
        if m.suspending is None and (node := m.instance.node) in nodes and is_drained(nodes[node])
    }
    opened = {
        row.node: row
        for row in snapshot.drains
        if _home(snapshot, row.node) in (None, snapshot.terms.cloud)
    }
    for node in sorted(drained - opened.keys()):
        yield NoteDrain(span=Drained(node=node, begin=now), reason="it takes no jobs")
    for node in opened.keys() - drained:
        span = replace(opened[node], end=now)
        yield NoteDrain(span=span, reason="it takes jobs, or has no machine")


def reopen(pool: str, nodes: Sequence[str]) -> ReopenPool:
    """The end of the cool-down and the pause of a pool, as these nodes of it came up."""
    return ReopenPool(
        pool=pool,
        nodes=tuple(nodes),
        reason=f"a machine of pool {pool} has registered: it works again",
    )


def is_up(node: SlurmNode | None, slurm_user: str) -> bool:
    """Whether it has registered, and Slurm takes it as it is."""
    if node is None or phase(node) is not Phase.UP or is_down(node):
        return False
    return ill(node, slurm_user) is None


def _sound(snapshot: ClusterSnapshot, pool: str) -> list[str]:
    """The nodes that show that a pool whose machines Slurm took out of service works again: one
    that registered since has been in service for a while, or was until Slurm powered it down. A
    Prolog fails at the first job only.
    """
    terms = snapshot.terms
    mine = [m for m in snapshot.recent if m.pool == pool and m.instance.cloud == terms.cloud]
    failed = [decided_at(m.instance) for m in mine if (m.why or "").startswith(OUT_OF_SERVICE)]
    since = max(failed, default=0.0)
    return [
        m.instance.node
        for m in mine
        if decided_at(m.instance) > since
        and _service(m, snapshot.now) >= terms.served
        and (_left_in_peace(m) or is_up(snapshot.nodes.get(m.instance.node), terms.slurm_user))
    ]


def _service(machine: Machine, now: float) -> float:
    """For how many seconds it has been in service, or was."""
    ends = [at for at in (machine.suspending, machine.ended, now) if at is not None]
    return min(ends) - machine.registered if machine.registered is not None else 0.0


def _left_in_peace(machine: Machine) -> bool:
    """Whether Slurm had it in service to the end."""
    return machine.suspending is not None and machine.why == SUSPENDED


# holds


def due_holds(snapshot: ClusterSnapshot) -> dict[str, list[Exclusion]]:
    """By pool of the cloud, the holds for want of an offer, of pools that are to be looked at."""
    found: dict[str, list[Exclusion]] = {}
    for one in snapshot.exclusions:
        pool = snapshot.terms.pool_of.get(one.scope)
        if one.kind == CAPACITY and pool is not None and pool.cloud == snapshot.terms.cloud:
            found.setdefault(pool.name, []).append(one)
    return {
        name: some for name, some in found.items() if min(s.until for s in some) <= snapshot.now
    }


def _holds(snapshot: ClusterSnapshot) -> Iterable[Action]:
    """Let go what can be served again, keep longer what cannot, forget what nobody else would."""
    for name, some in due_holds(snapshot).items():
        yield from _pool_holds(snapshot, snapshot.terms.pools[name], some)
    held = (POLICY, CAPACITY, OPERATOR)
    known = {one.scope for one in snapshot.exclusions if one.kind in held}
    lost = "its hold is not in the ledger"
    for pool in snapshot.own_pools if snapshot.writable else ():
        for n in pool.nodes:
            if n not in known and n in snapshot.nodes and is_marked(snapshot.nodes[n]):
                yield Release(node=n, hold=CAPACITY, reason=lost)
    strange = "no pool of the configuration has it any more"
    for one in snapshot.exclusions if snapshot.terms.first else ():
        if one.kind in held and one.scope not in snapshot.terms.pool_of:
            yield Release(node=one.scope, hold=one.kind, reason=strange)


def is_marked(node: SlurmNode) -> bool:
    """Whether it is drained by a hold of ours."""
    return node.reason.startswith(HOLD_MARK) and is_drained(node)


def _pool_holds(
    snapshot: ClusterSnapshot, pool: Pool, some: Sequence[Exclusion]
) -> Iterable[Action]:
    """Release as many nodes as offers have room for; the others are looked at again later."""
    nodes = tuple(one.scope for one in some)
    request = NodeRequest(id="holds", pool=pool, nodes=nodes)
    launches = serving(
        request, snapshot.offers.get(pool.name, ()), snapshot.scopes[pool.name], snapshot.now,
        snapshot.terms.keys,
    )  # fmt: skip
    room = sum(launch.room for launch in launches)
    machines = {m.instance.node for m in snapshot.mine if m.suspending is None}
    free = [n for n in nodes if _may_start(snapshot.nodes.get(n), machines)][:room]
    for node in free:
        why = f"{launches[0].offer.key} can be had again"
        yield Release(node=node, hold=CAPACITY, reason=why)
    kept = [one for one in some if one.scope not in free]
    for one in kept:
        yield Hold(node=one.scope, pool=pool.name, reason=kept[0].cause)


def _may_start(node: SlurmNode | None, machines: set[str]) -> bool:
    """Whether the node's hold may end now. A node on its way down keeps its row: to lift it now
    would race with its suspend. So does a node that is off but has a machine: that one booted
    before Slurm would ask for the node, and never registers; repair ends it first.
    """
    if node is None:
        return True
    where = phase(node)
    off_with_machine = where is Phase.POWERED_DOWN and node.name in machines
    return where is not Phase.POWERING_DOWN and not off_with_machine


_RULES: Mapping[Rule, Callable[[ClusterSnapshot], Iterable[Action]]] = {
    Rule.REPAIR: _repairs,
    Rule.READ: _read,
    Rule.ADDRESSES: _addresses,
    Rule.REGISTRATIONS: _registrations,
    Rule.DRAINS: _drains,
    Rule.HOLDS: _holds,
}
