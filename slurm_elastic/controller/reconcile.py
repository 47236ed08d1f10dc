"""One round of repair of one cloud: read three views, decide
(policies.reconcile_rules), act in bulk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from slurm_elastic.audit_trail import list_subject
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.controller import boots, holds
from slurm_elastic.controller.context import Site, generation_time
from slurm_elastic.controller.holds import power_down_and_requeue
from slurm_elastic.controller.launch import Outcome, assign_addresses, launch, spec_of
from slurm_elastic.controller.node_health import recycle
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.snapshot import all_nodes, capacity_holds, cloud_view, machines_of
from slurm_elastic.controller.suspend import (
    instances_of_other_clouds,
    nodes_with_capacity,
    stale_instances,
    terminate,
)
from slurm_elastic.controller.usage_record import record_drains
from slurm_elastic.errors import AuthError, ProviderError, SlurmElasticError, SlurmError
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import Health, Machine
from slurm_elastic.model import DOUBT, Exclusion, Instance, InstanceState
from slurm_elastic.model_slurm import NOWHERE, SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.actions import (
    Action,
    Adopt,
    AdoptStopped,
    DoubtList,
    NoteEnd,
    NoteMissing,
)
from slurm_elastic.policies.leaked_instances import CODE, stray, unanswered, unending
from slurm_elastic.policies.node_state import Phase, is_anothers_address, is_busy, is_drained, phase
from slurm_elastic.policies.reconcile_rules import (
    OUR_MARK,
    CloudView,
    InventoryReport,
    Thresholds,
    assess_inventory,
    debounce,
    is_lasting,
    limit_disruption,
    repairs,
)
from slurm_elastic.policies.sound import sound
from slurm_elastic.protocols import Slurm
from slurm_elastic.providers.base.tags import price_of
from slurm_elastic.slurm import node_updates

log = logging.getLogger(__name__)


Standing = Mapping[tuple[str, str], float]
Do = Callable[[Any], None]
"""Does all actions of one kind; ``_doers`` pairs it with their class."""


class Round:
    """One cloud's repair rounds; keeps only since when each finding has stood."""

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._standing: Standing = {}
        timings = site.config.timings
        self._patience = Thresholds(grace=timings.grace, misses=timings.misses)
        self._doubt: str | None = None
        self.trouble = ""
        """Why the cloud could not be read the last time; empty where it could, or was not yet."""
        self._believed = Believed(site, cloud)
        self.is_over = False
        """Whether one round is over, however it went."""

    def run(self) -> None:
        """One round. SlurmError passes through: without Slurm's view nothing is decided."""
        try:
            self._run()
        finally:
            self.is_over = True

    def _run(self) -> None:
        site = self._site
        view = all_nodes(site)
        began = site.now()
        seen = self._read_cloud()
        if seen is not None:
            site.ledger.observe(self._cloud, seen, began, site.pool_of)
        part = cloud_view(site, self._cloud, view, seen)
        timings = site.config.timings
        decided = repairs(part, self._patience)
        ready, self._standing = debounce(decided, self._standing, site.monotonic(), timings.grace)
        ready, waiting = limit_disruption(ready, len(part.known))
        if waiting:
            log.error("deletions capped cloud=%s waiting=%d", self._cloud, waiting)
        if seen is not None:
            self._report([a for a in ready if isinstance(a, DoubtList)], part)
        self._act([a for a in ready if not isinstance(a, DoubtList)], part)
        known = site.ledger.was_read_whole(self._cloud)
        if seen is not None and not known and not self._left(seen):
            site.ledger.read_whole(self._cloud, site.now())
        self._addresses(view)
        boots.record_registrations(site, self._cloud, view)
        boots.note_sound(site, self._cloud, view)
        record_drains(site, self._cloud, view)
        holds.review(site, self._cloud, view)

    @property
    def unusable(self) -> Mapping[str, str]:
        """Machines of the last list that no ledger can keep and nothing can end, with why."""
        return self._believed.unusable

    def _left(self, seen: Sequence[Instance]) -> list[str]:
        """Machines of the list that the ledger still lacks: what they cost is in no limit."""
        counted = {m.instance.id for m in machines_of(self._site, self._cloud)}
        opened = {row.generation for row in self._site.ledger.open_launches()}
        return [
            i.id
            for i in seen
            if i.id not in counted
            and i.generation not in opened
            and i.state not in (InstanceState.STOPPING, InstanceState.TERMINATED)
        ]

    def _read_cloud(self) -> tuple[Instance, ...] | None:
        """The cloud's machines; None where it cannot be read, whatever it raises."""
        site = self._site
        try:
            seen = self._believed.take(site.providers[self._cloud].instances())
        except ProviderError as error:
            problem, code = str(error), "auth" if isinstance(error, AuthError) else "unreadable"
            log.warning("cloud cannot be read cloud=%s error=%s", self._cloud, error)
        except Exception as error:
            problem, code = f"{self._cloud}: {type(error).__name__}: {error}", "unreadable"
            log.exception("cloud cannot be read cloud=%s", self._cloud)
        else:
            self.trouble = ""
            return seen
        self.trouble = problem
        health = Health(name=self._cloud, checked=site.now(), error=problem, code=code)
        site.ledger.report_health(health)
        return None

    def _report(self, doubts: Sequence[DoubtList], part: CloudView) -> None:
        """The cloud was read; what its list cannot be right about is for a person to look at."""
        site, cloud = self._site, self._cloud
        lasting = None if doubts else lasting_doubt(site, cloud, part.seen or ())
        problem = doubts[0].reason if doubts else lasting
        doubt = f"{cloud}: {problem}" if problem else None
        if doubts and doubt != self._doubt:
            log.error("list cannot be true, nothing ends by it %s", doubt)
        self._doubt = doubt
        if doubts:
            stood = site.monotonic() - self._standing[doubts[0].kind, doubts[0].subject]
            if is_lasting(stood, site.slurm.slurmd_timeout()):
                keep_doubt(site, cloud, assess_inventory(part, self._patience))
        code = "unlisted" if doubt else None
        site.ledger.report_health(Health(name=cloud, checked=site.now(), error=doubt, code=code))

    def _act(self, decided: Sequence[Action], part: CloudView) -> None:
        by_kind: dict[type[Action], list[Action]] = {}
        for action in decided:
            by_kind.setdefault(type(action), []).append(action)
            log.info("repair %s subject=%s reason=%s", action.kind, action.subject, action.reason)
        doers = self._doers(part.seen or ())
        for kind, some in by_kind.items():
            # One of those that are no bulk call must not stand in the way of the others.
            for together in [some] if kind.bulk else [[action] for action in some]:
                self._try(doers[kind], together, part)

    def _doers(self, seen: Sequence[Instance]) -> Mapping[type[Action], Do]:
        """The function that carries out each kind of action."""
        site, cloud = self._site, self._cloud
        return {
            actions.Adopt: lambda some: adopt(site, some, seen, self._believed.doubts),
            actions.AdoptStopped: lambda some: adopt(site, some, seen, self._believed.doubts),
            actions.NoteEnd: self._note_end,
            actions.NoteMissing: self._note_end,
            actions.Confirm: lambda some: _confirm(site, some, seen),
            actions.Retry: lambda some: _retry(site, some, seen),
            actions.Abandon: self._abandon,
            actions.Relaunch: self._relaunch,
            actions.Launch: lambda some: self._launch([a.node for a in some]),
            actions.Terminate: self._terminate,
            actions.TerminateOrphan: self._terminate,
            actions.TerminateDouble: self._terminate,
            actions.TerminateStopped: self._terminate,
            actions.FailNode: lambda some: _fail_nodes(site, some),
            actions.FailLost: lambda some: _fail_nodes(site, some, told=True),
            actions.GiveBack: self._give_back,
            actions.Recycle: lambda some: recycle(site, cloud, some, CORRELATION),
            actions.PowerDown: lambda some: self._change(some, node_updates.power_down),
            actions.Clear: lambda some: self._change(some, node_updates.power_down_from_nowhere),
            actions.PowerDownWhenIdle: lambda some: self._change(
                some, node_updates.power_down_when_idle
            ),
            actions.Restore: lambda some: self._change(some, node_updates.return_to_service),
        }

    def _try(self, do: Do, some: Sequence[Action], part: CloudView) -> None:
        kind = some[0].kind
        try:
            still = self._still(some, part) if some[0].by_node else some
            if still:
                do(still)
        except SlurmElasticError as error:
            log.warning("repair fails, tried again next round kind=%s error=%s", kind, error)
        except Exception:
            log.exception("repair fails in an unknown way, tried again kind=%s", kind)

    def _still(self, some: Sequence[Action], part: CloudView) -> Sequence[Action]:
        """The actions that still stand by Slurm's nodes as they are now: since the round read them
        it has waited for a cloud, and an admin may have drained one, or Slurm asked for it.
        """
        now = all_nodes(self._site)
        nodes = {n: now[n] for n in part.nodes if n in now}
        found = set(repairs(replace(part, nodes=nodes), self._patience))
        dropped = [a.subject for a in some if a not in found]
        if dropped:
            log.info("repair dropped, Slurm has changed meanwhile subjects=%s", dropped)
        return [a for a in some if a in found]

    def _note_end(self, some: Sequence[NoteEnd | NoteMissing]) -> None:
        nodes = self._nodes_of(some)
        for reason in {a.reason for a in some}:
            ids = [a.machine for a in some if a.reason == reason]
            self._site.ledger.ended(self._cloud, ids, reason, self._site.now())
            self._site.record(CORRELATION, "ended", [nodes[i] for i in ids], reason)

    def _abandon(self, some: Sequence[actions.Abandon]) -> None:
        for action in some:
            self._site.ledger.failed(action.generation, action.reason, self._site.now())

    def _terminate(self, some: Sequence[actions.OnMachine]) -> None:
        machines = {m.instance.id: m for m in machines_of(self._site, self._cloud)}
        for reason in {a.reason for a in some}:
            doomed = [machines[a.machine] for a in some if a.reason == reason]
            terminate(self._site, self._cloud, doomed, reason, CORRELATION)

    def _relaunch(self, some: Sequence[actions.Relaunch]) -> None:
        """End machines of the past, and give their nodes others, unless something serves them."""
        ids = {a.machine for a in some}
        machines = [m for m in machines_of(self._site, self._cloud) if m.instance.id in ids]
        past = stale_instances(self._site, machines)
        terminate(self._site, self._cloud, past, some[0].reason, CORRELATION)
        nodes = {m.instance.node for m in past}
        left = nodes - nodes_with_capacity(self._site, self._cloud, nodes)
        self._launch(sorted(left))

    def _launch(self, nodes: Sequence[str]) -> None:
        site = self._site
        pools = {node: site.pool_of.get(node) for node in nodes}
        # A machine may be left of a pool that is another cloud's by now: that one serves the node.
        mine = [n for n, pool in pools.items() if pool is not None and pool.cloud == self._cloud]
        # Nor is one bought where jobs run on that, as slurmctld may forget that its node was up.
        others = instances_of_other_clouds(site, self._cloud, mine)
        past = stale_instances(site, others)
        kept = {m.instance.node for m in others if m not in past}
        mine = [n for n in mine if n not in kept]
        jobs = _jobs_of(site, mine) if mine else {}
        view = site.slurm.nodes(mine) if mine else {}
        wanted = [n for n in mine if _wants(view, n)]
        if wanted:
            provision(site, self._cloud, CORRELATION, wanted, jobs)

    def _give_back(self, some: Sequence[actions.GiveBack]) -> None:
        reasons = {row.scope: row.cause for row in capacity_holds(self._site)}
        nodes = [a.node for a in some]
        why = reasons.get(nodes[0], some[0].reason)
        power_down_and_requeue(self._site, nodes, self._site.slurm.nodes(nodes), why, CORRELATION)

    def _change(
        self, some: Sequence[actions.OnNode], change: Callable[[Slurm, Sequence[str]], None]
    ) -> None:
        nodes = [a.node for a in some]
        change(self._site.slurm, nodes)
        self._site.record(CORRELATION, some[0].kind, nodes, some[0].reason)

    def _nodes_of(self, some: Sequence[actions.OnMachine]) -> dict[str, str]:
        machines = {m.instance.id: m.instance.node for m in machines_of(self._site, self._cloud)}
        return {a.machine: machines.get(a.machine, a.machine) for a in some}

    def _addresses(self, view: Mapping[str, SlurmNode]) -> None:
        """Addresses that the provider learnt after the launch (where it is the one to tell)."""
        if self._site.config.cloud(self._cloud).node_address != "provider":
            return
        late = [
            m.instance
            for m in machines_of(self._site, self._cloud)
            if m.instance.address
            and m.suspending is None
            and m.instance.node in view
            and view[m.instance.node].address != m.instance.address
            and phase(view[m.instance.node]) is Phase.POWERING_UP
        ]
        assign_addresses(self._site, late)


