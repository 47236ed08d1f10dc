"""One round of repair of one cloud: read three views, decide (policies.recovery), act in bulk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.errors import AuthError, ProviderError, SlurmElasticError, SlurmError
from slurm_elastic.ledger import Health, Hold, Machine
from slurm_elastic.ledger.rows import CAPACITY
from slurm_elastic.lifecycle import boots, holds
from slurm_elastic.lifecycle.launch import Outcome, assign_addresses, launch, spec_of
from slurm_elastic.lifecycle.past import of_the_past
from slurm_elastic.lifecycle.place import place
from slurm_elastic.lifecycle.refuse import give_back
from slurm_elastic.lifecycle.site import Site, generation_time
from slurm_elastic.lifecycle.suspend import end
from slurm_elastic.model import Action, Instance, Market
from slurm_elastic.model_slurm import NOWHERE, SlurmNode
from slurm_elastic.policies.phase import Phase, is_anothers_address, is_busy, is_drained, phase
from slurm_elastic.policies.recovery import (
    OUR_MARK,
    Intent,
    Known,
    Patience,
    View,
    capped,
    mature,
    recover,
)
from slurm_elastic.slurm.hostlist import compress

log = logging.getLogger(__name__)

CORRELATION = "reconcile"
_APART = frozenset({"confirm", "retry", "abandon"})
"""Repairs that are no bulk call: one that fails must not stand in the way of the others."""
Standing = Mapping[tuple[str, str], float]


class Round:
    """One cloud's repair rounds; keeps only since when each finding has stood, and whether it has
    read the cloud.
    """

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._standing: Standing = {}
        self._has_read = False

    def run(self) -> None:
        """One round. SlurmError passes through: without Slurm's view nothing is decided."""
        site = self._site
        view = _all_nodes(site)
        began = site.now()
        seen = self._read_cloud()
        if seen is not None:
            site.ledger.observe(self._cloud, seen, began, site.pool_of)
        world = _world(site, self._cloud, view, seen)
        timings = site.config.timings
        actions = recover(world, Patience(grace=timings.grace, misses=timings.misses))
        ready, self._standing = mature(actions, self._standing, site.monotonic(), timings.grace)
        ready, waiting = capped(ready, len(world.known))
        if waiting:
            log.error("deletions capped cloud=%s waiting=%d", self._cloud, waiting)
        self._act(ready, view, seen or ())
        if seen is not None and not self._has_read:
            site.ledger.read_whole(self._cloud, site.now())
            self._has_read = True
        self._addresses(view)
        boots.note_registered(site, self._cloud, view)
        holds.review(site, self._cloud, view)

    def _read_cloud(self) -> tuple[Instance, ...] | None:
        """The cloud's machines; None where it cannot be read, whatever it raises."""
        site, seen, problem, code = self._site, None, None, None
        try:
            seen = tuple(site.providers[self._cloud].instances())
        except ProviderError as error:
            problem, code = str(error), "auth" if isinstance(error, AuthError) else "unreadable"
            log.warning("cloud cannot be read cloud=%s error=%s", self._cloud, error)
        except Exception as error:
            problem, code = f"{self._cloud}: {type(error).__name__}: {error}", "unreadable"
            log.exception("cloud cannot be read cloud=%s", self._cloud)
        health = Health(name=self._cloud, checked=site.now(), error=problem, code=code)
        site.ledger.report_health(health)
        return seen

    def _act(
        self,
        actions: Sequence[Action],
        view: Mapping[str, SlurmNode],
        seen: Sequence[Instance],
    ) -> None:
        by_kind: dict[str, list[Action]] = {}
        for action in actions:
            by_kind.setdefault(action.kind, []).append(action)
        doers: Mapping[str, Callable[[Sequence[Action]], None]] = {
            "adopt": lambda some: _adopt(self._site, some, seen),
            "adopt-stopped": lambda some: _adopt(self._site, some, seen),
            "end": self._end,
            "confirm": lambda some: _confirm(self._site, some, seen),
            "retry": lambda some: _retry(self._site, some, view, seen),
            "abandon": self._abandon,
            "relaunch": self._relaunch,
            "launch": self._launch,
            "terminate": self._terminate,
            "terminate-orphan": self._terminate_orphans,
            "terminate-double": self._terminate,
            "terminate-stopped": self._terminate,
            "fail-node": lambda some: _fail_nodes(self._site, some),
            "fail-lost": lambda some: _fail_nodes(self._site, some, told=True),
            "give-back": lambda some: self._give_back(some, view),
            "power-down": lambda some: self._set(some, "POWER_DOWN"),
            "clear": lambda some: self._set(some, "POWER_DOWN", address=NOWHERE),
            "power-down-asap": lambda some: self._set(some, "POWER_DOWN_ASAP"),
            "restore": lambda some: self._set(some, "RESUME"),
        }
        for kind, some in by_kind.items():
            for action in some:
                log.info("repair %s subject=%s reason=%s", kind, action.subject, action.reason)
            for part in [[a] for a in some] if kind in _APART else [some]:
                self._try(kind, doers[kind], part)

    def _try(
        self, kind: str, do: Callable[[Sequence[Action]], None], part: Sequence[Action]
    ) -> None:
        try:
            do(part)
        except SlurmElasticError as error:
            log.warning("repair fails, tried again next round kind=%s error=%s", kind, error)
        except Exception:
            log.exception("repair fails in an unknown way, tried again kind=%s", kind)

    def _end(self, actions: Sequence[Action]) -> None:
        nodes = self._nodes_of(actions)
        for reason in {a.reason for a in actions}:
            ids = [a.subject for a in actions if a.reason == reason]
            self._site.ledger.ended(self._cloud, ids, reason, self._site.now())
            self._site.record(CORRELATION, "ended", [nodes[i] for i in ids], reason)

    def _abandon(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._site.ledger.failed(action.subject, action.reason, self._site.now())

    def _terminate(self, actions: Sequence[Action]) -> None:
        machines = {m.instance.id: m for m in _machines_of(self._site, self._cloud)}
        for reason in {a.reason for a in actions}:
            doomed = [machines[a.subject] for a in actions if a.reason == reason]
            end(self._site, self._cloud, doomed, reason, CORRELATION)

    def _terminate_orphans(self, actions: Sequence[Action]) -> None:
        """Slurm may have asked for the nodes again while this round waited for a cloud."""
        nodes = self._nodes_of(actions)
        view = _all_nodes(self._site)
        wanted = {n for n, node in view.items() if phase(node) is not Phase.POWERED_DOWN}
        self._terminate([a for a in actions if nodes[a.subject] not in wanted])

    def _relaunch(self, actions: Sequence[Action]) -> None:
        """End machines of the past, and give their nodes others, unless something serves them."""
        ids = {a.subject for a in actions}
        machines = [m for m in _machines_of(self._site, self._cloud) if m.instance.id in ids]
        past = of_the_past(self._site, machines)
        end(self._site, self._cloud, past, actions[0].reason, CORRELATION)
        left = {m.instance.node for m in past} - self._site.served()
        self._launch([replace(actions[0], subject=node) for node in sorted(left)])

    def _launch(self, actions: Sequence[Action]) -> None:
        site = self._site
        nodes = [a.subject for a in actions]
        jobs = _jobs_of(site, nodes)
        view = site.slurm.nodes(nodes)
        mine = [n for n in nodes if n in site.pool_of and _wants(view, n)]
        if mine:
            place(site, self._cloud, CORRELATION, mine, jobs)

    def _give_back(self, actions: Sequence[Action], view: Mapping[str, SlurmNode]) -> None:
        reasons = {row.node: row.reason for row in _full(self._site)}
        nodes = [a.subject for a in actions]
        why = reasons.get(nodes[0], actions[0].reason)
        give_back(self._site, nodes, view, why, CORRELATION)

    def _set(self, actions: Sequence[Action], state: str, address: str | None = None) -> None:
        """One scontrol for all; 'restore' of a node that is back already answers rc 0."""
        nodes = [a.subject for a in actions]
        self._site.slurm.update_nodes(nodes, state=state, address=address)
        self._site.record(CORRELATION, state.lower(), nodes, actions[0].reason)

    def _nodes_of(self, actions: Sequence[Action]) -> dict[str, str]:
        machines = {m.instance.id: m.instance.node for m in _machines_of(self._site, self._cloud)}
        return {a.subject: machines.get(a.subject, a.subject) for a in actions}

    def _addresses(self, view: Mapping[str, SlurmNode]) -> None:
        """Addresses that the provider learnt after the launch (where it is the one to tell)."""
        if self._site.config.cloud(self._cloud).node_address != "provider":
            return
        late = [
            m.instance
            for m in _machines_of(self._site, self._cloud)
            if m.instance.address
            and m.suspending is None
            and m.instance.node in view
            and view[m.instance.node].address != m.instance.address
            and phase(view[m.instance.node]) is Phase.POWERING_UP
        ]
        assign_addresses(self._site, late)


def _all_nodes(site: Site) -> Mapping[str, SlurmNode]:
    """Every node by Slurm. No cluster has none: that answer says nothing about any machine."""
    view = site.slurm.nodes()
    if not view:
        raise SlurmError(("sinfo",), 0, "Slurm lists no node at all")
    return view


def _machines_of(site: Site, cloud: str) -> list[Machine]:
    return [m for m in site.ledger.machines() if m.instance.cloud == cloud]


def _world(
    site: Site, cloud: str, view: Mapping[str, SlurmNode], seen: tuple[Instance, ...] | None
) -> View:
    pools = site.pools_of_cloud(cloud)
    known = tuple(
        Known(
            id=m.instance.id,
            node=m.instance.node,
            generation=m.instance.generation,
            decided=generation_time(m.instance.generation) or m.instance.launched,
            misses=m.misses,
            suspending=m.suspending is not None,
            address=m.instance.address,
            max_age=_max_age(site, m),
            shown=_was_shown(site, m),
            registered=m.registered is not None,
        )
        for m in _machines_of(site, cloud)
    )
    names = dict.fromkeys(n for pool in pools for n in pool.nodes)
    names |= dict.fromkeys(m.node for m in known)
    intents = tuple(
        Intent(generation=row.generation, nodes=row.nodes, created=row.created)
        for row in site.ledger.open_launches()
        if row.cloud == cloud
    )
    return View(
        now=site.now(),
        nodes={n: view[n] for n in names if n in view},
        known=known,
        intents=intents,
        seen=seen,
        held=frozenset(row.node for row in _full(site)),
    )


def _full(site: Site) -> list[Hold]:
    """Holds of nodes for which no offer was left."""
    return [row for row in site.ledger.holds() if row.kind == CAPACITY]


def _max_age(site: Site, machine: Machine) -> float | None:
    """Its pool's; of a machine whose pool is not known any more, the longest of its cloud."""
    if machine.pool in site.pools:
        return site.pools[machine.pool].max_age
    ages = [pool.max_age for pool in site.pools_of_cloud(machine.instance.cloud)]
    return max((age for age in ages if age is not None), default=None) if all(ages) else None


def _was_shown(site: Site, machine: Machine) -> bool:
    """Whether any read of the cloud has had it: a fresh machine may be missing for minutes."""
    if machine.misses == 0:
        return True
    row = site.ledger.launch(machine.instance.generation)
    return row is None or row.finished is None or machine.last_seen > row.finished


def _adopt(site: Site, actions: Sequence[Action], seen: Sequence[Instance]) -> None:
    wanted = {a.subject: a.reason for a in actions}
    found = [i for i in seen if i.id in wanted]
    clouds = site.providers.keys()
    worst = _worst_prices(site, found)
    for instance in found:
        pool = site.pool_of.get(instance.node)
        name = pool.name if pool else ""
        price = worst.get(instance.offer_key, 0.0)
        try:
            before = site.ledger.adopt(instance, name, site.now(), price, clouds)
        except SlurmElasticError as error:
            log.warning("not adopted id=%s error=%s", instance.id, error)
            continue
        why = wanted[instance.id] if before is None else _back(before, instance)
        site.record(CORRELATION, "adopted", (instance.node,), why)


def _back(before: Machine, instance: Instance) -> str:
    """Why a machine is adopted that the ledger knew."""
    cloud = before.instance.cloud
    if cloud != instance.cloud:
        return f"it is now of cloud {instance.cloud}; the configuration has no {cloud} any more"
    return f"the ledger had it ended, but its cloud has it, {instance.state}"


def _worst_prices(site: Site, instances: Sequence[Instance]) -> Mapping[str, float]:
    """By offer, what machines may come to, as the limits count them: a spot machine's own price
    is not the most it may cost, and with the ledger its offer was lost.
    """
    worst: dict[str, float] = {}
    spot = [i.node for i in instances if i.market is Market.SPOT and i.node in site.pool_of]
    for pool in {site.pool_of[node].name: site.pool_of[node] for node in spot}.values():
        try:
            offers = site.providers[pool.cloud].offers(pool)
        except Exception as error:  # noqa: BLE001 - whatever it is, the machines are there
            log.warning("adopted at their own price pool=%s error=%r", pool.name, error)
            continue
        worst.update({offer.key: offer.worst_price for offer in offers})
    return worst


def _confirm(site: Site, actions: Sequence[Action], seen: Sequence[Instance]) -> None:
    for action in actions:
        found = [i for i in seen if i.generation == action.subject]
        site.ledger.launched(action.subject, found, site.now())
        site.record(CORRELATION, "confirmed", [i.node for i in found], action.reason)


def _retry(
    site: Site,
    actions: Sequence[Action],
    view: Mapping[str, SlurmNode],
    seen: Sequence[Instance],
) -> None:
    """The same call under the same token; where it is refused now, the nodes are placed anew."""
    for action in actions:
        row = site.ledger.launch(action.subject)
        if row is None:
            continue
        if row.pool not in site.pools:  # the configuration has lost it: what is there is there
            _confirm(site, [action], seen)
            continue
        result = launch(site, spec_of(site, row), row.request, again=True)
        why = f"{action.reason}: {result.why}" if result.why else action.reason
        subjects = (*row.nodes, *(f"job:{j}" for j in row.jobs))
        site.record(CORRELATION, f"retry-{result.outcome.value}", subjects, why)
        if result.outcome is Outcome.IN_DOUBT:
            continue
        started = {i.node for i in result.instances}
        left = [n for n in row.nodes if n not in started and _wants(view, n)]
        if left:
            place(site, row.cloud, row.request, left, _jobs_of(site, left))


def _fail_nodes(site: Site, actions: Sequence[Action], *, told: bool = False) -> None:
    """The machine is gone: DOWN has Slurm requeue the jobs now, not at SlurmdTimeout. ``told``: by
    the cloud's word that it has ended.
    """
    view = site.slurm.nodes()
    machines = [machine.instance for machine in site.ledger.machines()]
    lost: dict[tuple[str, str | None], list[str]] = {}
    for name in (a.subject for a in actions):
        node = view.get(name)
        if node is None:
            continue
        admins = is_drained(node) and not node.reason.startswith(OUR_MARK)
        # One that an admin has drained stays drained: with no job on it there is nothing to do,
        # and else it goes down for the admin's reason, which we never clear.
        if phase(node) is Phase.UP and (is_busy(node) or not admins):
            why = node.reason if admins else f"{OUR_MARK}lost: the machine is gone"
            nowhere = told or is_anothers_address(node, machines, view.values())
            lost.setdefault((why, NOWHERE if nowhere else None), []).append(name)
    nodes = [name for names in lost.values() for name in names]
    if not nodes:
        return
    jobs = [j for j in site.slurm.jobs() if not set(nodes).isdisjoint(j.nodes)]
    for (why, address), names in lost.items():
        site.slurm.update_nodes(names, state="DOWN", reason=why, address=address)
    log.warning("machines lost nodes=%s jobs=%s", compress(nodes), [j.id for j in jobs])
    for job in jobs:
        site.restarts.expect(job, site.monotonic(), set(nodes))
    subjects = [*nodes, *(f"job:{j.id}" for j in jobs)]
    site.record(CORRELATION, "node-lost", subjects, actions[0].reason)


def _wants(view: Mapping[str, SlurmNode], node: str) -> bool:
    """Whether Slurm waits for the node to come up."""
    return node in view and phase(view[node]) is Phase.POWERING_UP


def _jobs_of(site: Site, nodes: Sequence[str]) -> Mapping[int, Sequence[str]]:
    """Jobs that hold or wait for any of these nodes, with all of theirs. None where Slurm does not
    say: then each node is served for itself.
    """
    try:
        queue = site.slurm.jobs()
    except SlurmError:
        return {}
    wanted = set(nodes)
    return {j.id: j.nodes for j in queue if not wanted.isdisjoint(j.nodes)}
