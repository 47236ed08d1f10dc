"""Carries out what was decided for a cloud: in Slurm, in the cloud and in the ledger, where an
intent stands before each call.

Any action may be done twice: whatever it came to, the next pass sees and decides anew.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import NotLearntError, SlurmElasticError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller import holds
from slurm_elastic.controller.adoption import adopt
from slurm_elastic.controller.boot_timeouts import blamed, expect_requeued
from slurm_elastic.controller.boots import record_boot_failures, register, reopen_pools
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate, terminate_by_cause
from slurm_elastic.controller.extensions import Jobs
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.controller.launch import assign_addresses, hide_names
from slurm_elastic.controller.lost_nodes import by_cause, disclaim, fail_nodes
from slurm_elastic.controller.open_launches import confirm, jobs_of, retry, waits_for
from slurm_elastic.controller.provision import provision
from slurm_elastic.controller.recycling import recycle
from slurm_elastic.controller.snapshot import (
    CORRELATION,
    all_nodes,
    capacity_holds,
    machines_of,
    machines_to_act_on,
)
from slurm_elastic.controller.stale_machines import stale_instances
from slurm_elastic.model.causes.machine_ends import PoweredUpAgain
from slurm_elastic.model.causes.refusals import CloudUnlisted
from slurm_elastic.model.causes.repairs import AlreadyServed
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies import actions
from slurm_elastic.policies.actions import Action, NoteEnd, NoteMissing
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, Rule
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.ledger import Machine

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
        self._doubts = doubts
        self._doers: dict[type[Action], Do] = {
            actions.Adopt: self._adopt,
            actions.AdoptStopped: self._adopt,
            actions.NoteEnd: self._note_end,
            actions.NoteMissing: self._note_end,
            actions.Confirm: self._confirm,
            actions.Retry: self._retry,
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
            actions.FailNode: self._fail_nodes,
            actions.FailLost: self._fail_lost_nodes,
            actions.GiveBack: self._give_back,
            actions.Recycle: self._recycle,
            actions.PowerDown: self._power_down,
            actions.PowerDownAgain: self._power_down,
            actions.Clear: self._power_down_from_nowhere,
            actions.PowerDownWhenIdle: self._power_down_when_idle,
            actions.NoteRead: self._note_read,
            actions.Register: self._register,
            actions.ReopenPool: self._reopen_pools,
            actions.NoteDrain: self._note_drains,
            actions.SetAddress: self._set_addresses,
            actions.HideName: self._hide_names,
            actions.Release: self._release,
            actions.Hold: self._hold,
            actions.Disclaim: self._disclaim,
            actions.Restore: self._restore,
        }
        for kind, doer in site.extensions.doers:
            self._doers[kind] = partial(doer, snapshot)

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

    def _adopt(self, some: Sequence[actions.Adopt | actions.AdoptStopped]) -> None:
        adopt(self._site, some, self._snapshot.listed or (), self._doubts)

    def _confirm(self, some: Sequence[actions.Confirm]) -> None:
        confirm(self._site, some, self._snapshot.listed or ())

    def _retry(self, some: Sequence[actions.Retry]) -> None:
        retry(self._site, some, self._snapshot.listed or ())

    def _note_read(self, _: Sequence[actions.NoteRead]) -> None:
        self._site.ledger.machines.read_whole(self._cloud, self._site.now())

    def _register(self, some: Sequence[actions.Register]) -> None:
        register(self._site, self._cloud, some)

    def _recycle(self, some: Sequence[actions.Recycle]) -> None:
        recycle(self._site, self._cloud, some, CORRELATION)

    def _reopen_pools(self, some: Sequence[actions.ReopenPool]) -> None:
        reopen_pools(self._site, some)

    def _fail_nodes(self, some: Sequence[actions.FailNode]) -> None:
        fail_nodes(self._site, some)

    def _fail_lost_nodes(self, some: Sequence[actions.FailLost]) -> None:
        fail_nodes(self._site, some, told=True)

    def _disclaim(self, some: Sequence[actions.Disclaim]) -> None:
        disclaim(self._site, some)

    def _note_drains(self, some: Sequence[actions.NoteDrain]) -> None:
        self._site.ledger.usage.write((), [a.span for a in some])

    def _set_addresses(self, some: Sequence[actions.SetAddress]) -> None:
        assign_addresses(self._site, {a.node: a.address for a in some})

    def _hide_names(self, some: Sequence[actions.HideName]) -> None:
        hide_names(self._site, [a.node for a in some])

    def _power_down(self, some: Sequence[actions.OnNode]) -> None:
        self._change(some, node_updates.power_down)

    def _power_down_from_nowhere(self, some: Sequence[actions.Clear]) -> None:
        self._change(some, node_updates.power_down_from_nowhere)

    def _power_down_when_idle(self, some: Sequence[actions.PowerDownWhenIdle]) -> None:
        self._change(some, node_updates.power_down_when_idle)

    def _restore(self, some: Sequence[actions.Restore]) -> None:
        self._change(some, _return_to_service)

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
        cause_of = {a.machine: a.cause for a in some}
        terminate_by_cause(self._site, self._cloud, self._machines(some), cause_of, CORRELATION)

    def _machines(self, some: Sequence[actions.OnMachine]) -> list[Machine]:
        return machines_to_act_on(self._site, self._cloud, some)

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
        error = site.unreadable.get(unread, "")
        # What is there is in no limit yet.
        if unread and request is None:
            return  # a later round buys
        if unread and not error:
            # It passes, so the request stays in the spool (`PASSING`).
            raise NotLearntError(f"{unread}: not read yet, its machines may be in no count")
        trouble = CloudUnlisted(cloud=unread, error=error) if error else None
        served = self._end_past(some)
        # A machine of ours may be left of a pool that is another cloud's by now: that one buys.
        mine = [a.node for a in some if self._snapshot.home(a.node) == cloud]
        wanted = [node for node in mine if node not in served]
        if any(a.past for a in some):  # to end those has taken its time
            view = site.slurm.nodes(wanted) if wanted else {}
            wanted = [node for node in wanted if waits_for(view, node)]
        if request is None:
            jobs: Jobs = jobs_of(site, wanted) if wanted else {}
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
        serve = [m for m in theirs if m not in stale and m.is_wanted]
        opened = site.ledger.launches.open() if past else ()
        return {
            m.instance.node
            for m in serve
            if m.instance.cloud == cloud or m.registered_at is not None
        } | {n for row in opened if row.cloud == cloud for n in row.nodes}

    def _suspend(self, some: Sequence[actions.Suspend | actions.FailBoot]) -> None:
        """End the machines, or stop those that their pool keeps so."""
        site, cloud = self._site, self._cloud
        machines = self._machines(some)
        unproven = {a.machine for a in some if isinstance(a, actions.Suspend) and a.unproven}
        doubtful = [m for m in machines if m.instance.id in unproven]
        stale = stale_instances(site, doubtful)
        doomed = [m for m in machines if m.instance.id not in unproven or m in stale]
        for spare in site.extensions.spare_from_end:
            spared = spare(cloud, doomed, self._snapshot.nodes, self._correlation)
            doomed = [m for m in doomed if m not in spared]
        cause_of = {a.machine: a.cause for a in some}
        terminate_by_cause(site, cloud, doomed, cause_of, self._correlation)

    def _fail_boots(self, some: Sequence[actions.FailBoot]) -> None:
        failed = self._machines(some)
        # Before they are ended: where Slurm does not answer, all of it is done again.
        jobs = expect_requeued(self._site, failed)
        if ending := self._without_registered([a for a in some if a.ends]):
            self._suspend(ending)
        record_boot_failures(self._site, blamed(self._site, failed), self._correlation, jobs)

    def _without_registered(self, some: Sequence[actions.FailBoot]) -> Sequence[actions.FailBoot]:
        """Leave out machines whose nodes are up. Slurm was read before its jobs were: it may have
        powered a node up again since, and a machine that was late has registered for that.
        """
        nodes = self._nodes_of(some)
        view = self._site.slurm.nodes(list(nodes.values())) if some else {}
        up = {name for name, node in view.items() if phase(node) is Phase.UP}
        return [a for a in some if nodes[a.machine] not in up]

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
        held = {row.scope: row.cause for row in capacity_holds(self._site)}
        causes = {a.node: held.get(a.node, a.cause) for a in some}
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
        for pool, cause in dict.fromkeys((a.pool, a.cause) for a in some):
            nodes = [a.node for a in some if (a.pool, a.cause) == (pool, cause)]
            holds.hold(self._site, self._site.pools[pool], nodes, cause)


def _return_to_service(slurm: Slurm, nodes: Sequence[str]) -> None:
    node_updates.return_to_service(slurm, slurm.nodes(nodes).values())
