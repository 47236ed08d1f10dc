"""Machines leave because an operator ordered it: drained, replaced, moved to another cloud.

Each look uses only the state of Slurm and the ledger, so a restarted daemon continues the
departures. A node is powered down when its jobs have ended. In an aggressive departure we give
slurm-elastic-ckptman a notice, as a person would, and ckptman moves the jobs. If a job cannot be
saved, it is requeued and starts over; the operator was warned of that. If a job must not be
requeued or is no batch job, the departure waits for its end.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Sequence, Set

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.features.orders.redirects import Redirects
from slurm_elastic.features.orders.replacements import ReplacementStarts
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import StartsOver
from slurm_elastic.model.causes.departures import (
    AllLeft,
    KeptByPerson,
    LeavesAfterJob,
    MoveNotBegun,
)
from slurm_elastic.model.causes.stops import ByOrder
from slurm_elastic.model.directive import MAINTENANCE, OPERATORS, Departure, Directive, describe
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.departure import (
    NextStep,
    concerned,
    jobs_on,
    next_step,
)
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.audit_trail import job_subject
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration
from slurm_elastic.state.ckptstate.orders import DROPS, NoticeOrder, drop
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.store.shared_journal import is_there

log = logging.getLogger(__name__)

_BEGUN = frozenset({"RUNNING", "SUSPENDED", "STOPPED"})
MAX_SILENCE_S = 60.0
"""Seconds after which we record that ckptman has not begun to move a job."""


class Departures:
    """Keeps in memory only which notices were given and which events were recorded. After a restart
    the daemon repeats them once.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._noticed: dict[tuple[int, str], float] = {}
        self._recorded = ReportOnce[tuple[int, str, str]]()
        self._redirects = Redirects(site)
        self._replacements = ReplacementStarts(site)

    @property
    def is_done(self) -> bool:
        """Whether the ended orders need no further step."""
        return self._redirects.is_done

    def look(self) -> None:
        """Take the next step of each departure in force."""
        now = self._site.now()
        directives = self._site.ledger.directives.all()
        self._forget({directive.number for directive in directives})
        in_force = [d for d in directives if isinstance(d.word, Departure) and d.holds(now)]
        for directive in in_force:
            self._start_replacements(directive)
        self._redirects.look(in_force)
        for directive in in_force:
            if isinstance(directive.word, Departure):
                self._advance(directive, directive.word)

    def _forget(self, kept: Set[int]) -> None:
        """Forget the departures that the ledger no longer has."""
        self._recorded.forget_unless(lambda report: report[0] in kept)
        self._noticed = {
            key: noticed_at for key, noticed_at in self._noticed.items() if key[0] in kept
        }
        self._replacements.forget_unless(set(kept))

    def _start_replacements(self, directive: Directive) -> None:
        """Start machines ahead, before the waiting jobs are sent there. The jobs then use the nodes
        that power up already; otherwise Slurm powers up other nodes for them, and twice as many
        machines start.
        """
        departure = directive.word
        if not isinstance(departure, Departure) or not departure.start_replacements:
            return
        if departure.to in self._site.clouds:
            machines = self._machines_of(directive, departure)
            running = [m.instance.node for m in machines if not m.is_off]
            self._replacements.look(directive, departure, running)

    def _machines_of(self, directive: Directive, departure: Departure) -> Sequence[Machine]:
        """Return the machines that the order still concerns."""
        site = self._site
        # Read running and stopped machines at one moment. A machine started between two readings
        # would be in neither, and its node would count as left. The stopped machines count until
        # the repair has ended them.
        state = site.ledger.state()
        machines_in_use = (*site.serving_machines(state.machines), *state.stopped)
        return concerned(machines_in_use, departure, directive.starts)

    def _advance(self, directive: Directive, departure: Departure) -> None:
        site, machines = self._site, self._machines_of(directive, departure)
        if not machines:
            self._finish(directive, departure)
            return
        # While a stopped machine still waits for its end, another machine may serve its node.
        nodes = sorted({m.instance.node for m in machines if not m.is_off})
        view = site.slurm.nodes(nodes) if nodes else {}
        step = next_step(departure, list(view.values()))
        if step.power_down:
            reason = f"{MAINTENANCE}{describe(directive, site.now())}"[:200]
            # POWER_DOWN_ASAP: Slurm starts no new job on the node and waits for its jobs to end.
            node_updates.power_down_when_idle(site.slurm, step.power_down, reason)
            site.record(OPERATORS, "leaving", step.power_down, _cause(directive, site.now()))
            log.info(
                "leaving nodes=%s reason=%s",
                compress(step.power_down),
                describe(directive, site.now()),
            )
        if step.kept:
            self._record_once(directive, "kept", step.kept, KeptByPerson())
        if step.give_up:
            power_down_and_requeue(
                site, step.give_up, view, _cause(directive, site.now()), OPERATORS
            )
        if step.hurry:
            self._notify_and_move(directive, step)

    def _finish(self, directive: Directive, departure: Departure) -> None:
        if departure.ends_when_done:
            self._site.ledger.directives.end(directive.number)
        cause = AllLeft(number=directive.number, order_text=describe(directive, self._site.now()))
        self._record_once(directive, "departed", departure.nodes, cause)

    def _record_once(
        self, directive: Directive, kind: str, subjects: Sequence[str], cause: AnyCause
    ) -> None:
        """Record and log an event once for each subject."""
        unreported = [s for s in subjects if self._recorded.is_news((directive.number, kind, s))]
        if unreported:
            self._site.record(OPERATORS, kind, unreported, cause)
            log.info("%s subjects=%s reason=%s", kind, ",".join(unreported), cause)

    def _notify_and_move(self, directive: Directive, step: NextStep) -> None:
        """Give ckptman a notice for each node once, and look after the jobs on the nodes."""
        site, now = self._site, self._site.now()
        drop_dir = site.config.state / DROPS
        for node in step.hurry:
            if (directive.number, node) not in self._noticed:
                # Without the directory ckptman never ran on this cluster.
                with contextlib.suppress(FileNotFoundError):
                    drop(
                        drop_dir,
                        NoticeOrder(node=node, reason=describe(directive, now), departure=True),
                        now,
                    )
                self._noticed[directive.number, node] = now
        moves = self._moves()
        for job in jobs_on(site.slurm.jobs(), step.hurry):
            self._move(directive, job, moves, [n for n in step.hurry if n in job.nodes])

    def _move(
        self,
        directive: Directive,
        job: SlurmJob,
        moves: dict[tuple[int, int], Migration] | None,
        nodes: Sequence[str],
    ) -> None:
        """Requeue a job that cannot be saved, because ckptman does not do that. Record why we wait
        for a job that cannot be moved, or that ckptman has not begun to move.
        """
        site = self._site
        subject = (job_subject(job.id),)
        if not _can_start_over(job):
            return
        if not job.batch or not job.requeue:
            self._record_once(
                directive, "waited-for", subject, LeavesAfterJob(is_batch=bool(job.batch))
            )
            return
        move = None if moves is None else moves.get((job.id, job.restarts))
        if moves is not None and move is None:
            noticed_at = min(self._noticed.get((directive.number, n), site.now()) for n in nodes)
            if site.now() - noticed_at > MAX_SILENCE_S:
                self._record_once(directive, "not-moved", subject, MoveNotBegun())
            return
        if move is not None and not move.is_hopeless:
            return
        # The list is some commands old. Slurm would also requeue a job that has completed since, or
        # its next run.
        present = site.slurm.job(job.id)
        if present is None or present.key != job.key or not _can_start_over(present):
            return
        site.requeues.expect(job, site.monotonic(), frozenset(nodes))
        site.slurm.requeue(job.id)
        cause = StartsOver(
            number=directive.number,
            order_text=describe(directive, site.now()),
            obstacle=None if move is None else move.note,
        )
        site.record(OPERATORS, "requeued", (*subject, *nodes), cause)

    def _moves(self) -> dict[tuple[int, int], Migration] | None:
        """Return the open moves by job and attempt; None if ckptman never ran on this cluster."""
        path = self._site.config.state / FILE
        if not is_there(path):
            return None
        try:
            with contextlib.closing(CheckpointState(path, read_only=True)) as state:
                return {(m.run.job, m.run.attempt): m for m in state.migrations()}
        except (sqlite3.Error, SlurmElasticError) as error:
            log.warning("moves of jobs cannot be read: %s", error)
            # Not None, because None would requeue jobs that ckptman may be moving.
            return {}


def _can_start_over(job: SlurmJob) -> bool:
    """Whether the job has begun on its nodes and has not ended. A suspended job has no end, because
    Slurm stops the clock of its limit. After the requeue Slurm holds it, as its user wanted.
    """
    return bool(job.states & _BEGUN) and "COMPLETING" not in job.states


def _cause(directive: Directive, now: float) -> ByOrder:
    return ByOrder(number=directive.number, order_text=describe(directive, now))
