"""Carries out the actions that were decided for a cloud: in Slurm, in the cloud and in the ledger.

Before each call to a cloud its intent is in the ledger. Any action may be done twice: the next
round reads the state again and decides from it, whether the action succeeded or not.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import NotLearntError, SlurmElasticError
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller import holds
from slurm_elastic.controller.adoption import adopt
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import (
    confirm_ends,
    find_gone,
    find_unfinished,
    terminate,
    terminate_by_cause,
)
from slurm_elastic.controller.extensions import Jobs
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.controller.launching.boot_consoles import read_consoles, record_consoles
from slurm_elastic.controller.launching.boot_timeouts import expect_requeued, select_blamed
from slurm_elastic.controller.launching.boots import (
    record_boot_failures,
    record_ended_by_others,
    record_registered,
    reopen_pools,
)
from slurm_elastic.controller.launching.launch import assign_addresses, hide_names
from slurm_elastic.controller.launching.open_launches import (
    confirm_launches,
    retry_launches,
    waits_for,
)
from slurm_elastic.controller.launching.provision import provision
from slurm_elastic.controller.lost_nodes import group_by_cause, set_lost_down, set_unused_down
from slurm_elastic.controller.recycling import recycle
from slurm_elastic.controller.snapshot import (
    CORRELATION,
    find_machines_to_act_on,
    list_capacity_holds,
    list_live_machines,
    read_all_nodes,
)
from slurm_elastic.controller.stale_machines import find_stale_machines
from slurm_elastic.controller.whole_jobs import find_jobs_of_nodes
from slurm_elastic.model.causes.machine_ends import PoweredUpAgain
from slurm_elastic.model.causes.refusals import CloudUnlisted
from slurm_elastic.model.causes.repairs import AlreadyServed
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies import actions
from slurm_elastic.policies.actions import Action, NoteEnd, NoteMissing
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, RoundRule
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

DECIDED_FRESH_S = 1.0
"""Seconds for which one reading of all nodes is new enough to check repairs against. The kinds of
actions in a round share it, because a reading takes most of a second at a large site. A round that
had to wait for a cloud reads the nodes again.
"""
Do = Callable[[Any], None]
"""Does the given actions, which are all of one kind."""


def apply(
    site: Site,
    cloud: str,
    decided: Sequence[Action],
    snapshot: ClusterSnapshot,
    doubts: Mapping[str, str] | None = None,
) -> bool:
    """Do the actions that were decided for a cloud from ``snapshot``: kind by kind, in the order of
    ``decided``, each kind in bulk calls. Returns whether nodes wait for their turn to boot.
    ``doubts``: by machine, the tags that we do not believe.

    If an action of a periodic round fails, we log the error and the next round tries again. An
    error in an action for a request is raised, so that the request stays in the spool.
    """
    by_kind: dict[type[Action], list[Action]] = {}
    for action in decided:
        by_kind.setdefault(type(action), []).append(action)
    doers = _Apply(site, cloud, snapshot, doubts or {})
    for kind, kind_actions in by_kind.items():
        # Each action without a bulk call runs by itself, so that an error stops only that action.
        for batch in [kind_actions] if kind.bulk else [[action] for action in kind_actions]:
            doers.do(batch)
    return doers.nodes_wait


class _Apply:
    """The functions that do the actions of one round, by class of action. ``nodes_wait``: whether
    nodes wait for their turn to boot.
    """

    def __init__(
        self, site: Site, cloud: str, snapshot: ClusterSnapshot, doubts: Mapping[str, str]
    ) -> None:
        self._site, self._cloud = site, cloud
        self._snapshot = snapshot
        self._request = snapshot.request
        self._correlation = self._request.id if self._request is not None else CORRELATION
        self.nodes_wait = False
        self._current_repairs: frozenset[Action] = frozenset()
        self._checked_at = float("-inf")
        self._doubts = doubts
        self.doers: dict[type[Action], Do] = {
            actions.Adopt: self._adopt,
            actions.AdoptStopped: self._adopt,
            actions.NoteEnd: self._confirm_ends,
            actions.NoteMissing: self._note_missing,
            actions.Confirm: self._confirm,
            actions.Retry: self._retry,
            actions.Abandon: self._abandon,
            actions.Relaunch: self._relaunch,
            actions.LaunchMachine: self._launch,
            actions.Suspend: self._suspend,
            actions.FailBoot: self._fail_boots,
            actions.Drop: self._drop,
            actions.Terminate: self._terminate,
            actions.TerminateOrphan: self._terminate,
            actions.TerminateUnlisted: self._terminate,
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
            self.doers[kind] = partial(doer, snapshot)

    def do(self, batch: Sequence[Action]) -> None:
        """Do these actions, which are all of one kind."""
        kind = batch[0].kind
        if self._request is not None:
            # Let errors pass: the request then stays in the spool and is retried.
            self.doers[type(batch[0])](batch)
            return
        try:
            do = self.doers[type(batch[0])]
            # After the round read Slurm it waited for a cloud. In that time an admin may have
            # drained a node, or Slurm may have asked for it, so check the decision again.
            current = self._keep_current(batch) if batch[0].by_node else batch
            if current:
                do(current)
        except (SlurmElasticError, sqlite3.Error, OSError) as error:  # OSError: of the requests
            log.warning("repair fails, tried again next round kind=%s error=%s", kind, error)
        # An error of a plug-in or a bug of ours in one kind must not keep the other kinds from
        # their repairs: these may end machines that cost money.
        except Exception:
            log.exception("repair fails in an unknown way, tried again kind=%s", kind)

    def _keep_current(self, batch: Sequence[Action]) -> Sequence[Action]:
        """Return the actions that would be decided again from Slurm's nodes of this moment."""
        clock = self._site.monotonic()
        if clock - self._checked_at >= DECIDED_FRESH_S:
            nodes = read_all_nodes(self._site)
            self._current_repairs = frozenset(
                decide(replace(self._snapshot, nodes=nodes), (RoundRule.REPAIR,))
            )
            self._checked_at = self._site.monotonic()
        dropped = [a.subject for a in batch if a not in self._current_repairs]
        if dropped:
            log.info(
                "repair dropped, Slurm's state has changed since the decision subjects=%s", dropped
            )
        return [a for a in batch if a in self._current_repairs]

    def _adopt(self, batch: Sequence[actions.Adopt | actions.AdoptStopped]) -> None:
        adopt(self._site, batch, self._snapshot.listed or (), self._doubts)

    def _confirm(self, batch: Sequence[actions.Confirm]) -> None:
        confirm_launches(self._site, batch, self._snapshot.listed or ())

    def _retry(self, batch: Sequence[actions.Retry]) -> None:
        retry_launches(self._site, batch, self._snapshot.listed or ())

    def _note_read(self, _: Sequence[actions.NoteRead]) -> None:
        self._site.ledger.machines.record_whole_list(self._cloud, self._site.now())

    def _register(self, batch: Sequence[actions.Register]) -> None:
        record_registered(self._site, self._cloud, batch)

    def _recycle(self, batch: Sequence[actions.Recycle]) -> None:
        recycle(self._site, self._cloud, batch, CORRELATION)

    def _reopen_pools(self, batch: Sequence[actions.ReopenPool]) -> None:
        reopen_pools(self._site, batch)

    def _fail_nodes(self, batch: Sequence[actions.FailNode]) -> None:
        set_lost_down(self._site, batch)

    def _fail_lost_nodes(self, batch: Sequence[actions.FailLost]) -> None:
        set_lost_down(self._site, batch, cloud_ended_it=True)

    def _disclaim(self, batch: Sequence[actions.Disclaim]) -> None:
        set_unused_down(self._site, batch)

    def _note_drains(self, batch: Sequence[actions.NoteDrain]) -> None:
        self._site.ledger.usage.write((), [a.span for a in batch])

    def _set_addresses(self, batch: Sequence[actions.SetAddress]) -> None:
        assign_addresses(self._site, {a.node: a.address for a in batch})

    def _hide_names(self, batch: Sequence[actions.HideName]) -> None:
        hide_names(self._site, [a.node for a in batch])

    def _power_down(self, batch: Sequence[actions.OnNode]) -> None:
        self._change(batch, node_updates.power_down)

    def _power_down_from_nowhere(self, batch: Sequence[actions.Clear]) -> None:
        self._change(batch, node_updates.power_down_from_nowhere)

    def _power_down_when_idle(self, batch: Sequence[actions.PowerDownWhenIdle]) -> None:
        self._change(batch, node_updates.power_down_when_idle)

    def _restore(self, batch: Sequence[actions.Restore]) -> None:
        self._change(batch, _return_to_service)

    def _confirm_ends(self, batch: Sequence[NoteEnd]) -> None:
        for cause, ends in group_by(batch, lambda action: action.cause).items():
            ended = confirm_ends(self._site, self._cloud, self._machines(ends), cause, CORRELATION)
            if ended:
                self._site.record(CORRELATION, "ended", [m.instance.node for m in ended], cause)

    def _note_missing(self, batch: Sequence[NoteMissing]) -> None:
        nodes = self._nodes_of(batch)
        gone = find_gone(self._site, self._cloud, nodes, CORRELATION)
        for cause, ends in group_by(batch, lambda action: action.cause).items():
            ids = [end.machine for end in ends if end.machine in gone]
            self._site.ledger.machines.record_end(self._cloud, ids, cause, self._site.now())
            if ids:
                self._site.record(CORRELATION, "ended", [nodes[i] for i in ids], cause)
            record_ended_by_others(self._site, self._cloud, ids, CORRELATION)

    def _abandon(self, batch: Sequence[actions.Abandon]) -> None:
        for action in batch:
            self._site.ledger.launches.record_failure(
                action.generation, str(action.cause), self._site.now()
            )

    def _terminate(self, batch: Sequence[actions.OnMachine]) -> None:
        cause_of = {a.machine: a.cause for a in batch}
        terminate_by_cause(self._site, self._cloud, self._machines(batch), cause_of, CORRELATION)

    def _machines(self, batch: Sequence[actions.OnMachine]) -> list[Machine]:
        return find_machines_to_act_on(self._site, self._cloud, batch)

    def _relaunch(self, batch: Sequence[actions.Relaunch]) -> None:
        cause_of = {a.machine: a.cause for a in batch}
        ids_by_node: dict[str, list[str]] = {}
        for machine in self._machines(batch):
            ids_by_node.setdefault(machine.instance.node, []).append(machine.instance.id)
        self._launch(
            [actions.LaunchMachine(node=n, machines_to_end_first=tuple(ids), cause=cause_of[ids[0]])
             for n, ids in ids_by_node.items()]
        )  # fmt: skip

    def _launch(self, batch: Sequence[actions.LaunchMachine]) -> None:
        """End the machines of an earlier power-up, then launch for the nodes without a machine."""
        site, cloud, request = self._site, self._cloud, self._request
        unread = site.first_unread_cloud(cloud, site.ledger.machines.clouds_read())
        error = site.unreadable.get(unread, "")
        # As long as a cloud was never listed, its machines count in no limit, so nothing may be
        # bought. A periodic round waits, and a request is retried.
        if unread and request is None:
            return  # a later round buys
        if unread and not error:
            # The error passes by itself, so the request stays in the spool (`PASSING_ERRORS`).
            raise NotLearntError(
                f"{unread}: not listed yet, so its machines may be missing from the limits"
            )
        trouble = CloudUnlisted(cloud=unread, error=error) if error else None
        served = self._end_past(batch)
        # A pool may have moved to another cloud while this one still has a machine of its node.
        # Only the pool's present cloud buys.
        own_nodes = [a.node for a in batch if self._snapshot.home(a.node) == cloud]
        unserved = [node for node in own_nodes if node not in served]
        # Ending machines took time. Slurm may no longer want some of the nodes, and we would buy
        # machines for them that run no job.
        if any(a.machines_to_end_first for a in batch):
            view = site.slurm.nodes(unserved) if unserved else {}
            unserved = [node for node in unserved if waits_for(view, node)]
        if request is None:
            jobs: Jobs = find_jobs_of_nodes(site, unserved) if unserved else {}
        else:
            jobs = request.jobs
            if request.note and unserved:
                # A part of Slurm's resume file cannot be read. Without its jobs a barred payer
                # would get a machine, and a multi-node job not all of its nodes.
                jobs = {**find_jobs_of_nodes(site, unserved), **jobs}
            if served:
                self._drop(
                    [actions.Drop(node=n, cause=AlreadyServed()) for n in own_nodes if n in served]
                )
        if unserved:
            asked_at = request.received if request is not None else None
            waiting = provision(
                site, cloud, self._correlation, unserved, jobs, asked_at, trouble=trouble
            )
            self.nodes_wait = bool(waiting)

    def _end_past(self, batch: Sequence[actions.LaunchMachine]) -> set[str]:
        """End the machines of an earlier power-up. Returns the nodes that a machine or an open
        launch still serves.
        """
        site, cloud = self._site, self._cloud
        nodes = {a.node for a in batch}
        past_ids = {id_ for a in batch for id_ in a.machines_to_end_first}
        # A machine may remain in the cloud that had the pool before. Only that cloud can end it.
        # While jobs run on it we buy no other machine for the node, because a slurmctld that was
        # killed may have forgotten that the node was up.
        machines = [m for m in site.ledger.machines.live() if m.instance.node in nodes]
        old = [m for m in machines if m.instance.cloud != cloud or m.instance.id in past_ids]
        stale: Sequence[Machine] = ()
        unfinished: Sequence[Machine] = ()
        if old:
            stale = find_stale_machines(site, old)
            # Their nodes get no other machine in this round. The next rounds try again.
            unfinished = find_unfinished(site, stale)
            stale = [m for m in stale if m not in unfinished]
            ending = [m for m in stale if m.instance.cloud == cloud]
            terminate(site, cloud, ending, PoweredUpAgain(), self._correlation)
        serving = [m for m in machines if m not in stale and m.is_wanted]
        open_launches = site.ledger.launches.open() if past_ids else ()
        return (
            {
                m.instance.node
                for m in serving
                if m.instance.cloud == cloud or m.registered_at is not None
            }
            | {m.instance.node for m in unfinished}
            | {n for row in open_launches if row.cloud == cloud for n in row.nodes}
        )

    def _suspend(self, batch: Sequence[actions.Suspend | actions.FailBoot]) -> None:
        """End the machines, except machines that a feature stops and keeps instead."""
        site, cloud = self._site, self._cloud
        machines = self._machines(batch)
        unproven = {a.machine for a in batch if isinstance(a, actions.Suspend) and a.unproven}
        doubtful = [m for m in machines if m.instance.id in unproven]
        stale = find_stale_machines(site, doubtful)
        doomed = [m for m in machines if m.instance.id not in unproven or m in stale]
        # Nor may a feature stop them.
        unfinished = find_unfinished(site, doomed)
        doomed = [m for m in doomed if m not in unfinished]
        for spare in site.extensions.spare_from_end:
            spared = spare(cloud, doomed, self._snapshot.nodes, self._correlation)
            doomed = [m for m in doomed if m not in spared]
        cause_of = {a.machine: a.cause for a in batch}
        terminate_by_cause(site, cloud, doomed, cause_of, self._correlation)

    def _fail_boots(self, batch: Sequence[actions.FailBoot]) -> None:
        failed = self._machines(batch)
        # Before the machines end: if Slurm does not answer here, the whole action is repeated.
        # After their end no action would be left to expect the requeues.
        jobs = expect_requeued(self._site, failed)
        meant_to_end = [a for a in batch if a.ends]
        # Before the last look at the nodes: a machine may register while its cloud answers.
        consoles = read_consoles(self._site, self._cloud, self._machines(meant_to_end))
        if ending := self._without_registered(meant_to_end):
            record_consoles(self._site, consoles, self._machines(ending), self._correlation)
            self._suspend(ending)
        record_boot_failures(self._site, select_blamed(self._site, failed), self._correlation, jobs)

    def _without_registered(self, batch: Sequence[actions.FailBoot]) -> Sequence[actions.FailBoot]:
        """Leave out machines whose nodes are up now."""
        # Read the nodes once more. Reading Slurm's jobs took time: Slurm may have powered a node
        # up again, and the late machine may have registered for that power-up.
        nodes = self._nodes_of(batch)
        view = self._site.slurm.nodes(list(nodes.values())) if batch else {}
        up = {name for name, node in view.items() if phase(node) is Phase.UP}
        return [a for a in batch if nodes[a.machine] not in up]

    def _drop(self, batch: Sequence[actions.Drop]) -> None:
        correlation = self._correlation
        for cause, dropped in group_by_cause(batch).items():
            # Once for each request, because a request that fails is tried again.
            nodes = self._site.recorder.record_if_changed(
                correlation, "dropped", dropped, cause, once_per_correlation=True
            )
            if nodes:
                log.info(
                    "dropped request=%s nodes=%s reason=%s", correlation, compress(nodes), cause
                )

    def _give_back(self, batch: Sequence[actions.GiveBack]) -> None:
        held = {row.scope: row.cause for row in list_capacity_holds(self._site)}
        causes = {a.node: held.get(a.node, a.cause) for a in batch}
        view = self._site.slurm.nodes(list(causes))
        power_down_and_requeue(self._site, list(causes), view, causes, CORRELATION)

    def _change(
        self, batch: Sequence[actions.OnNode], change: Callable[[Slurm, Sequence[str]], None]
    ) -> None:
        change(self._site.slurm, [a.node for a in batch])
        for cause, nodes in group_by_cause(batch).items():
            self._site.record(CORRELATION, batch[0].kind, nodes, cause)

    def _nodes_of(self, batch: Sequence[actions.OnMachine]) -> dict[str, str]:
        known_machines = (
            *self._site.ledger.stops.machines(),
            *list_live_machines(self._site, self._cloud),
        )
        node_by_id = {m.instance.id: m.instance.node for m in known_machines}
        return {a.machine: node_by_id.get(a.machine, a.machine) for a in batch}

    def _release(self, batch: Sequence[actions.Release]) -> None:
        for kind, cause in dict.fromkeys((a.hold, a.cause) for a in batch):
            nodes = [a.node for a in batch if (a.hold, a.cause) == (kind, cause)]
            holds.release(self._site, nodes, cause, kind)

    def _hold(self, batch: Sequence[actions.Hold]) -> None:
        for pool, cause in dict.fromkeys((a.pool, a.cause) for a in batch):
            nodes = [a.node for a in batch if (a.pool, a.cause) == (pool, cause)]
            holds.hold(self._site, self._site.pools[pool], nodes, cause)


def _return_to_service(slurm: Slurm, nodes: Sequence[str]) -> None:
    node_updates.return_to_service(slurm, slurm.nodes(nodes).values())
