"""Carries out what was decided for a cloud: in Slurm, in the cloud and in the ledger, where an
intent stands before each call.

Any action may be done twice: whatever it came to, the next pass sees and decides anew.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import NotLearntError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller import holds
from slurm_elastic.controller.adoption import adopt
from slurm_elastic.controller.boot_timeouts import blamed, expect_requeued
from slurm_elastic.controller.boots import record_boot_failures, register, reopen_pools
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.controller.launch import (
    LaunchOutcome,
    assign_addresses,
    hide_names,
    launch,
    spec_of,
)
from slurm_elastic.controller.lost_nodes import by_cause, disclaim, fail_nodes
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.recycling import recycle
from slurm_elastic.controller.snapshot import CORRELATION, all_nodes, capacity_holds, machines_of
from slurm_elastic.controller.stale_machines import stale_instances
from slurm_elastic.controller.steps import Jobs
from slurm_elastic.features import starting, stopping
from slurm_elastic.model.causes.machine_ends import CannotBeStopped, PoweredUpAgain
from slurm_elastic.model.causes.repairs import AlreadyServed
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.memory import generation_order
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.actions import Action, NoteEnd, NoteMissing
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    phase,
)
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, Rule
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.ledger import Launch, Machine

log = logging.getLogger(__name__)

DECIDED_FRESH_S = 1.0
"""Seconds for which one reading of all nodes checks the repairs of every kind in a pass: at a large
site a reading takes most of a second itself. A pass that waited for a cloud reads them again.
"""
Do = Callable[[Any], None]
"""Does all actions of one kind."""


def apply(
    site: Site,
    cloud: str,
    decided: Sequence[Action],
    snapshot: ClusterSnapshot,
    doubts: Mapping[str, str] | None = None,
) -> bool:
    """Do what was decided for a cloud by ``snapshot``, kind by kind in the order in which it was
    decided, each in its bulk calls; whether nodes of it wait for their turn to boot. ``doubts``: by
    machine, what of its tags is not believed.

    A failure is logged and left to the next round; one in what a request calls for is raised.
    """
    by_kind: dict[type[Action], list[Action]] = {}
    for action in decided:
        by_kind.setdefault(type(action), []).append(action)
    doing = _Apply(site, cloud, snapshot, doubts or {})
    for kind, some in by_kind.items():
        # One of those that are no bulk call must not stand in the way of the others.
        for together in [some] if kind.bulk else [[action] for action in some]:
            doing.do(together)
    return doing.waits


class _Apply:
    """The doers of one pass. ``waits``: whether nodes wait for their turn to boot."""

    def __init__(
        self, site: Site, cloud: str, snapshot: ClusterSnapshot, doubts: Mapping[str, str]
    ) -> None:
        self._site, self._cloud = site, cloud
        self._snapshot = snapshot
        self._request = snapshot.request
        self._correlation = self._request.id if self._request is not None else CORRELATION
        self.waits = False
        self._decided: frozenset[Action] = frozenset()
        self._decided_at = float("-inf")
        seen = snapshot.listed or ()
        self._doers: Mapping[type[Action], Do] = {
            actions.Adopt: lambda some: adopt(site, some, seen, doubts),
            actions.AdoptStopped: lambda some: adopt(site, some, seen, doubts),
            actions.NoteEnd: self._note_end,
            actions.NoteMissing: self._note_end,
            actions.Confirm: lambda some: _confirm(site, some, seen),
            actions.Retry: lambda some: _retry(site, some, seen),
            actions.Abandon: self._abandon,
            actions.Relaunch: self._relaunch,
            actions.Launch: self._launch,
            actions.Suspend: self._suspend,
            actions.FailBoot: self._fail_boots,
            actions.Drop: self._drop,
            actions.Terminate: self._terminate,
            actions.TerminateOrphan: self._terminate,
            actions.TerminateDouble: self._terminate,
            actions.TerminateStopped: self._terminate,
            actions.NoteStopped: lambda some: stopping.has_stopped(
                site, cloud, self._machines(some), CORRELATION
            ),
            actions.StopAgain: self._stop,
            actions.StartAgain: lambda some: starting.start_again(site, cloud, some),
            actions.RunsAgain: lambda some: starting.runs_again(site, some, seen),
            actions.EndStopped: lambda some: starting.end_stopped(site, cloud, some, CORRELATION),
            actions.FailNode: lambda some: fail_nodes(site, some),
            actions.FailLost: lambda some: fail_nodes(site, some, told=True),
            actions.GiveBack: self._give_back,
            actions.Recycle: lambda some: recycle(site, cloud, some, CORRELATION),
            actions.PowerDown: lambda some: self._change(some, node_updates.power_down),
            actions.PowerDownAgain: lambda some: self._change(some, node_updates.power_down),
            actions.Clear: lambda some: self._change(some, node_updates.power_down_from_nowhere),
            actions.PowerDownWhenIdle: lambda some: self._change(
                some, node_updates.power_down_when_idle
            ),
            actions.NoteRead: lambda _: site.ledger.machines.read_whole(cloud, site.now()),
            actions.Register: lambda some: register(site, cloud, some),
            actions.ReopenPool: lambda some: reopen_pools(site, some),
            actions.NoteDrain: lambda some: site.ledger.usage.write((), [a.span for a in some]),
            actions.SetAddress: lambda some: assign_addresses(
                site, {a.node: a.address for a in some}
            ),
            actions.HideName: lambda some: hide_names(site, [a.node for a in some]),
            actions.Release: self._release,
            actions.Hold: self._hold,
            actions.Disclaim: lambda some: disclaim(site, some),
            actions.Restore: lambda some: self._change(some, _return_to_service),
        }

    def do(self, some: Sequence[Action]) -> None:
        """These, of one kind."""
        kind, do = some[0].kind, self._doers[type(some[0])]
        if self._request is not None:
            # What fails is raised: the request stays in the spool and is tried again.
            do(some)
            return
        try:
            # Since the round read Slurm it has waited for a cloud: an admin may have drained a
            # node, or Slurm may have asked for it.
            still = self._still(some) if some[0].by_node else some
            if still:
                do(still)
        except (SlurmElasticError, sqlite3.Error) as error:
            log.warning("repair fails, tried again next round kind=%s error=%s", kind, error)
        except Exception:
            log.exception("repair fails in an unknown way, tried again kind=%s", kind)

    def _still(self, some: Sequence[Action]) -> Sequence[Action]:
        """The actions that still stand by Slurm's nodes as they are now."""
        clock = self._site.monotonic()
        if clock - self._decided_at >= DECIDED_FRESH_S:
            nodes = all_nodes(self._site)
            self._decided = frozenset(decide(replace(self._snapshot, nodes=nodes), (Rule.REPAIR,)))
            self._decided_at = self._site.monotonic()
        dropped = [a.subject for a in some if a not in self._decided]
        if dropped:
            log.info("repair dropped, Slurm has changed meanwhile subjects=%s", dropped)
        return [a for a in some if a in self._decided]

    def _note_end(self, some: Sequence[NoteEnd | NoteMissing]) -> None:
        nodes = self._nodes_of(some)
        for cause in dict.fromkeys(a.cause for a in some):
            ids = [a.machine for a in some if a.cause == cause]
            self._site.ledger.machines.ended(self._cloud, ids, cause, self._site.now())
            self._site.record(CORRELATION, "ended", [nodes[i] for i in ids], cause)

    def _abandon(self, some: Sequence[actions.Abandon]) -> None:
        for action in some:
            self._site.ledger.launches.failed(action.generation, action.reason, self._site.now())

    def _terminate(self, some: Sequence[actions.OnMachine]) -> None:
        """The ones that are live: another worker may have ended some since the round read them."""
        for cause in dict.fromkeys(a.cause for a in some):
            doomed = self._machines([a for a in some if a.cause == cause])
            terminate(self._site, self._cloud, doomed, cause, CORRELATION)

    def _stop(self, some: Sequence[actions.StopAgain]) -> None:
        """Where nothing can be written down that was decided before, they end."""
        site, cloud, machines = self._site, self._cloud, self._machines(some)
        if why := site.ledger.end_only:
            site.ledger.stops.failed(
                cloud, [m.instance.id for m in machines], CannotBeStopped(error=why)
            )
            refused = machines
        else:
            refused = stopping.stop_again(site, cloud, machines, CORRELATION)
        self._end(refused, some, CORRELATION)

    def _machines(self, some: Sequence[actions.OnMachine]) -> list[Machine]:
        ids = {a.machine for a in some}
        return [m for m in machines_of(self._site, self._cloud) if m.instance.id in ids]

    def _relaunch(self, some: Sequence[actions.Relaunch]) -> None:
        cause_of = {a.machine: a.cause for a in some}
        past: dict[str, list[str]] = {}
        for machine in self._machines(some):
            past.setdefault(machine.instance.node, []).append(machine.instance.id)
        self._launch(
            [actions.Launch(node=n, past=tuple(of), cause=cause_of[of[0]])
             for n, of in past.items()]
        )  # fmt: skip

    def _launch(self, some: Sequence[actions.Launch]) -> None:
        """End the machines of the past, and give the nodes others, unless something serves them."""
        site, cloud, request = self._site, self._cloud, self._request
        unread = site.first_unread_cloud(cloud, site.ledger.machines.clouds_read())
        trouble = site.unreadable.get(unread, "")
        # What is there is in no limit yet.
        if unread and request is None:
            return  # a later round buys
        if unread and not trouble:
            # It passes, so the request stays in the spool (`PASSING`).
            raise NotLearntError(f"{unread}: not read yet, its machines may be in no count")
        if trouble:
            trouble = f"its machines could not be listed, so it sells none: {trouble}"
        served = self._end_past(some)
        # A machine of ours may be left of a pool that is another cloud's by now: that one buys.
        mine = [a.node for a in some if self._snapshot.home(a.node) == cloud]
        wanted = [node for node in mine if node not in served]
        if any(a.past for a in some):  # to end those has taken its time
            view = site.slurm.nodes(wanted) if wanted else {}
            wanted = [node for node in wanted if _wants(view, node)]
        if request is None:
            jobs: Jobs = _jobs_of(site, wanted) if wanted else {}
        else:
            jobs = request.jobs
            if served:
                self._drop(
                    [actions.Drop(node=n, cause=AlreadyServed()) for n in mine if n in served]
                )
        if wanted:
            asked = request.received if request is not None else None
            waiting = provision(
                site, cloud, self._correlation, wanted, jobs, asked, trouble=trouble
            )
            self.waits = bool(waiting)

    def _end_past(self, some: Sequence[actions.Launch]) -> set[str]:
        """The nodes that something serves once the machines of the past have ended."""
        site, cloud = self._site, self._cloud
        nodes = {a.node for a in some}
        past = {id_ for a in some for id_ in a.past}
        # A machine may be left of a pool that another cloud had: only that cloud can end it, and
        # none is bought where jobs run on it, as slurmctld may forget that its node was up.
        theirs = [m for m in site.ledger.machines.live() if m.instance.node in nodes]
        old = [m for m in theirs if m.instance.cloud != cloud or m.instance.id in past]
        stale: Sequence[Machine] = ()
        if old:
            stale = stale_instances(site, old)
            ending = [m for m in stale if m.instance.cloud == cloud]
            terminate(site, cloud, ending, PoweredUpAgain(), self._correlation)
        serve = [m for m in theirs if m not in stale and m.suspending is None]
        opened = site.ledger.launches.open() if past else ()
        return {
            m.instance.node for m in serve if m.instance.cloud == cloud or m.registered is not None
        } | {n for row in opened if row.cloud == cloud for n in row.nodes}

    def _suspend(self, some: Sequence[actions.Suspend | actions.FailBoot]) -> None:
        """End the machines, or stop those that their pool keeps so."""
        site, cloud = self._site, self._cloud
        machines = self._machines(some)
        unproven = {a.machine for a in some if isinstance(a, actions.Suspend) and a.unproven}
        doubtful = [m for m in machines if m.instance.id in unproven]
        stale = stale_instances(site, doubtful)
        doomed = [m for m in machines if m.instance.id not in unproven or m in stale]
        for spare in site.steps.spared:
            spared = spare(cloud, doomed, self._snapshot.nodes, self._correlation)
            doomed = [m for m in doomed if m not in spared]
        self._end(doomed, some, self._correlation)

    def _end(
        self, doomed: Sequence[Machine], some: Sequence[actions.OnMachine], correlation: str
    ) -> None:
        """Terminate these machines, each for its own cause."""
        cause_of = {a.machine: a.cause for a in some}
        for cause in dict.fromkeys(cause_of[m.instance.id] for m in doomed):
            ending = [m for m in doomed if cause_of[m.instance.id] == cause]
            terminate(self._site, self._cloud, ending, cause, correlation)

    def _fail_boots(self, some: Sequence[actions.FailBoot]) -> None:
        failed = self._machines(some)
        # Before they are ended: where Slurm does not answer, all of it is done again.
        jobs = expect_requeued(self._site, failed)
        if ending := [a for a in some if a.ends]:
            self._suspend(ending)
        record_boot_failures(self._site, blamed(self._site, failed), self._correlation, jobs)

    def _drop(self, some: Sequence[actions.Drop]) -> None:
        correlation = self._correlation
        for cause in dict.fromkeys(a.cause for a in some):
            about = [a.node for a in some if a.cause == cause]
            nodes = self._site.news(about, "dropped", cause, correlation)
            if not nodes:  # the request is tried again, and this is as it was
                continue
            log.info("dropped request=%s nodes=%s reason=%s", correlation, compress(nodes), cause)
            self._site.record(correlation, "dropped", nodes, cause)

    def _give_back(self, some: Sequence[actions.GiveBack]) -> None:
        reasons = {row.scope: row.cause.sentence for row in capacity_holds(self._site)}
        causes = {a.node: reasons.get(a.node, a.reason) for a in some}
        view = self._site.slurm.nodes(list(causes))
        power_down_and_requeue(self._site, list(causes), view, causes, CORRELATION)

    def _change(
        self, some: Sequence[actions.OnNode], change: Callable[[Slurm, Sequence[str]], None]
    ) -> None:
        change(self._site.slurm, [a.node for a in some])
        for cause, nodes in by_cause(some).items():
            self._site.record(CORRELATION, some[0].kind, nodes, cause)

    def _nodes_of(self, some: Sequence[actions.OnMachine]) -> dict[str, str]:
        there = (*self._site.ledger.stops.machines(), *machines_of(self._site, self._cloud))
        machines = {m.instance.id: m.instance.node for m in there}
        return {a.machine: machines.get(a.machine, a.machine) for a in some}

    def _release(self, some: Sequence[actions.Release]) -> None:
        for kind, cause in dict.fromkeys((a.hold, a.cause) for a in some):
            nodes = [a.node for a in some if (a.hold, a.cause) == (kind, cause)]
            holds.release(self._site, nodes, cause, kind)

    def _hold(self, some: Sequence[actions.Hold]) -> None:
        for pool, why in dict.fromkeys((a.pool, a.reason) for a in some):
            nodes = [a.node for a in some if (a.pool, a.reason) == (pool, why)]
            holds.hold(self._site, self._site.pools[pool], nodes, why)


