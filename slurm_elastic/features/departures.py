"""Machines leave by an operator's word: drained, replaced, moved to another cloud.

Each look goes by what Slurm and the ledger say, so that a new daemon goes on where the last one
was. A node is told to power down when its jobs have ended. In an aggressive departure its jobs are
moved by slurm-elastic-ckptman, by a notice as a person would give it; one that cannot be saved is
requeued and starts anew, which its operator was told. A job that must not be requeued, or that is
no batch job, is waited for.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Sequence, Set

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.model.causes.stops import ByOrder
from slurm_elastic.model.directive import MAINTENANCE, OPERATORS, Departure, Directive, told
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.departure import (
    NextStep,
    concerned,
    jobs_on,
    next_step,
    redirected,
)
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.audit_trail import job_subject
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration
from slurm_elastic.state.ckptstate.orders import DROPS, NoticeOrder, drop
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.store.shared_journal import is_there

log = logging.getLogger(__name__)

SILENT = 60.0
"""Seconds after which a job that nobody has begun to move is told of."""


class Departures:
    """In memory is only what was told already: a new daemon tells it once more."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._noticed: dict[tuple[int, str], float] = {}
        self._reports = ReportOnce[tuple[int, str, str]]()

    def look(self) -> None:
        """The next step of each departure that is in force."""
        now = self._site.now()
        directives = self._site.ledger.directives.all()
        self._forget({one.number for one in directives})
        for one in directives:
            if isinstance(one.word, Departure) and one.holds(now):
                self._go_on(one, one.word)

    def _forget(self, kept: Set[int]) -> None:
        """Forget the departures that the ledger no longer has."""
        self._reports.forget_unless(lambda report: report[0] in kept)
        self._noticed = {key: at for key, at in self._noticed.items() if key[0] in kept}

    def _go_on(self, one: Directive, word: Departure) -> None:
        site = self._site
        # As of one moment: a machine that is started between two reads would be in neither, and
        # its node would count as left. The repair ends the stopped ones.
        state = site.ledger.state()
        there = (*site.serving_machines(state.machines), *state.stopped)
        machines = concerned(there, word, one.starts)
        if word.to:
            self._redirect(one, word)
        if not machines:
            self._over(one, word)
            return
        view = site.slurm.nodes(sorted({m.instance.node for m in machines}))
        step = next_step(word, list(view.values()))
        if step.leave:
            reason = f"{MAINTENANCE}{told(one, site.now())}"[:200]
            # POWER_DOWN_ASAP: its jobs end first, and nothing new starts on it.
            node_updates.power_down_when_idle(site.slurm, step.leave, reason)
            site.record(OPERATORS, "leaving", step.leave, _cause(one, site.now()))
            log.info("leaving nodes=%s reason=%s", compress(step.leave), told(one, site.now()))
        if step.kept:
            self._tell(one, "kept", step.kept, "a person has drained it: its machine stays")
        if step.give_up:
            power_down_and_requeue(site, step.give_up, view, _cause(one, site.now()), OPERATORS)
        if step.press:
            self._press(one, step)

    def _over(self, one: Directive, word: Departure) -> None:
        if word.gets_done:
            self._site.ledger.directives.end(one.number)
        self._tell(one, "departed", word.nodes, f"all have left: {told(one, self._site.now())}")

    def _tell(self, one: Directive, kind: str, subjects: Sequence[str], why: str) -> None:
        """Once for each of them."""
        news = [s for s in subjects if self._reports.is_news((one.number, kind, s))]
        if news:
            self._site.record(OPERATORS, kind, news, why)
            log.info("%s subjects=%s reason=%s", kind, ",".join(news), why)

    # moving jobs

    def _press(self, one: Directive, step: NextStep) -> None:
        site, now = self._site, self._site.now()
        place = site.config.state / DROPS
        for node in step.press:
            if (one.number, node) not in self._noticed:
                with contextlib.suppress(FileNotFoundError):  # nobody was ever there to save jobs
                    drop(place, NoticeOrder(node=node, reason=told(one, now), departure=True), now)
                self._noticed[one.number, node] = now
        moves = self._moves()
        for job in jobs_on(site.slurm.jobs(), step.press):
            self._move(one, job, moves, [n for n in step.press if n in job.nodes])

    def _move(
        self,
        one: Directive,
        job: SlurmJob,
        moves: dict[tuple[int, int], Migration] | None,
        nodes: Sequence[str],
    ) -> None:
        """Requeue the jobs of which nothing can be saved, which ckptman does not do."""
        site = self._site
        subject = (job_subject(job.id),)
        if "RUNNING" not in job.states:
            return
        if not job.batch or not job.requeue:
            why = "is no batch job" if not job.batch else "must not be requeued"
            self._tell(one, "waited-for", subject, f"it {why}: its machine leaves after it")
            return
        move = None if moves is None else moves.get((job.id, job.restarts))
        if moves is not None and move is None:
            asked = min(self._noticed.get((one.number, n), site.now()) for n in nodes)
            if site.now() - asked > SILENT:
                why = "slurm-elastic-ckptman has not begun to move it; does it run?"
                self._tell(one, "not-moved", subject, why)
            return
        if move is not None and not move.hopeless:
            return
        site.requeues.expect(job, site.monotonic(), frozenset(nodes))
        site.slurm.requeue(job.id)
        why = move.note if move is not None else "no checkpoint method is at work on this cluster"
        site.record(
            OPERATORS,
            "requeued",
            (*subject, *nodes),
            f"it starts anew ({why}): {told(one, site.now())}",
        )

    def _moves(self) -> dict[tuple[int, int], Migration] | None:
        """The moves under way by job and attempt; None where ckptman was never at work."""
        path = self._site.config.state / FILE
        if not is_there(path):
            return None
        try:
            with contextlib.closing(CheckpointState(path, read_only=True)) as state:
                return {(m.run.job, m.run.attempt): m for m in state.migrations()}
        except (sqlite3.Error, SlurmElasticError) as error:
            log.warning("moves of jobs cannot be read: %s", error)
            # Not None: while these cannot be read, nobody is requeued.
            return {}

    def _redirect(self, one: Directive, word: Departure) -> None:
        """Waiting jobs of the cloud that is emptied get the other one's partition."""
        site = self._site
        source = site.clouds[word.scope.partition(":")[2]].partition_name
        target = site.clouds[word.to].partition_name
        pools = site.pools_of_cloud(word.to)
        for partitions, jobs in redirected(site.slurm.jobs(), source, target, pools).items():
            subjects = [job_subject(job) for job in jobs]
            try:
                site.slurm.change_pending(jobs, partitions=partitions)
            except SlurmError as error:
                if error.unanswered:
                    raise
                self._tell(one, "not-redirected", subjects, f"{target} refuses it: {error}")
                continue
            why = f"it may start in {', '.join(partitions)}: {told(one, site.now())}"
            site.record(OPERATORS, "redirected", subjects, why)


def _cause(one: Directive, now: float) -> ByOrder:
    return ByOrder(number=one.number, told=told(one, now))