def _confirm(
    site: Site, some: Sequence[actions.Confirm | actions.Retry], seen: Sequence[Instance]
) -> None:
    for action in some:
        found = [i for i in seen if i.generation == action.generation]
        site.ledger.launched(action.generation, found, site.now())
        site.record(CORRELATION, "confirmed", [i.node for i in found], action.reason)


def _retry(site: Site, some: Sequence[actions.Retry], seen: Sequence[Instance]) -> None:
    """The same call under the same token; where it is refused now, the nodes are placed anew."""
    for action in some:
        row = site.ledger.launch(action.generation)
        if row is None or site.ledger.end_only:  # the call might buy what it did not buy before
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
        left = [n for n in row.nodes if n not in started]
        view = site.slurm.nodes(left) if left else {}
        left = [n for n in left if _wants(view, n)]
        if left:
            provision(site, row.cloud, row.request, left, _jobs_of(site, left))


def _fail_nodes(site: Site, some: Sequence[actions.OnNode], *, told: bool = False) -> None:
    """The machine is gone: DOWN has Slurm requeue the jobs now, not at SlurmdTimeout. ``told``: by
    the cloud's word that it has ended.
    """
    view = site.slurm.nodes()
    machines = [machine.instance for machine in site.ledger.machines()]
    lost: dict[tuple[str, str | None], list[str]] = {}
    for name in (a.node for a in some):
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
        node_updates.set_down(site.slurm, names, why, address=address)
    log.warning("machines lost nodes=%s jobs=%s", compress(nodes), [j.id for j in jobs])
    for job in jobs:
        site.requeues.expect(job, site.monotonic(), set(nodes))
    subjects = [*nodes, *(f"job:{j.id}" for j in jobs)]
    site.record(CORRELATION, "node-lost", subjects, some[0].reason)


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


