"""Applies the plans of a tick, in this order: saves that people ordered, new moves, periodic saves,
the next step of each move, nodes, notices.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman import ended_by_save, lost_files, nodes, suspended
from slurm_elastic.ckptman.decide import MOVE, NO_DEADLINE, JobPlan
from slurm_elastic.ckptman.executor import KeyedExecutor, Urgency, WorkKind
from slurm_elastic.ckptman.losses import UnannouncedEnds
from slurm_elastic.ckptman.moves import after_requeue, migration, node_release, requeueing, steps
from slurm_elastic.ckptman.moves.rescheduling import reschedule
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.requeue_failover import RequeueFailover
from slurm_elastic.ckptman.saves import SavesInPlace
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.ckptman.unfit_nodes import UnfitNodes
from slurm_elastic.model.causes.checkpoints import JobNotHelped
from slurm_elastic.model.causes.moves import MovePlanned
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.threat import Response
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

log = logging.getLogger(__name__)


class PlanApplier:
    """Carries plans out. Slow work goes to the crew; ``wake`` is called when the crew has brought
    a job to its next step. ``saves`` saves the jobs that stay where they are.
    """

    def __init__(
        self, site: CheckpointSite, crew: KeyedExecutor, orders: Orders, wake: Callable[[], None]
    ) -> None:
        self._site, self.crew, self._wake = site, crew, wake
        self.saves = SavesInPlace(site, orders)
        self._notice_ends = nodes.NoticeEnds(site)
        self._releases = node_release.NodeReleases(site)
        self._failover = RequeueFailover(site)
        self._unannounced = UnannouncedEnds(site)
        self._unfit_nodes = UnfitNodes(site)
        self._reports = ReportOnce[int]()
        # Written by the crew's threads.
        self._helped_at: SharedDict[int, float] = SharedDict()

    def apply(
        self, snapshot: Snapshot, plans: Sequence[JobPlan], orders: Sequence[ReceivedOrder]
    ) -> bool:
        """Apply the plans. Returns True if a job is being moved, so that the next tick should come
        soon. ``orders``: the orders of people that wait.
        """
        if orders:
            self.saves.save_ordered(orders, snapshot, self.crew)
        self._record_refusals(snapshot)
        new_moves = self._begin_moves(plans, snapshot)
        moves = [*snapshot.migrations.values(), *new_moves]
        self.advance_migrations(moves, snapshot)
        # With a stale list of machines a notice's machine might look gone although it runs.
        released_nodes = frozenset[str]() if snapshot.blind else self._notice_ends.close(snapshot)
        # After a new move this view of the nodes is out of date: _begin_moves has drained some.
        if snapshot.nodes is not None and not new_moves:
            nodes_to_empty = frozenset(
                n for move in moves for n in move.threatened if not move.is_over
            )
            nodes.apply_threats(self._site, snapshot, nodes_to_empty, released_nodes)
        self._releases.release_due(snapshot.machines)
        if snapshot.answered:
            self._forget_jobs(snapshot)
            self._failover.protect(snapshot.jobs)
            ended_by_save.requeue_ended_runs(self._site, snapshot, self.crew)
            self._unannounced.report(snapshot, self.crew)
            self._unfit_nodes.requeue(snapshot, self.crew)
            lost_files.forget_images(self._site, snapshot, self.crew)
            moving_jobs = frozenset(move.run.job for move in moves)
            suspended.suspend_owed_jobs(self._site, snapshot, self.crew)
            after_requeue.renew_exclusions(self._site, snapshot.jobs, moving_jobs, self.crew)
            self.saves.probe(snapshot, moving_jobs, self.crew)
            self.saves.lift_waiting_requeues(snapshot)
            if not self._another_head_works():
                self.saves.remove_images(snapshot, moving_jobs, self.crew)
        # A held move waits for an obstacle that may last, so frequent ticks would gain nothing.
        return not all(
            m.held and m.step in (MigrationStep.SAVED, MigrationStep.REQUEUEING) for m in moves
        )

    def _another_head_works(self) -> bool:
        """Whether images may belong to another head's jobs, which are not in this head's Slurm."""
        site = self._site
        with contextlib.suppress(sqlite3.Error):  # without a ledger nothing was found
            owner = site.ledger.owner.get()
            # slurm-elasticd may not have run since this host became a copy of the head.
            is_copy = (
                site.host is not None and owner is not None and not owner.host.may_be(site.host)
            )
            return is_copy or site.ledger.owner.other_head() is not None
        return False

    def _record_refusals(self, snapshot: Snapshot) -> None:
        """Record once for each job that its request cannot be followed, or that it will end at its
        time limit.
        """
        for number, choice in snapshot.choices.items():
            end_causes = [
                threat.reason
                for threat in snapshot.threats.get(f"job:{number}", ())
                if threat.answer is Response.END
            ]
            refusal = choice.refused or next(iter(end_causes), None)
            if refusal is not None and self._reports.is_news(number, refusal):
                kind = "ckpt-refused" if choice.refused else "ckpt-limit"
                label, cause = snapshot.jobs[number].label, JobNotHelped(cause=refusal)
                self._site.recorder.record(f"ckpt-{label}", kind, (f"job:{number}",), cause)

    def _forget_jobs(self, snapshot: Snapshot) -> None:
        """Forget jobs that Slurm no longer lists."""
        self._reports.forget_unless(snapshot.jobs.__contains__)
        self._helped_at.keep(snapshot.jobs.keys())
        self._site.refused_starts.keep(snapshot.jobs.keys())
        self._site.refused_exclusions.keep(snapshot.jobs.keys())
        self._site.refused_suspensions.keep(snapshot.jobs.keys())
        self.saves.forget(snapshot, self.crew)

    def _begin_moves(self, plans: Sequence[JobPlan], snapshot: Snapshot) -> list[Migration]:
        """Write all new moves to the disk, then drain all their nodes, then start the saves of jobs
        that stay. All nodes are drained first, so that no requeued job begins on another node that
        goes.
        """
        site = self._site
        # If a save of the job is already running, wait until it has ended: the move begins in a
        # later tick.
        moves = [
            migration.plan_migration(site, plan)
            for plan in plans
            if plan.kind == MOVE
            and self.crew.cancel_periodic(plan.facts.run.job) in (None, WorkKind.PERIODIC)
        ]
        if moves:
            site.state.put(*moves)
            reach("migration.planned")
            for move in moves:
                steps.record_step(site, move, "ckpt-planned", MovePlanned(cause=move.reason))
            if snapshot.nodes is not None:
                nodes.apply_threats(
                    site, snapshot, frozenset(n for move in moves for n in move.threatened)
                )
            reach("migration.drained")
        self.saves.save_due([plan for plan in plans if plan.kind != MOVE], self.crew)
        return moves

    def advance_migrations(self, moves: Sequence[Migration], snapshot: Snapshot) -> None:
        """Take the next step of each migration that the crew is not working on, the most urgent
        first.
        """
        for listed_move in sorted(moves, key=_urgency_of):
            if self.crew.cancel_periodic(listed_move.run.job) is not None:
                continue
            # The snapshot may be older than the last step, which the crew took after the snapshot
            # was read.
            move = self._site.state.open_migration(listed_move.run.job, listed_move.run.attempt)
            if move is None:
                continue
            try:
                self._take_next_step(reschedule(self._site, move, snapshot.leaving), snapshot)
            # An error of one job must not stop the steps of the other jobs.
            except SlurmElasticError as error:
                log.warning(
                    "the move of a job cannot continue now, it is retried job=%s error=%s",
                    move.run.label,
                    error,
                )

    def _take_next_step(self, move: Migration, snapshot: Snapshot) -> None:
        if snapshot.answered and _is_safe(self._site, move, snapshot):
            after_requeue.stay_if_waiting(self._site, move, snapshot.jobs.get(move.run.job))
        elif _has_work(move, self._site.now()):
            work = partial(self._continue, move)
            self.crew.submit(move.run.job, _urgency_of(move), work, user=move.run.user)
        elif snapshot.answered:
            self._check_requeued_job(move, snapshot.jobs.get(move.run.job))

    def _check_requeued_job(self, move: Migration, job: SlurmJob | None) -> None:
        """Check the requeued job of this move. Once Slurm has restarted it, the next steps may need
        Slurm commands or a disk sync, so the crew takes them: there may be many jobs.
        """
        if job is None or job.restarts <= move.run.attempt:
            after_requeue.check_job(self._site, move, job)
        elif self._site.jobs.is_read_after(self._helped_at.get(job.id, float("-inf"))):
            work = partial(self._help_to_start, move, job)
            self.crew.submit(job.id, _urgency_of(move), work, user=job.user)

    def _help_to_start(self, move: Migration, job: SlurmJob) -> None:
        if after_requeue.check_job(self._site, move, job).is_over:
            self._helped_at.pop(job.id)
        else:
            # A list that was requested before our command does not show its effect yet.
            self._helped_at[job.id] = self._site.jobs.mark()

    def _continue(self, move: Migration) -> None:
        if migration.continue_migration(self._site, move).step is not move.step:
            self._wake()


def _is_safe(site: CheckpointSite, move: Migration, snapshot: Snapshot) -> bool:
    """Whether the waiting job is no longer threatened and the machines of its nodes exist."""
    if move.step is not MigrationStep.WAITING or not snapshot.leaving.keys().isdisjoint(
        move.targets
    ):
        return False
    # Only a running job has threats of its own, such as its time limit, so they vanish with the run
    # that they have ended.
    job = snapshot.jobs.get(move.run.job)
    if job is not None and job.restarts == move.run.attempt and job.states & {*ENDED, "COMPLETING"}:
        return False
    # Only nodes of pools have machines that could be gone.
    return all(node in snapshot.machine_of or node not in site.pool_of for node in move.threatened)


def _urgency_of(move: Migration) -> Urgency:
    return (NO_DEADLINE if move.deadline is None else move.deadline, move.began)


def _has_work(move: Migration, now: float) -> bool:
    """Whether there is something to do for this move now, besides checking its job."""
    if move.step is MigrationStep.WAITING:
        return move.at is not None and now >= move.at
    if move.step in (MigrationStep.SAVED, MigrationStep.REQUEUEING):
        # No pause is longer: the clock was set back since the last try.
        return move.at is None or not 0.0 < move.at - now <= requeueing.LATE_RETRY_AFTER_S
    return move.step in (MigrationStep.PLANNED, MigrationStep.SAVING)
