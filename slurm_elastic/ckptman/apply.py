"""All effects of a look, in their order: orders of people, moves begun and carried on, saves of
jobs that stay, nodes drained and let go, notices closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman import after_requeue, migration, node_release, nodes, steps, suspended
from slurm_elastic.ckptman.decide import MOVE, NO_DEADLINE, JobPlan
from slurm_elastic.ckptman.executor import KeyedExecutor, Urgency, WorkKind
from slurm_elastic.ckptman.losses import UnannouncedEnds
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.requeue_failover import RequeueFailover
from slurm_elastic.ckptman.saves import SavesInPlace
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.threat import Response
from slurm_elastic.state.ckptstate.facts import Migration, Step

log = logging.getLogger(__name__)


class PlanApplier:
    """The work is the crew's; ``woken`` is called when a job has come a step further. ``saves``
    does those of jobs that stay.
    """

    def __init__(
        self, site: CheckpointSite, crew: KeyedExecutor, orders: Orders, woken: Callable[[], None]
    ) -> None:
        self._site, self.crew, self._woken = site, crew, woken
        self.saves = SavesInPlace(site, orders)
        self._releases = node_release.NodeReleases(site)
        self._failover = RequeueFailover(site)
        self._unannounced = UnannouncedEnds(site)
        self._reports = ReportOnce[int]()
        # Written by the crew's threads.
        self._helped: SharedDict[int, float] = SharedDict()

    def apply(
        self, seen: Snapshot, plans: Sequence[JobPlan], asked: Sequence[ReceivedOrder]
    ) -> bool:
        """Whether a job is on its way, so that the next look is due soon. ``asked``: orders that
        wait.
        """
        if asked:
            self.saves.save_ordered(asked, seen, self.crew)
        self._refuse(seen)
        begun = self._begin(plans, seen)
        standing = [*seen.migrations.values(), *begun]
        self.advance_migrations(standing, seen)
        if seen.nodes is not None and not begun:  # else they were drained by an older view just now
            taken = frozenset(n for one in standing for n in one.threatened if not one.over)
            nodes.apply_threats(self._site, seen, taken)
        if not seen.blind:  # else a machine that is not known may be there all the same
            nodes.close_ended_notices(self._site, seen)
        self._releases.release_due(seen.machines)
        if seen.answered:
            self._forget(seen)
            self._failover.protect(seen.jobs)
            self._unannounced.report(seen, self.crew)
            moving = frozenset(one.run.job for one in standing)
            suspended.suspend_owed_jobs(self._site, seen, self.crew)
            self.saves.probe(seen, moving, self.crew)
            self.saves.lift_requeue_after_others()
            self.saves.remove_images(seen, moving, self.crew)
        # One that is held waits for what may last: nothing is gained by looking often.
        return not all(m.held and m.step in (Step.SAVED, Step.REQUEUEING) for m in standing)

    def _refuse(self, seen: Snapshot) -> None:
        """Tell once of each job whose own word cannot be followed, or that ends at its limit."""
        for number, choice in seen.choices.items():
            ends = [
                t.why for t in seen.threats.get(f"job:{number}", ()) if t.answer is Response.END
            ]
            said = choice.refused or next(iter(ends), "")
            if said and self._reports.is_news(number, said):
                kind = "ckpt-refused" if choice.refused else "ckpt-limit"
                label = seen.jobs[number].label
                self._site.recorder.record(f"ckpt-{label}", kind, (f"job:{number}",), said)

    def _forget(self, seen: Snapshot) -> None:
        """Jobs that Slurm no longer has."""
        self._reports.forget_unless(seen.jobs.__contains__)
        self._helped.keep(seen.jobs.keys())
        self.saves.forget(seen, self.crew)

    def _begin(self, plans: Sequence[JobPlan], seen: Snapshot) -> list[Migration]:
        """All moves are written down at once, then all nodes drained at once, then jobs saved."""
        site = self._site
        # A save that is under way for a job ends first; nothing else begins on its nodes meanwhile.
        moves = [
            migration.plan_migration(site, p)
            for p in plans
            if p.kind == MOVE
            and self.crew.cancel_periodic(p.facts.run.job) in (None, WorkKind.PERIODIC)
        ]
        if moves:
            site.state.put(*moves)
            reach("migration.planned")
            for one in moves:
                steps.record_step(site, one, "ckpt-planned", one.reason)
            if seen.nodes is not None:
                nodes.apply_threats(
                    site, seen, frozenset(n for one in moves for n in one.threatened)
                )
            reach("migration.drained")
        self.saves.save_due([p for p in plans if p.kind != MOVE], self.crew)
        return moves

    def advance_migrations(self, standing: Sequence[Migration], seen: Snapshot) -> None:
        """One step of each migration that is not at work."""
        for row in sorted(standing, key=_urgency_of):
            if self.crew.cancel_periodic(row.run.job) is not None:
                continue
            # A look begins before the work of the last one ends: its view may be the older one.
            one = self._site.state.open_migration(row.run.job, row.run.attempt)
            if one is None:
                continue
            try:
                self._step(migration.reschedule(self._site, one, seen.leaving), seen)
            # The trouble of one job keeps no other from its step.
            except SlurmElasticError as error:
                log.warning("migration cannot go on job=%s error=%s", one.run.label, error)

    def _step(self, one: Migration, seen: Snapshot) -> None:
        if seen.answered and _is_safe(self._site, one, seen):
            after_requeue.stay_if_waiting(self._site, one, seen.jobs.get(one.run.job))
        elif _has_work(one, self._site.now()):
            self.crew.submit(one.run.job, _urgency_of(one), partial(self._work, one))
        elif seen.answered:
            self._watch(one, seen.jobs.get(one.run.job))

    def _watch(self, one: Migration, job: SlurmJob | None) -> None:
        """Steps that take a Slurm command or a disk sync are the crew's, as there may be many."""
        if job is None or job.restarts <= one.run.attempt:
            after_requeue.check_job(self._site, one, job)
        elif self._site.jobs.is_read_after(self._helped.get(job.id, float("-inf"))):
            self.crew.submit(job.id, _urgency_of(one), partial(self._help, one, job))

    def _help(self, one: Migration, job: SlurmJob) -> None:
        if after_requeue.check_job(self._site, one, job).over:
            self._helped.pop(job.id)
        else:  # a list from before says nothing of what was done now
            self._helped[job.id] = self._site.jobs.mark()

    def _work(self, one: Migration) -> None:
        if migration.continue_migration(self._site, one).step is not one.step:
            self._woken()


def _is_safe(site: CheckpointSite, one: Migration, seen: Snapshot) -> bool:
    """Nothing threatens it any more, and the machines of its nodes are still there."""
    if one.step is not Step.WAITING or not seen.leaving.keys().isdisjoint(one.what):
        return False
    # A node that is no pool's has no machine here that could be gone.
    return all(n in seen.machine_of or n not in site.pool_of for n in one.threatened)


def _urgency_of(move: Migration) -> Urgency:
    return (NO_DEADLINE if move.deadline is None else move.deadline, move.began)


def _has_work(move: Migration, now: float) -> bool:
    """Whether there is something to do for it now, besides watching."""
    if move.step is Step.WAITING:
        return move.at is not None and now >= move.at
    if move.step in (Step.SAVED, Step.REQUEUEING):
        return move.at is None or now >= move.at
    return move.step in (Step.PLANNED, Step.SAVING)
