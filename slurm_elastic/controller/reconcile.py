"""One round of repair of one cloud: read three views, decide
(policies.reconcile_rules), act in bulk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.controller import boot_breaker, holds, inventory_check
from slurm_elastic.controller.adoption import CORRELATION, adopt
from slurm_elastic.controller.believed import Believed
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launch import Outcome, assign_addresses, launch, spec_of
from slurm_elastic.controller.node_health import recycle
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.reject import power_down_and_requeue
from slurm_elastic.controller.snapshot import all_nodes, capacity_holds, cloud_view, machines_of
from slurm_elastic.controller.stale_instances import (
    instances_of_other_clouds,
    nodes_with_capacity,
    stale_instances,
)
from slurm_elastic.controller.suspend import terminate
from slurm_elastic.errors import AuthError, ProviderError, SlurmElasticError, SlurmError
from slurm_elastic.hostlist import compress
from slurm_elastic.ledger import Health
from slurm_elastic.model import Instance, InstanceState
from slurm_elastic.model_slurm import NOWHERE, SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.actions import Action, DoubtList, NoteEnd, NoteMissing
from slurm_elastic.policies.inventory_check import assess_inventory, is_lasting
from slurm_elastic.policies.power_state import (
    Phase,
    is_anothers_address,
    is_busy,
    is_drained,
    phase,
)
from slurm_elastic.policies.reconcile_rules import (
    OUR_MARK,
    debounce,
    limit_disruption,
    repairs,
)
from slurm_elastic.policies.reconcile_view import CloudView, Thresholds
from slurm_elastic.protocols import Slurm
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
        boot_breaker.record_registrations(site, self._cloud, view)
        boot_breaker.note_sound(site, self._cloud, view)
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
        lasting = None if doubts else inventory_check.lasting_doubt(site, cloud, part.seen or ())
        problem = doubts[0].reason if doubts else lasting
        doubt = f"{cloud}: {problem}" if problem else None
        if doubts and doubt != self._doubt:
            log.error("list cannot be true, nothing ends by it %s", doubt)
        self._doubt = doubt
        if doubts:
            stood = site.monotonic() - self._standing[doubts[0].kind, doubts[0].subject]
            if is_lasting(stood, site.slurm.slurmd_timeout()):
                inventory_check.keep_doubt(site, cloud, assess_inventory(part, self._patience))
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
        reasons = {row.node: row.reason for row in capacity_holds(self._site)}
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