# Machines of ours that the ledger lacks, taken in one by one: what is wrong with one must not hide
# the next, and what they may cost counts from then on.


CORRELATION = "reconcile"


def adopt(
    site: Site,
    actions: Sequence[Adopt | AdoptStopped],
    seen: Sequence[Instance],
    doubts: Mapping[str, str],
) -> None:
    """The machines of ``seen`` that ``actions`` name; ``doubts`` says by id what was not believed
    of it. A machine that cannot be taken in stays for the next round.
    """
    wanted = {a.machine: a.reason for a in actions}
    found = [i for i in seen if i.id in wanted]
    worst = _worst_prices(site, found)
    for instance in found:
        try:
            before = _take_in(site, instance, worst.get(instance.offer_key, 0.0))
        except SlurmElasticError as error:
            log.warning("not adopted id=%s error=%s", instance.id, error)
            continue
        except Exception:
            log.exception("not adopted, tried again id=%s", instance.id)
            continue
        why = wanted[instance.id] if before is None else _back(before, instance)
        if instance.id in doubts:
            why += f"; its tags are not believed: {doubts[instance.id]}"
        site.record(CORRELATION, "adopted", (instance.node,), why)


def _take_in(site: Site, instance: Instance, worst: float) -> Machine | None:
    pool = site.pool_of.get(instance.node)
    name = pool.name if pool else ""
    # A tag that says too little must not make room for more: the configuration's price counts, too.
    worst = max(worst, _typed_price(site, instance), instance.price)
    return site.ledger.adopt(instance, name, site.now(), worst, site.providers.keys())