def _confirm(
    site: Site, some: Sequence[actions.Confirm | actions.Retry], seen: Sequence[Instance]
) -> None:
    for action in some:
        found = [i for i in seen if i.generation == action.generation]
        row = site.ledger.launches.known(action.generation)
        for tell_answered in site.steps.answered:
            tell_answered(row.generation, row.pool)
        site.ledger.machines.launched(action.generation, found, site.now())
        site.record(CORRELATION, "confirmed", [i.node for i in found], action.reason)


def _retry(site: Site, some: Sequence[actions.Retry], seen: Sequence[Instance]) -> None:
    """The same call under the same token; where it is refused now, the nodes are placed anew."""
    for action in some:
        row = site.ledger.launches.get(action.generation)
        if row is None or site.ledger.end_only:  # the call might buy what it did not buy before
            continue
        if _is_suspended(site, row):  # it would be ended at once: Slurm may want it again since
            continue
        if row.pool not in site.pools:  # the configuration has lost it: what is there is there
            _confirm(site, [action], seen)
            continue
        spec = spec_of(site, row)
        result = launch(site, spec, row.request, again=True)
        why = f"{action.reason}: {result.why}" if result.why else action.reason
        kind = f"retry-{result.outcome.value}"
        if news := site.news(row.nodes, kind, why):
            site.record(CORRELATION, kind, (*news, *(f"job:{j}" for j in row.jobs)), why)
        if result.outcome is LaunchOutcome.IN_DOUBT:
            continue
        started = {i.node for i in result.instances}
        left = [n for n in row.nodes if n not in started]
        view = site.slurm.nodes(left) if left else {}
        left = [n for n in left if _wants(view, n)]
        if left:
            provision(site, row.cloud, row.request, left, _jobs_of(site, left))


def _is_suspended(site: Site, row: Launch) -> bool:
    """Whether a request that waits ends what this launch makes."""
    decided = generation_order(row.generation)
    return any(
        decided <= request.received and not set(row.nodes).isdisjoint(request.nodes)
        for request in site.suspends.snapshot().values()
    )


def _return_to_service(slurm: Slurm, nodes: Sequence[str]) -> None:
    node_updates.return_to_service(slurm, slurm.nodes(nodes).values())


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
