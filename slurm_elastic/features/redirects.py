"""Sends the waiting jobs of a migration to the other cloud, and gives them their own partitions
back when the order is over.

The decisions in the ledger say which jobs were sent, so a restarted daemon gives them back as well.
A job that runs in the other cloud when the order ends gets its partitions back if it is requeued.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.context import Site
from slurm_elastic.features.job_changes import change_pending
from slurm_elastic.model.causes.departures import (
    JobsRedirected,
    PartitionRefused,
    PartitionsRestored,
)
from slurm_elastic.model.directive import OPERATORS, Departure, Directive, describe
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.order_note import noted_order
from slurm_elastic.policies.repair.redirects import (
    Redirect,
    Route,
    due_back,
    own_order,
    redirected,
    routes,
    steps_of_tasks,
)
from slurm_elastic.state.audit_trail import job_subject, jobs_of

log = logging.getLogger(__name__)

SENT, BACK = "redirected", "partitions-restored"
LOOK_EVERY_S = 30.0
"""Seconds between two looks at redirected jobs while no order has ended: only a job that was
requeued after the end of its order may need a change.
"""
RETRY_S = 300.0
"""Seconds after which a job whose new partitions Slurm has refused is tried again."""


class Redirects:
    """Keeps in memory which jobs have other partitions because of an order."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._steps: dict[int, list[Redirect]] | None = None
        self._refused = ReportOnce[tuple[int, int]]()
        self._retry_at: dict[tuple[int, int], float] = {}
        self._arrived: set[tuple[int, int]] = set()
        self._in_force: frozenset[int] | None = None
        self._next_look = float("-inf")

    @property
    def is_done(self) -> bool:
        """Whether no job can need its partitions back. False until the decisions were read."""
        return self._steps == {}

    def send(self, directive: Directive, departure: Departure) -> None:
        """Give the waiting jobs of the emptied nodes the partition of the target cloud."""
        queue = self._site.slurm.jobs()
        self._forget_refusals({job.id for job in queue})
        self._known_steps().update(steps_of_tasks(queue, self._known_steps()))
        movable = self._without_changed(directive.number, queue)
        for route in self._routes(departure):
            for change, fitting in redirected(movable, route).items():
                try:
                    jobs = self._changed(directive, route, change, fitting)
                except SlurmError:
                    # Slurm may have changed them. Without the note they would never get their own
                    # partitions back; with it, jobs that were not changed keep theirs.
                    self._note(directive, change, fitting)
                    raise
                self._note(directive, change, jobs)

    def _without_changed(self, number: int, queue: Sequence[SlurmJob]) -> list[SlurmJob]:
        """Leave out each job that a person or another order has changed after this order sent it.
        Otherwise two orders would move a job to and fro for ever.
        """
        movable = []
        for job in queue:
            own = [s for s in self._known_steps().get(job.id, ()) if s.number == number]
            # Only a job that was seen with our partitions was changed by others. Slurm may
            # not have done our own change.
            is_ours = bool(own) and {*job.partitions} == {*own[-1].partitions}
            if is_ours:
                self._arrived.add((number, job.id))
            if is_ours or (number, job.id) not in self._arrived:
                movable.append(job)
        return movable

    def _note(self, directive: Directive, change: Redirect, jobs: Sequence[int]) -> None:
        """Record and remember the earlier partitions of these jobs, once for each change."""
        steps, step = self._known_steps(), replace(change, number=directive.number)
        new = [job for job in jobs if steps.get(job, [])[-1:] != [step]]
        if not new:
            return
        cause = JobsRedirected(
            partitions=change.partitions,
            earlier=change.earlier,
            number=directive.number,
            order_text=describe(directive, self._site.now()),
        )
        self._site.record(OPERATORS, SENT, [job_subject(job) for job in new], cause)
        for job in new:
            steps.setdefault(job, []).append(step)

    def _routes(self, departure: Departure) -> Iterator[Route]:
        site = self._site
        partitions = {name: cloud.partition_name for name, cloud in site.clouds.items()}
        if departure.to not in partitions:
            return iter(())  # the configuration has the cloud no more
        pools = tuple(site.pools.values())
        return routes(frozenset(departure.nodes), departure.to, pools, partitions)

    def _changed(
        self, directive: Directive, route: Route, change: Redirect, jobs: Sequence[int]
    ) -> list[int]:
        """Change the jobs in one command, or one by one if Slurm refuses that. Return the jobs that
        were changed. A refused job is tried again after ``RETRY_S``.
        """
        site, clock = self._site, self._site.monotonic()
        due = [job for job in jobs if self._retry_at.get((directive.number, job), 0.0) <= clock]
        if not due:
            return []
        try:
            site.slurm.change_pending(due, partitions=change.partitions)
        except SlurmError as error:
            if error.unanswered:
                raise
            if len(due) > 1:
                done = (self._changed(directive, route, change, [job]) for job in due)
                return [job for changed in done for job in changed]
            self._record_refusal(directive, route, due[0], error)
            self._retry_at[directive.number, due[0]] = clock + RETRY_S
            return []
        return due

    def _record_refusal(
        self, directive: Directive, route: Route, job: int, error: SlurmError
    ) -> None:
        if self._refused.is_news((directive.number, job)):
            cause = PartitionRefused(partition=route.target, error=str(error))
            self._site.record(OPERATORS, "not-redirected", [job_subject(job)], cause)
            log.info("not redirected job=%s reason=%s", job, cause)

    def give_back(self, in_force: Collection[int]) -> None:
        """Give waiting jobs their own partitions back whose order is not among ``in_force``, the
        numbers of the orders that hold.
        """
        site, orders = self._site, frozenset(in_force)
        steps = self._known_steps()
        has_ended = self._in_force is None or not self._in_force <= orders
        self._in_force = orders
        if not steps or (not has_ended and site.monotonic() < self._next_look):
            return
        self._next_look = site.monotonic() + LOOK_EVERY_S
        jobs = site.slurm.jobs()
        steps.update(steps_of_tasks(jobs, steps))
        self._forget_unless({job.id for job in jobs})
        due = due_back(jobs, self._known_steps(), orders)
        if due:
            self._restore(due)

    def _restore(self, due: Sequence[tuple[SlurmJob, Redirect]]) -> None:
        site = self._site
        comments = site.slurm.admin_comments([job.id for job, _ in due])
        by_change: dict[tuple[int, tuple[str, ...]], list[SlurmJob]] = {}
        for job, step in due:
            partitions = own_order(step.earlier, noted_order(comments.get(job.id, "")))
            by_change.setdefault((step.number, partitions), []).append(job)
        for (number, partitions), jobs in by_change.items():
            # A job that Slurm refuses to change is tried again at the next look.
            refused = change_pending(site, jobs, partitions=partitions)
            done = [job.id for job in jobs if job.id not in refused]
            self._undo(done)
            if done:
                cause = PartitionsRestored(partitions=partitions, number=number)
                site.record(OPERATORS, BACK, [job_subject(job) for job in done], cause)
                log.info("partitions restored jobs=%s reason=%s", done, cause)

    def _undo(self, jobs: Sequence[int]) -> None:
        steps = self._known_steps()
        for job in jobs:
            steps[job].pop()
            if not steps[job]:
                del steps[job]

    def _forget_unless(self, queued: Collection[int]) -> None:
        """Forget the jobs no longer in the queue."""
        self._steps = {job: rows for job, rows in self._known_steps().items() if job in queued}

    def _forget_refusals(self, queued: Collection[int]) -> None:
        self._refused.forget_unless(lambda key: key[1] in queued)
        self._retry_at = {key: at for key, at in self._retry_at.items() if key[1] in queued}
        self._arrived = {key for key in self._arrived if key[1] in queued}

    def _known_steps(self) -> dict[int, list[Redirect]]:
        """Read the decisions of an earlier daemon once."""
        if self._steps is None:
            self._steps = {}
            for decision in self._site.ledger.decisions.of_kinds(OPERATORS, (SENT, BACK)):
                for job in jobs_of(decision):
                    self._recall(job, decision.cause)
        return self._steps

    def _recall(self, job: int, cause: object) -> None:
        steps = self._known_steps()
        if isinstance(cause, JobsRedirected) and cause.earlier:
            step = Redirect(earlier=cause.earlier, partitions=cause.partitions, number=cause.number)
            steps.setdefault(job, []).append(step)
        elif isinstance(cause, PartitionsRestored) and steps.get(job):
            self._undo([job])