def _typed_price(site: Site, instance: Instance) -> float:
    """The price of its type by the configuration ($/h); 0 of one that it lacks."""
    settings = site.config.cloud(instance.cloud)
    if settings.flat_price is not None:
        return settings.flat_price
    known = settings.shapes.get(instance.instance_type)
    return known.price if known else 0.0


def _back(before: Machine, instance: Instance) -> str:
    """Why a machine is adopted that the ledger knew."""
    cloud = before.instance.cloud
    if cloud != instance.cloud:
        return f"it is now of cloud {instance.cloud}; the configuration has no {cloud} any more"
    return f"the ledger had it ended, but its cloud has it, {instance.state}"


def _worst_prices(site: Site, instances: Sequence[Instance]) -> Mapping[str, float]:
    """By offer, what machines may come to, as the limits count them: a spot machine's own price
    is not the most it may cost, a typed one may be too low, and with the ledger its offer was lost.
    """
    worst: dict[str, float] = {}
    nodes = [i.node for i in instances if i.node in site.pool_of]
    for pool in {site.pool_of[node].name: site.pool_of[node] for node in nodes}.values():
        try:
            offers = site.providers[pool.cloud].offers(pool)
        except Exception as error:  # noqa: BLE001 - whatever it is, the machines are there
            log.warning("adopted at their own price pool=%s error=%r", pool.name, error)
            continue
        worst.update({offer.key: offer.worst_price for offer in offers})
    return worst


