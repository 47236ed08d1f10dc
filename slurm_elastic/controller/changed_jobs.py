"""The only module that changes the partitions, the begin time and the hold of waiting jobs.

Other parts say their wishes (``model.changed_jobs``). The values follow from all wishes of a job
and from its own values (``policies.launch.changed_jobs``), and only a difference is written. The
ledger remembers the own values of each changed job, so the job gets back exactly what it had, also
after a restart.

Measured on Slurm 22.05.8: partitions and begin time can be changed only while a job is pending
(else exit 1, "Job is no longer pending execution"). A change of an array's base id changes all
pending tasks and reports an error for running ones, so the error does not show what was changed.
The next look finds the jobs that still need a change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.grouping import group_by
from slurm_elastic.controller.context import Site
from slurm_elastic.model.changed_jobs import (
    Barred,
    ChangedJob,
    Held,
    JobValues,
    Misfit,
    Wish,
)
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.changed_jobs import (
    is_needed,
    is_same_begin,
    is_waiting,
    learn,
    new_record,
    record_of_task,
    values_of,
    without,
)
from slurm_elastic.policies.launch.order_note import noted_order

log = logging.getLogger(__name__)

RETRY_S = 300.0
"""Seconds after which a change that Slurm has refused is tried again."""
GIVE_BACK_RETRY_S = 30.0
"""The same for a job that gets its own partitions back: until then it may be unable to start."""

Evaluate = Callable[[Sequence[Wish]], JobValues]
Say = Callable[[SlurmJob, ChangedJob, Evaluate], ChangedJob]
"""Returns the record of a waiting job with the caller's own wishes replaced. The third argument
computes the job's values from wishes.
"""


class JobChange(Struct, frozen=True, kw_only=True):
    """A job whose wishes or values have changed. ``error``: Slurm has refused a change."""

    job: SlurmJob
    old_wishes: Sequence[Wish]
    record: ChangedJob
    is_changed: bool
    error: SlurmError | None = None

    @property
    def values(self) -> JobValues:
        """The job's present values."""
        return self.record.latest

    def gained(self) -> Sequence[Wish]:
        """The new wishes."""
        return [wish for wish in self.record.wishes if wish not in self.old_wishes]

    def lost(self) -> Sequence[Wish]:
        """The ended wishes."""
        return [wish for wish in self.old_wishes if wish not in self.record.wishes]


Report = Callable[[Sequence[JobChange]], None]


def public_partitions(site: Site) -> set[str]:
    """Return the partitions of public clouds."""
    return {c.partition_name for c in site.config.clouds if c.location is Location.PUBLIC}


