"""Notes in the AdminComment of each job that waits for us, so that ``scontrol show job`` says why.

A look reads the queue and finds the note of each job, with the sentences of ``explain``. The notes
are then written a few each second. The comment belongs to others, too: we read it again before each
change. We remove the note when the job starts or waits for something else.
A restart loses nothing, because the notes are read from the jobs.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.processes.periodic import rest_after
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.waits.wait_texts import WaitTexts
from slurm_elastic.model import admin_comment
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.waits.wait_note import (
    NoteChange,
    WrittenNote,
    is_boot_note,
    is_same_cause,
    note_changes,
)
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)

WAIT = admin_comment.NoteKind.WAIT
PERIOD_S = 10.0
PAUSE_PER_DURATION = 20.0
"""After a look at the queue we pause this many times as long as it took (see ``rest_after``)."""
MAX_UPDATES = 5
"""Updates of jobs in a second. Each goes through the site's own job_submit script."""
MAX_REFRESHES = 1
"""The part of ``MAX_UPDATES`` for notes of which only times and figures have changed."""

SETTLE_S = 60.0
"""Seconds for which another cause, or none, must last before the note of a job that still waits is
changed: a sold-out cloud is open for a moment whenever it is asked again.
"""


def join(site: Site) -> Extensions | None:
    """Join unless the site has switched the notes off."""
    if not site.config.slurm.wait_notes or not site.clouds:
        return None
    return Extensions(parts=[("wait notes", lambda worker: WaitNotes(site, worker))])


class WaitNotes(Part):
    """``task``: the periodic task that the daemon runs."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self.task = SiteTask(
            site, worker, self.look, "wait notes", period=PERIOD_S,
            hurried=self._may_write, idle=self._is_idle,
        )  # fmt: skip
        self._texts = WaitTexts(site)
        self._written: dict[int, WrittenNote] = {}
        self._has_learnt = False
        self._left_alone: set[int] = set()
        self._differs_since: dict[int, float] = {}
        self._changes: deque[NoteChange] = deque()
        self._read_at = self._write_at = site.monotonic()

    def look(self) -> None:
        """Read the queue if it is time for that, then write some notes."""
        clock = self._site.monotonic()
        if clock >= self._read_at:
            self._changes = deque(self._find_changes())
            rest_s = rest_after(self._site.monotonic() - clock, PAUSE_PER_DURATION)
            self._read_at = clock + max(PERIOD_S, rest_s)
        if self._may_write(self._site.monotonic()):
            self._write_at = self._site.monotonic() + 1.0
            self._write()

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether no job can wait for us, so that slurmctld need not send the queue."""
        if not self._has_learnt or self._written or self._site.blocked or not state.writable:
            return False
        # Everything that keeps jobs from machines is in the ledger: when we refuse a request of
        # Slurm for a limit, a budget or a sold-out cloud, we hold its nodes.
        is_booting = any(machine.registered_at is None for machine in state.machines)
        return not (is_booting or state.launches or state.exclusions or state.directives)

    def _may_write(self, clock: float) -> bool:
        return bool(self._changes) and clock >= self._write_at

    def _find_changes(self) -> list[NoteChange]:
        jobs = self._site.slurm.jobs()
        written = self._learn(jobs)
        self._left_alone &= {job.id for job in jobs}
        tasks = Counter(job.array for job in jobs if job.array)
        # Slurm changes the waiting rest of an array only together with the tasks that run.
        shared = {job.id for job in jobs if job.task is None and tasks[job.array] > 1}
        new_notes = {
            job: admin_comment.fitted(WAIT, text)
            for job, text in self._texts.of(jobs)
            if job not in shared
        }
        self._keep_unsettled(jobs, new_notes)
        return note_changes(new_notes, written, self._left_alone, self._site.monotonic())

    def _keep_unsettled(self, jobs: Sequence[SlurmJob], new_notes: dict[int, str]) -> None:
        """Keep the note of each job that still waits, until its new cause has lasted."""
        clock, differs_since = self._site.monotonic(), self._differs_since
        self._differs_since = {}
        for job in jobs:
            note = self._written.get(job.id)
            is_waiting = not job.states.isdisjoint({"PENDING", "CONFIGURING"})
            if note is None or not is_waiting or is_boot_note(note.text):
                continue
            if not is_same_cause(note.text, new_notes.get(job.id, "")):
                since = self._differs_since[job.id] = differs_since.get(job.id, clock)
                if clock - since < SETTLE_S:
                    new_notes[job.id] = note.text

    def _learn(self, jobs: Sequence[SlurmJob]) -> dict[int, WrittenNote]:
        """Return the notes that the jobs carry: at the start from the jobs themselves."""
        clock = self._site.monotonic()
        if not self._has_learnt:
            comments = self._site.slurm.admin_comments() if jobs else {}
            notes = {job: admin_comment.note_of(text, WAIT) for job, text in comments.items()}
            self._written = {job: WrittenNote(text=t, at=clock) for job, t in notes.items() if t}
            self._has_learnt = True
        by_id = {job.id: job for job in jobs}
        written = {job: note for job, note in self._written.items() if job in by_id}
        for job in jobs:
            # A task that leaves its array takes a copy of the array's comment with it.
            if job.task is not None and job.array in self._written and job.id not in written:
                written[job.id] = self._written[job.array]
        self._written = written
        return written

    def _write(self) -> None:
        refreshes = 0
        for _ in range(min(MAX_UPDATES, len(self._changes))):
            change = self._changes[0]
            refreshes += change.is_refresh
            if refreshes > MAX_REFRESHES:
                return
            self._apply(change)
            self._changes.popleft()

    def _apply(self, change: NoteChange) -> None:
        written, comments = self._written, self._site.slurm.admin_comments([change.job])
        comment = comments.get(change.job)
        if comment is None or not self._is_ours_to_change(change, comments):
            written.pop(change.job, None)
            self._left_alone.add(change.job)
            return
        new_comment = admin_comment.with_note(comment, WAIT, change.text)
        if new_comment != comment:
            self._set(change.job, new_comment)
        # Only now: if Slurm gives no answer, the next look changes the note again.
        written.pop(change.job, None)
        if change.text:
            written[change.job] = WrittenNote(text=change.text, at=self._site.monotonic())

    def _set(self, job: int, comment: str) -> None:
        try:
            self._site.slurm.set_admin_comment(job, comment)
        except SlurmError as error:
            if error.unanswered:
                raise
            # The job has ended, or some tasks of the array have. The other tasks have the comment.
            log.info("wait not noted job=%d error=%s", job, error)

    def _is_ours_to_change(self, change: NoteChange, comments: Mapping[int, str]) -> bool:
        had_note = change.job in self._written
        # Another program has replaced the comment. It must not get the note again.
        if had_note and not admin_comment.note_of(comments[change.job], WAIT):
            return False
        # The number of an array stands for all its tasks, and they would get the same comment.
        return len({admin_comment.with_note(text, WAIT, "") for text in comments.values()}) == 1