# The door that a cloud's machines come in by: what makes no sense stays outside, and is told once
# (policies.sound).


def listed_price(cloud: CloudSettings, instance_type: str) -> float:
    """The price of a machine by the configuration ($/h)."""
    if cloud.flat_price is not None:
        return cloud.flat_price
    return price_of(None, instance_type, cloud.shapes)


class Believed:
    """One cloud's. ``unusable`` are the machines of its last list that cannot be kept, with why."""

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._told: Mapping[str, str] = {}
        self.unusable: Mapping[str, str] = {}
        self.doubts: Mapping[str, str] = {}

    def take(self, listed: Iterable[Instance]) -> tuple[Instance, ...]:
        """The machines of a complete list, as they may be kept."""
        settings = self._site.config.cloud(self._cloud)
        found = sound(
            listed, lambda one: listed_price(settings, one.instance_type), self._site.now()
        )
        for id_, why in found.doubts.items():
            if self._told.get(id_) != why:
                log.warning(
                    "tags not believed, put them right or end the machine cloud=%s id=%s reason=%s",
                    self._cloud, id_, why,
                )  # fmt: skip
        self._told = self.doubts = found.doubts
        self.unusable = found.unusable
        return found.machines


# A list that was wrong for long stays told of until it shows some of what it lacked, or a person
# clears it.
#
# That a doubt goes away proves nothing: one gap in slurmctld's pings, and rows end by a list that
# is still wrong; what runs then is paid and in no row. So it is kept, as an exclusion.


SAMPLE = 100
"""Machines, and nodes, that are remembered of what a list lacks."""
NODE = "node:"
"""Before the name of a node among them."""