def keep_wishes(job: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
    """Say nothing new."""
    del job, evaluate
    return record


def no_report(changes: Sequence[JobChange]) -> None:
    """Report nothing."""
    del changes


def change_jobs(
    site: Site,
    say: Say = keep_wishes,
    *,
    candidates: Collection[int] = (),
    report: Report = no_report,
) -> None:
    """Compute the values of all changed jobs and of the ``candidates``, and write the differences.
    ``report`` gets the changes. It gets them before SlurmError if Slurm gave no answer, because
    Slurm may have carried them out.
    """
    with site.job_lock:
        if candidates or site.ledger.changed_jobs.all():
            _ChangeRound(site).run(say, candidates, report)


def hold_until_released(site: Site, job: int) -> bool:
    """Hold the waiting job until a person releases it. Returns whether the job is held, by us
    or by a person. SlurmError if Slurm does not answer, or refuses to hold the job.
    """
    held: list[bool] = []

    def say(row: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
        del evaluate
        if row.id != job:
            return record
        held.append(True)
        # The wish stands already if Slurm gave no answer before, or another part has held the job.
        return replace(record, wishes=(*without(record.wishes, Held), Held()))

    changes: list[JobChange] = []
    change_jobs(site, say, candidates={job}, report=changes.extend)
    for change in changes:
        # Slurm may have refused another value of the job. Its refused hold has left the wishes.
        is_refused = change.job.id == job and Held() not in change.record.wishes
        if is_refused and change.error is not None:
            raise change.error
    return bool(held)


class Reordered(NamedTuple):
    """``changed``: the jobs with the new order. ``refused``: the jobs that Slurm refuses to change.
    The list of a job in neither of them has changed since it was read.
    """

    changed: Sequence[int]
    refused: Collection[int]


def reorder(site: Site, jobs: Sequence[SlurmJob], partitions: Sequence[str]) -> Reordered:
    """Give the jobs, which have these partitions, the new order of them. The order is the job's own
    from now on, and no wish.
    """
    with site.job_lock:
        rows = {row.key.number: row for row in site.ledger.changed_jobs.all()}
        others = [job for job in jobs if job.id not in rows]
        # A person may have changed the list while we waited for the lock, and no row would show it.
        queue = {job.id: job for job in site.slurm.jobs()} if others else {}
        others = [job for job in others if job.id in queue and _has_list(queue[job.id], partitions)]
        refused = _change(site, others, tuple(partitions), None) if others else {}
        ordered = [
            replace(row, own=replace(row.own, partitions=tuple(partitions)))
            for job in jobs
            if (row := rows.get(job.id)) and {*row.own.partitions} == {*partitions}
        ]
        if ordered:
            site.ledger.changed_jobs.keep(ordered)
            _ChangeRound(site).run(keep_wishes, (), no_report)
    changed = {*(job.id for job in others), *(row.key.number for row in ordered)} - {*refused}
    return Reordered([job.id for job in jobs if job.id in changed], {*refused})


def _has_list(job: SlurmJob, partitions: Collection[str]) -> bool:
    """Whether the job waits in these partitions, in any order."""
    return is_waiting(job) and {*job.partitions} == {*partitions}


def with_own_partitions(site: Site, jobs: Sequence[SlurmJob]) -> Sequence[SlurmJob]:
    """Return the jobs with their own lists in place of our changed lists."""
    own = {row.key.number: row.own.partitions for row in site.ledger.changed_jobs.all()}
    return [replace(job, partitions=own[job.id]) if job.id in own else job for job in jobs]


class _Step(Struct, frozen=True, kw_only=True):
    """The change of one job. ``record``: with the values after the change. ``shown``: the values
    before it. ``partitions``: the new list, empty if it stays. ``begin``: the new
    begin time, 0 for now, None if it stays. ``hold``: whether to hold or to release, None if that
    stays.
    """

    job: SlurmJob
    record: ChangedJob
    shown: JobValues
    partitions: tuple[str, ...] = ()
    begin: float | None = None
    hold: bool | None = None

    @property
    def row(self) -> ChangedJob:
        """The record until the job has been seen with its new values."""
        if not self.is_change:
            return self.record
        return replace(self.record, key=self.job.key, before=self.shown)

    @property
    def is_change(self) -> bool:
        return bool(self.partitions) or self.begin is not None or self.hold is not None

    @property
    def gives_back(self) -> bool:
        """Whether the job has its own list and begin time after the change."""
        own, latest = self.record.own, self.record.latest
        return (own.partitions, own.begin) == (latest.partitions, latest.begin)

    @property
    def without_list(self) -> _Step:
        """The same step, by which the job keeps the list and the begin time that Slurm shows."""
        shown = self.shown
        latest = replace(self.record.latest, partitions=shown.partitions, begin=shown.begin)
        record = replace(self.record, latest=latest)
        return replace(self, record=record, partitions=(), begin=None)


class _ChangeRound:
    """One reading of Slurm's queue and what follows from it. The caller holds ``job_lock``: a queue
    that was read before another thread's change would show that change as a person's.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._now = site.now()
        self._queue = {job.id: job for job in site.slurm.jobs()}
        self._public = public_partitions(site)
        self._public_nodes = {n for n, pool in site.pool_of.items() if site.is_public(pool)}
        self._errors: dict[int, SlurmError] = {}
        refused = site.refused_changes.snapshot()
        site.refused_changes.keep({key for key in refused if key[0] in self._queue})

    def run(self, say: Say, candidates: Collection[int], report: Report) -> None:
        rows = self._read_rows()
        learnt = {id_: learn(row, self._queue[id_], self._now) for id_, row in rows.items()}
        old_wishes = {id_: row.wishes for id_, row in rows.items()}
        waiting = [
            job
            for id_, job in self._queue.items()
            if (id_ in rows or id_ in candidates) and is_waiting(job)
        ]
        steps = self._decide(waiting, learnt, say)
        stored = {row.key.number: row for row in self._site.ledger.changed_jobs.all()}
        try:
            steps = self._write(steps, stored)
        finally:
            if reported := self._changes(steps, old_wishes):
                report(reported)

    def _changes(
        self, steps: Iterable[_Step], old_wishes: Mapping[int, Sequence[Wish]]
    ) -> list[JobChange]:
        changes = [
            JobChange(
                job=step.job, old_wishes=old_wishes.get(step.job.id, ()), record=step.record,
                is_changed=step.is_change, error=self._errors.get(step.job.id),
            )
            for step in steps
        ]  # fmt: skip
        return [c for c in changes if c.is_changed or c.error or c.gained() or c.lost()]

    def _read_rows(self) -> dict[int, ChangedJob]:
        """Return the rows of the queue's jobs, with rows for tasks that have left their array.
        Forget the other rows.
        """
        ledger, queue = self._site.ledger.changed_jobs, self._queue
        rows = {row.key.number: row for row in ledger.all()}
        # Before we forget or restore an array: after that, nothing shows the list of its tasks.
        tasks = [
            task_row
            for job in queue.values()
            if job.id not in rows
            and job.array in rows
            and (task_row := record_of_task(rows[job.array], job)) is not None
        ]
        if tasks:
            ledger.keep(tasks)
            rows |= {row.key.number: row for row in tasks}
        gone = [
            id_
            for id_, row in rows.items()
            if id_ not in queue or not queue[id_].key.may_follow(row.key)
        ]
        started = [
            id_
            for id_, row in rows.items()
            if id_ not in gone and not is_waiting(queue[id_]) and not is_needed(row, queue[id_])
        ]
        if gone or started:
            ledger.forget([*gone, *started])
        left = {*gone, *started}
        return {id_: row for id_, row in rows.items() if id_ not in left and is_waiting(queue[id_])}

    def _decide(
        self, waiting: Sequence[SlurmJob], learnt: Mapping[int, ChangedJob], say: Say
    ) -> list[_Step]:
        steps = [
            self._step(job, learnt.get(job.id) or new_record(job, (), self._now), say)
            for job in waiting
        ]
        changed = [s.job.id for s in steps if s.partitions and s.job.id not in learnt]
        if not changed:
            return steps
        # The order of a list that the submit filter has made is in its note alone.
        comments = self._site.slurm.admin_comments(changed)
        noted = {id_: noted_order(comments.get(id_, "")) for id_ in changed}
        return [
            self._step(step.job, new_record(step.job, noted[step.job.id], self._now), say)
            if noted.get(step.job.id)
            else step
            for step in steps
        ]

    def _step(self, job: SlurmJob, record: ChangedJob, say: Say) -> _Step:
        """Return what to change of the job. The step's record has the values after the change."""
        is_bound = not self._public_nodes.isdisjoint(job.required)
        evaluate = partial(
            values_of, record.own, public=self._public, is_bound=is_bound,
            is_refused=lambda names: self._is_refused(job.id, names), now=self._now,
        )  # fmt: skip
        record = say(job, record, evaluate)
        wishes = record.wishes
        values = evaluate(wishes)
        if values.is_held and job.is_held and not record.latest.is_held:
            # Leave a held job alone: Slurm would turn an administrator's hold into a user's hold,
            # which the user may release.
            wishes = without(wishes, Misfit, Held)
            values = evaluate(wishes)
        return self._difference(job, record, wishes, values)

    def _difference(
        self, job: SlurmJob, record: ChangedJob, wishes: tuple[Wish, ...], values: JobValues
    ) -> _Step:
        latest = record.latest
        must_list = latest.partitions != values.partitions or {*job.partitions} != {
            *values.partitions
        }
        if must_list and self._is_refused(job.id, values.partitions):
            must_list = False
            values = replace(values, partitions=latest.partitions)
        begin: float | None = None
        is_due = values.begin <= self._now
        if job.is_held:
            # Slurm does not show the begin time of a held job, so it cannot be restored.
            values = replace(values, begin=latest.begin)
        elif is_due and job.is_requeue_hold(self._now):
            # The requeue's own delay passes by itself. A job that leaves a cloud need not wait.
            leaves = must_list and not {*job.partitions} <= {*values.partitions}
            begin = 0.0 if leaves and _is_barred(wishes) else None
        elif not is_same_begin(job.begin, values.begin, self._now):
            begin = 0.0 if is_due else values.begin
        hold: bool | None = None
        if values.is_held and not job.is_held:
            hold = True
        elif latest.is_held and not values.is_held and job.is_held:
            # The holds of administrators and of Slurm itself stay.
            is_ours = not job.wait_reason.is_by_admin and not job.is_held_by_slurm
            hold = False if is_ours else None
        return _Step(
            job=job, record=replace(record, latest=values, wishes=wishes), shown=latest,
            partitions=values.partitions if must_list else (), begin=begin, hold=hold,
        )  # fmt: skip

    def _write(self, steps: Sequence[_Step], stored: dict[int, ChangedJob]) -> list[_Step]:
        """Save the records, change the jobs, and compute once more what Slurm has refused."""
        done: dict[int, _Step] = {}
        while steps:
            self._save(steps, stored)
            if self._site.ledger.end_only:
                # Only memory has the records. If this service ended now, its successor could not
                # give the jobs their own lists back. No machine starts in the meantime anyway.
                steps = [step if step.gives_back else step.without_list for step in steps]
                self._save(steps, stored)
            changes = [step for step in steps if step.is_change]
            not_updated = self._update(changes)
            updated = [step for step in changes if step.job.id not in not_updated]
            not_held = self._hold_or_release(updated)
            self._save_answers([step for step in updated if step.job.id not in not_held])
            done |= {step.job.id: step for step in steps}
            steps = [
                *(self._after_refused_update(s) for s in changes if s.job.id in not_updated),
                *(_after_refused_hold(s) for s in updated if s.job.id in not_held),
            ]
        return list(done.values())

    def _save(self, steps: Sequence[_Step], stored: dict[int, ChangedJob]) -> None:
        """Store the records that are needed, and forget the others. ``stored``: the ledger's
        records. It is kept up to date, because the records are saved again after a refusal.
        """
        rows = {step.job.id: step.row for step in steps}
        needed = {id_ for id_, row in rows.items() if is_needed(row, self._queue[id_])}
        ledger = self._site.ledger.changed_jobs
        if changed := {id_: rows[id_] for id_ in needed if rows[id_] != stored.get(id_)}:
            ledger.keep([*changed.values()])
            stored |= changed
        if left := [id_ for id_ in rows if id_ in stored and id_ not in needed]:
            ledger.forget(left)
            for id_ in left:
                del stored[id_]

    def _save_answers(self, steps: Sequence[_Step]) -> None:
        if steps:
            rows = [replace(step.row, is_answered=True) for step in steps]
            self._site.ledger.changed_jobs.keep(rows)

    def _update(self, steps: Sequence[_Step]) -> set[int]:
        """Change lists and begin times, the same new values in one command. Return the jobs that
        Slurm refuses to change.
        """
        refused: dict[int, SlurmError] = {}
        updates = [step for step in steps if step.partitions or step.begin is not None]
        for (partitions, begin), same in group_by(
            updates, lambda step: (step.partitions, step.begin)
        ).items():
            refused |= _change(self._site, [step.job for step in same], partitions, begin)
        self._errors |= refused
        return set(refused)

    def _hold_or_release(self, steps: Sequence[_Step]) -> set[int]:
        """Hold and release jobs. Return the jobs for which Slurm refuses it."""
        refused: dict[int, SlurmError] = {}
        for step in steps:
            if step.hold is None:
                continue
            try:
                if step.hold:
                    self._site.slurm.hold(step.job.id)
                else:
                    self._site.slurm.release(step.job.id)
            except SlurmError as error:
                if error.unanswered:
                    raise
                log.warning("job not changed job=%s error=%s", step.job.label, error)
                refused[step.job.id] = error
        self._errors |= refused
        return set(refused)

    def _after_refused_update(self, step: _Step) -> _Step:
        """Return the next step of a job whose new list or begin time Slurm has refused. Slurm has
        not been asked yet to hold or to release the job.
        """
        job = step.job
        if not step.partitions:
            is_held = step.shown.is_held if step.hold is None else step.hold
            record = replace(step.record, latest=replace(step.shown, is_held=is_held))
            return replace(step, record=record, begin=None)
        record = replace(step.record, latest=step.shown)
        wait_s = GIVE_BACK_RETRY_S if step.partitions == record.own.partitions else RETRY_S
        self._site.refused_changes[job.id, step.partitions] = self._site.monotonic() + wait_s
        return self._step(job, record, keep_wishes)

    def _is_refused(self, job: int, names: tuple[str, ...]) -> bool:
        retry_at = self._site.refused_changes.get((job, names))
        return retry_at is not None and self._site.monotonic() < retry_at


def _after_refused_hold(step: _Step) -> _Step:
    """Return the step of a job whose hold or release Slurm has refused, after all other changes."""
    latest = replace(step.record.latest, is_held=step.shown.is_held)
    record = replace(step.record, latest=latest)
    if step.hold:
        record = replace(record, wishes=without(record.wishes, Misfit, Held))
    return _Step(job=step.job, record=record, shown=latest)


def _is_barred(wishes: Sequence[Wish]) -> bool:
    """Whether the job must not or can never start in some partition."""
    return any(isinstance(wish, Barred | Misfit) for wish in wishes)


def _change(
    site: Site, jobs: Sequence[SlurmJob], partitions: tuple[str, ...], begin: float | None
) -> dict[int, SlurmError]:
    """Change the jobs in one command, or one by one if the command fails. Return the jobs that
    Slurm refuses to change, and its errors. SlurmError if Slurm does not answer.

    ``begin``: when the jobs may begin (Unix s), 0 for now, None if that stays.
    """
    # Slurm adds the seconds to the time of this command, and earlier commands of the round may have
    # taken minutes. A begin time that is late by as much would look like a person's.
    begin_in = None if begin is None else max(begin - site.now(), 0.0)
    try:
        site.slurm.change_pending(
            [job.id for job in jobs], partitions=partitions, begin_in=begin_in
        )
    except SlurmError as error:
        if error.unanswered:
            raise
        if len(jobs) > 1:
            singles = (_change(site, [job], partitions, begin) for job in jobs)
            return {id_: e for refused in singles for id_, e in refused.items()}
        log.warning("job not changed job=%s error=%s", jobs[0].label, error)
        return {jobs[0].id: error}
    return {}