def keep_doubt(site: Site, cloud: str, listing: InventoryReport) -> None:
    """The doubt about this list has stood for long: it lasts from now on."""
    if _doubt_of(site, cloud) is not None:
        return
    lacked, nodes = sorted(listing.lacked)[:SAMPLE], sorted(listing.unserved)[:SAMPLE]
    about = (*lacked, *(f"{NODE}{name}" for name in nodes))
    site.ledger.exclude(
        Exclusion(kind=DOUBT, scope=cloud, until=inf, cause=listing.doubt, since=site.now(),
                  about=about)
    )  # fmt: skip
    detail: dict[str, object] = {"machines": lacked, "nodes": nodes}
    site.record(CORRELATION, "list-doubted", (list_subject(cloud),), listing.doubt, detail)


def _doubt_of(site: Site, cloud: str) -> Exclusion | None:
    """The doubt about a cloud's list that neither the list nor a person has ended."""
    rows = site.ledger.exclusions()
    return next((one for one in rows if (one.kind, one.scope) == (DOUBT, cloud)), None)


def lasting_doubt(site: Site, cloud: str, seen: Sequence[Instance]) -> str | None:
    """The doubt that still stands though nothing speaks against this list any more."""
    doubt = _doubt_of(site, cloud)
    if doubt is None:
        return None
    back = _shown_again(doubt, seen)
    if back is None:
        return f"{doubt.cause} It has shown none of them since; `clear {cloud}` if they are gone"
    log.info("list is right again cloud=%s id=%s", cloud, back)
    site.ledger.readmit(DOUBT, cloud)
    why = f"the list has {back} again"
    site.record(CORRELATION, "list-right-again", (list_subject(cloud),), why)
    return None


def _shown_again(doubt: Exclusion, seen: Sequence[Instance]) -> str | None:
    lacked = frozenset(doubt.about)
    for one in seen:
        was_there = generation_time(one.generation) < doubt.since
        if one.id in lacked or (f"{NODE}{one.node}" in lacked and was_there):
            return one.id
    return None


# Telling of machines that are paid and serve nobody, in the log and in ``status``.


NAME = "paid machines"
"""The name under which the health of all machines is kept; no cloud's name, which has no space."""
TOLD = 5
"""So many are told one by one."""


class LeakedInstances:
    """Machines of a cloud that has left the configuration are never deleted, the others not at
    once, some clouds do not end what they are asked to, and what a cloud lists under an id that is
    none (``unusable``: by cloud and such an id, why) cannot be asked for; so somebody must be told.
    """

    def __init__(
        self, site: Site, unusable: Callable[[], Mapping[tuple[str, str], str]] = dict
    ) -> None:
        self._site = site
        self._unusable = unusable
        self._told: Mapping[tuple[str, str], str] | None = None

    def report(self) -> None:
        """Tell what has changed since the last time."""
        found = {**_found(self._site), **self._unusable()}
        if found == self._told:
            return
        for (cloud, id_), why in found.items():
            if (cloud, id_) not in (self._told or {}):
                log.error(
                    "machine is paid but not served cloud=%s id=%s reason=%s", cloud, id_, why
                )
        self._told = found
        self._site.ledger.report_health(_health_of(found, self._site.now()))


def _found(site: Site) -> dict[tuple[str, str], str]:
    """By cloud and machine (or generation of a launch that may have made some), why."""
    now, clouds = site.now(), site.providers
    machines = {
        (m.instance.cloud, m.instance.id): why
        for m in site.ledger.machines()
        if (why := stray(m.instance, clouds, site.pool_of) or unending(m.suspending, now))
    }
    launches = {
        (row.cloud, row.generation): why
        for row in site.ledger.open_launches()
        if (why := unanswered(row.cloud, len(row.nodes), clouds))
    }
    return machines | launches


def _health_of(strays: Mapping[tuple[str, str], str], now: float) -> Health:
    """The sentence of ``status`` about machines that are paid and serve nobody."""
    if not strays:
        return Health(name=NAME, checked=now)
    some = "; ".join(f"{id_}: {why}" for (_, id_), why in list(strays.items())[:TOLD])
    more = f"; and {len(strays) - TOLD} more" if len(strays) > TOLD else ""
    error = f"{len(strays)} serve nobody: {some}{more}"
    return Health(name=NAME, checked=now, error=error, code=CODE)
