"""Saves of jobs that continue in place (by policy, or because a person asked), and the removal of
images of ended jobs.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.checkpointers.signal import taken_at
from slurm_elastic.ckptman import suspended, verdicts
from slurm_elastic.ckptman.decide import SAVE, JobFacts, JobPlan, is_transparent, run_of
from slurm_elastic.ckptman.executor import KeyedExecutor, WorkKind
from slurm_elastic.ckptman.first_image import verify_new
from slurm_elastic.ckptman.job_refusals import JobRefusals
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.origins import LAUNCHER_WAIT_S
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot, choose_method, is_working
from slurm_elastic.config.job_checkpoint import MethodChoice
from slurm_elastic.model.causes.checkpoints import (
    ImageMakesSafe,
    ImagesRemoved,
    JobNotHelped,
    SavedByMove,
    SaveFailed,
    SaveMade,
    SlurmRefused,
)
from slurm_elastic.model.causes.save_refusals import (
    JobNotRunning,
    NoMethodSet,
    SaveRefusal,
)
from slurm_elastic.model.causes.saves import ProbedSave, SaveOrdered
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.lost_state import LOST_STATE_TIMEOUT_S, may_be_lost
from slurm_elastic.policies.checkpoint.unsavable import TRIES, clearer, lacks_launcher, obstacle
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.state.ckptstate.orders import SaveOrder

log = logging.getLogger(__name__)

MIN_RETRY_AFTER_S = 30.0
"""Seconds between a failed save and the next try; longer for slow saves."""
UNSAVABLE_RETRY_AFTER_S = 600.0
"""Seconds between two tries to save a job that cannot be saved, because each try stops it for a
moment.
"""
PROBE_EVERY_S = 60.0
"""Seconds between two probes whether a job can still be saved."""
MIN_SAVE_TIMEOUT_S = 60.0
"""The shortest time-out of a save (s), and the duration of a save of unknown length."""
REMOVAL_BACKOFF = Backoff(30.0, 3600.0)
"""Seconds until the removal of images is tried again after it failed."""
MISSING_JOB_TIMEOUT_S = 300.0
"""Seconds for which a job must be missing from Slurm's lists before its images are removed."""
NO_HURRY = (float("inf"), 0.0)
"""The urgency of work without any deadline."""


class _FailedRemoval(Struct, frozen=True):
    """Images that could not be removed. ``pause`` (s) before the next try, which is at ``until``
    (Unix time).
    """

    pause: float = 0.0
    until: float = 0.0


class SavesInPlace:
    """Saves jobs that stay. It remembers, in memory only, which jobs not to save again yet; a crash
    loses no more than that.

    The loop and the crew's threads share this memory. KeyedExecutor does one piece of work for a
    job at a time. So a value cannot change between reading and writing it.
    """

    def __init__(self, site: CheckpointSite, orders: Orders) -> None:
        self._site, self.orders = site, orders
        self._retry_at: SharedDict[int, float] = SharedDict()
        self._probed_at: SharedDict[int, float] = SharedDict()
        self._expected_seconds: SharedDict[int, float] = SharedDict()
        self._failures_in_row: SharedDict[int, tuple[int, int, str]] = SharedDict()
        self._missing_since: SharedDict[int, float] = SharedDict()
        self._failed_removals: SharedDict[int, _FailedRemoval] = SharedDict()
        self._waiting_for_lift: SharedDict[int, JobRun] = SharedDict()
        self._refused_lifts = JobRefusals()
        self._has_read_images = False
        self._reports = ReportOnce[int]()

    def save_due(self, plans: Iterable[JobPlan], crew: KeyedExecutor) -> None:
        """Submit the saves that policies want, except of jobs whose last save has just failed."""
        for plan in plans:
            run = plan.facts.run
            if self._site.monotonic() < self._retry_at.get(run.job, -inf):
                continue
            # Not before a suspended job may be resumed: each save runs it for some seconds.
            if self._site.now() < suspended.resumable_at(self._site, run):
                continue
            for situation in plan.facts.situations:
                self._expected_seconds[run.job] = situation.dump
            crew.submit(
                run.job,
                plan.order,
                partial(self._save_or_take_late_image, plan),
                user=run.user,
                kind=WorkKind.PERIODIC,
            )

    def probe(self, snapshot: Snapshot, moving_jobs: frozenset[int], crew: KeyedExecutor) -> None:
        """Find out once a minute whether a job can still be saved. Otherwise, for a job that no
        policy saves before a notice, we would learn only at the notice that it cannot be saved.
        """
        for number, choice in snapshot.choices.items():
            probe_at = max(
                self._probed_at.get(number, -inf) + PROBE_EVERY_S, self._retry_at.get(number, -inf)
            )
            is_early = self._site.monotonic() < probe_at
            if number in moving_jobs or is_early or not is_transparent(choice):
                continue
            # Its launcher is suspended too and reports nothing new.
            if snapshot.jobs[number].is_suspended:
                continue
            facts = JobFacts(
                run=run_of(snapshot.jobs[number], choice), choice=choice, situations=()
            )
            plan = JobPlan(kind=SAVE, facts=facts, saves=True, cause=ProbedSave())
            if crew.submit(
                number, NO_HURRY, partial(self._save_if_hindered, plan), user=facts.run.user,
                kind=WorkKind.PERIODIC,
            ):  # fmt: skip
                # Only if the work was taken. A job that was busy is probed at the next tick.
                self._probed_at[number] = self._site.monotonic()

    def _save_if_hindered(self, plan: JobPlan) -> None:
        """Save even if we expect failure (the launcher reports a lasting obstacle, or earlier saves
        failed), so that the user gets the error message. Otherwise do nothing.
        """
        run, choice = plan.facts.run, plan.facts.choice
        text = self._site.checkpointers[choice.method].hindered(run)
        hindrance = text if text and obstacle(text) else ""
        if choice.move_only:
            self._judge_by_launcher(plan, hindrance)
        elif hindrance or run.job in self._site.state.unsavable():
            self._save(plan)

    def _judge_by_launcher(self, plan: JobPlan, hindrance: str) -> None:
        """Judge by the launcher's report alone whether the job can be saved. Its files come back
        from its machine only when its run ends. So an image of a save in place must not exist: if
        the machine were lost, the job would continue from it without these files.
        """
        site, run = self._site, plan.facts.run
        if hindrance:
            self._count_failure(plan, hindrance, self._expected_s(run))
            return
        self._failures_in_row.pop(run.job)
        verdict = site.state.unsavable().get(run.job)
        # The launcher reports its first check a minute after the start. So only this run's verdict
        # shows that it has checked. A job that was moved to on-demand machines stays there: no save
        # has proved that spot machines are safe for it.
        if verdict is None or verdict.attempt != run.attempt or verdict.moved:
            return
        if site.checkpointers[plan.facts.choice.method].is_at_work(run):
            verdicts.withdraw_verdict(site, run)

    def save_ordered(
        self, orders: Iterable[ReceivedOrder], snapshot: Snapshot, crew: KeyedExecutor
    ) -> None:
        """Submit the saves that people ordered. If other work is under way for the job, the order
        waits. If the job is unknown, it waits until Slurm has answered.
        """
        for received in orders:
            if not isinstance(received.order, SaveOrder) or crew.is_busy(received.order.job):
                continue
            number = received.order.job
            job = snapshot.jobs.get(number)
            # While Slurm is silent, a missing job may still exist, so the order is not refused.
            if job is None and not snapshot.answered:
                continue
            can_be_saved = job is not None and (is_working(job) or job.is_suspended_by_person)
            choice = choose_method(self._site, job) if job and can_be_saved else None
            refusal = _obstacle_to_saving(choice)
            if job is None or choice is None or refusal is not None:
                cause = JobNotHelped(cause=refusal or JobNotRunning())
                self._site.recorder.record("ckpt-now", "ckpt-refused", (f"job:{number}",), cause)
                self.orders.mark_done(received)
                continue
            facts = JobFacts(run=run_of(job, choice), choice=choice, situations=())
            if suspended.resumable_at(self._site, facts.run):
                continue
            ordered = SaveOrdered(who=received.order.who)
            plan = JobPlan(kind=SAVE, facts=facts, saves=True, cause=ordered)
            self._expected_seconds[number] = snapshot.saves.get(number, snapshot.expected)
            # Before the work is submitted, so that the next tick does not submit the same order
            # again.
            self.orders.mark_begun(received)
            crew.submit(
                number,
                (0.0, 0.0),
                partial(self._save_ordered_job, received, plan),
                user=facts.run.user,
                kind=WorkKind.PERIODIC,
                on_cancelled=partial(self._refuse_cancelled, received),
            )

    def _refuse_cancelled(self, received: ReceivedOrder) -> None:
        number = received.order.job if isinstance(received.order, SaveOrder) else 0
        self._site.recorder.record("ckpt-now", "ckpt-refused", (f"job:{number}",), SavedByMove())
        self.orders.mark_done(received)

    def _save_ordered_job(self, received: ReceivedOrder, plan: JobPlan) -> None:
        # In any case: an order that stays would be carried out again at each tick.
        try:
            self._save(plan)
        finally:
            self.orders.mark_done(received)

    def _save_or_take_late_image(self, plan: JobPlan) -> None:
        run = plan.facts.run
        late_image = self._late_image(plan)
        if late_image is not None:
            self._handle_image(plan, late_image)
        elif self._has_failed(run) and suspended.is_suspended(self._site, run):
            # The next try would resume the job once more, and so would each try after that.
            self._retry_at[run.job] = self._site.monotonic() + UNSAVABLE_RETRY_AFTER_S
        else:
            self._save(plan)

    def _has_failed(self, run: JobRun) -> bool:
        """Whether the last save of this run has failed."""
        return self._failures_in_row.get(run.job, (None, 0))[0] == run.attempt

    def _late_image(self, plan: JobPlan) -> Image | None:
        """The image of this run's last save, if that save was completed after its time-out. The
        image is whole all the same, and its duration tells how long to wait for the next save. A
        job of many GiB would otherwise stop for one save after the other, and none would count.
        """
        site, run = self._site, plan.facts.run
        # Only after a failed save of this run can an image be late. All others are in the state
        # already.
        if not self._has_failed(run):
            return None
        method = site.checkpointers[plan.facts.choice.method]
        newest_number = max((image.number for image in site.state.images(run.job)), default=0)
        try:
            newest = next(iter(method.images(run)), None)
            if newest is None or newest.attempt != run.attempt or newest.number <= newest_number:
                return None
            method.verify(newest)
        except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
            log.info("no late image job=%s error=%s", run.label, error)
            return None
        # The node's clock may be ahead of ours, and no image may be from the future.
        return replace(newest, taken=min(newest.taken, site.now()))

    def _save(self, plan: JobPlan) -> None:
        site, run = self._site, plan.facts.run
        method = site.checkpointers[plan.facts.choice.method]
        expected_s = self._expected_s(run)
        # Generous, because a save of a busy machine takes longer than the last one did.
        deadline = site.now() + max(3 * expected_s, MIN_SAVE_TIMEOUT_S)
        try:
            with suspended.resumed_for_save(site, run):
                image = method.checkpoint(run, deadline=deadline, stop=False)
            saved_at = taken_at(image, site.now())
            verify_new(site, method, image)
        except (CheckpointError, SlurmError) as error:
            self._handle_failure(plan, str(error), expected_s)
        except Exception as error:
            log.exception("the checkpoint method failed with an unexpected error job=%s", run.label)
            self._handle_failure(plan, f"{type(error).__name__}: {error}", expected_s)
        else:
            self._handle_image(plan, replace(image, taken=saved_at))

    def _expected_s(self, run: JobRun) -> float:
        """Seconds that the next save of the run may take."""
        return self._expected_seconds.get(run.job, MIN_SAVE_TIMEOUT_S)

    def _handle_image(self, plan: JobPlan, image: Image) -> None:
        site, run = self._site, plan.facts.run
        # First the state: a crash after it loses a log line, and not the image.
        site.state.add_image(image)
        site.recorder.count_save(image)
        cause = SaveMade(
            cause=plan.cause, number=image.number, size_bytes=image.size, took_s=image.seconds
        )
        self._site.recorder.record_run(run, "ckpt-saved", cause)
        self._failures_in_row.pop(run.job)
        # The image proves that the job can be saved and that a requeue loses nothing before it.
        verdicts.withdraw_verdict(site, run)
        self._lift_no_requeue(run)

    def _handle_failure(self, plan: JobPlan, error_text: str, expected_s: float) -> None:
        site, run, choice = self._site, plan.facts.run, plan.facts.choice
        site.recorder.count("ckpt_saves_total", method=choice.method, outcome="failed")
        site.recorder.record_run(run, "ckpt-failed", SaveFailed(error=error_text))
        self._count_failure(plan, error_text, expected_s)

    def _count_failure(self, plan: JobPlan, error_text: str, expected_s: float) -> None:
        """Judge the job if its saves failed several times in a row, and set the time of the next
        try.
        """
        site, run, choice = self._site, plan.facts.run, plan.facts.choice
        attempt, failures, last_error = self._failures_in_row.get(run.job, (run.attempt, 0, ""))
        # Failures of an earlier run say nothing: this run has other nodes and other connections.
        if attempt != run.attempt:
            failures, last_error = 0, ""
        failures, error_text = failures + 1, clearer(last_error, error_text)
        self._failures_in_row[run.job] = run.attempt, failures, error_text
        # Not after one failure: a step or a connection may be gone at the next save.
        is_unsavable = (
            failures >= TRIES
            and not self._launcher_may_wait(run, error_text)
            and verdicts.judge_run(site, run, choice, error_text)
        )
        self._retry_at[run.job] = site.monotonic() + max(
            UNSAVABLE_RETRY_AFTER_S if is_unsavable else MIN_RETRY_AFTER_S, expected_s
        )

    def _launcher_may_wait(self, run: JobRun, error_text: str) -> bool:
        """Whether the launcher of a restarted run may still wait for its user's name, the lock or
        the images. It has then not reported that the run is under it.
        """
        is_young = self._site.now() - run.started < LAUNCHER_WAIT_S
        return run.attempt > 0 and is_young and lacks_launcher(error_text)

    def _lift_no_requeue(self, run: JobRun) -> None:
        """Once a ``--no-requeue`` job has an image, it continues from there instead of starting
        over. So we lift the setting; otherwise Slurm would end the job with its node.
        """
        job = self._site.jobs.last.get(run.job)
        if job is None:
            return
        if run.job in self._lifted_for_now():
            # Its own setting is restored once the job runs, which would undo our lift. So we lift
            # after that.
            self._waiting_for_lift[run.job] = run
            return
        if job.requeue:
            return
        try:
            requeue_setting.lift_for_good(self._site.slurm, run.job)
        except SlurmError as error:
            # Slurm would end the job with its node, and no other save may come before that.
            self._waiting_for_lift[run.job] = run
            if self._refused_lifts.put_off(run.job, str(error), self._site.monotonic()):
                cause = SlurmRefused(error=str(error))
                self._site.recorder.record_run(run, "ckpt-no-requeue", cause)
        else:
            self._refused_lifts.clear(run.job)
            self._site.recorder.record_run(run, "ckpt-requeue-lifted", ImageMakesSafe())

    def _lifted_for_now(self) -> frozenset[int]:
        """Jobs that may be requeued only until they run. The service that lifted ``--no-requeue``
        restores it then.
        """
        try:
            return frozenset(job for job, _ in self._site.ledger.requeues.lifted())
        except sqlite3.Error:
            # Without the ledger we cannot know. Lifting too early does no harm: the lift is tried
            # again after the next save.
            return frozenset()

    def lift_waiting_requeues(self, snapshot: Snapshot) -> None:
        """Lift ``--no-requeue`` of saved jobs if Slurm refused that at the save, or if another
        service restored the setting after it.
        """
        if not self._has_read_images:
            self._has_read_images = True
            self._remember_saved_runs(snapshot)
        waiting_runs = self._waiting_for_lift.snapshot()
        lifted_jobs = self._lifted_for_now() if waiting_runs else frozenset()
        may_ask, now = self._refused_lifts.may_ask, self._site.monotonic()
        due_jobs = [number for number in waiting_runs.keys() - lifted_jobs if may_ask(number, now)]
        if not due_jobs:
            return
        try:
            # Read a new list: an older one may show the job before --no-requeue was restored.
            jobs = self._site.jobs.read(refresh=True)
        except SlurmError:
            return  # the next tick tries again
        for run in [self._waiting_for_lift.pop(number) for number in due_jobs]:
            if run is not None and run.job in jobs and jobs[run.job].restarts == run.attempt:
                self._lift_no_requeue(run)

    def _remember_saved_runs(self, snapshot: Snapshot) -> None:
        """Remember the runs that were saved before this service started, while their lift was
        temporary or Slurm refused it.
        """
        lifted_jobs = self._lifted_for_now()
        for number in snapshot.images.keys() & snapshot.jobs.keys():
            job, choice = snapshot.jobs[number], snapshot.choices.get(number)
            is_lifted = job.requeue and number not in lifted_jobs
            has_image = any(image.attempt == job.restarts for image in snapshot.images[number])
            if choice and has_image and not is_lifted:
                self._waiting_for_lift[number] = run_of(job, choice)

    def forget(self, snapshot: Snapshot, crew: KeyedExecutor) -> None:
        """Forget jobs that Slurm no longer lists. Most jobs never had an image, so we do not wait
        until their images are removed. We keep jobs with images, to know since when they are
        missing and why their images could not be removed.
        """
        kept_jobs = snapshot.jobs.keys() | snapshot.images.keys() | snapshot.unsavable.keys()
        memories: tuple[SharedDict[int, Any], ...] = (
            self._retry_at, self._probed_at, self._expected_seconds, self._failures_in_row,
            self._missing_since, self._failed_removals, self._waiting_for_lift,
        )  # fmt: skip
        for memory in memories:
            for number in memory.snapshot().keys() - kept_jobs:
                if not crew.is_busy(number):  # its save may still write here
                    memory.pop(number)
        self._refused_lifts.keep(kept_jobs)
        self._reports.forget_unless(lambda number: number in kept_jobs or crew.is_busy(number))

    def remove_images(
        self, snapshot: Snapshot, moving_jobs: frozenset[int], crew: KeyedExecutor
    ) -> None:
        """Submit the removal of the images of ended jobs, and of jobs that Slurm has not listed for
        a while. The crew does it, because it may take long, for example if the node of an image is
        gone.
        """
        now = self._site.now()
        for number in snapshot.unsavable:
            if number not in moving_jobs and self._is_over(number, snapshot.jobs):
                verdicts.forget(self._site, number)
        for number, (image, *_) in snapshot.images.items():
            if number in moving_jobs or not self._is_over(number, snapshot.jobs):
                continue
            if now >= self._failed_removals.get(image.job, _FailedRemoval()).until:
                crew.submit(
                    image.job, NO_HURRY, partial(self._remove, image), kind=WorkKind.REMOVAL
                )

    def _remove(self, image: Image) -> None:
        """Remove the images, unless the job was requeued since."""
        site = self._site
        try:
            if not self._is_over(image.job, site.jobs.read()):
                return
            method = site.checkpointers.get(image.method)
            if method is None:
                self._postpone_removal(
                    image, f"checkpoint method {image.method!r} cannot be used now"
                )
                return
            method.remove(image.job)
        except (CheckpointError, OSError, SlurmError) as error:
            self._postpone_removal(image, str(error))
            return
        site.state.forget_images_of(image.job)
        site.recorder.record(
            f"ckpt-{image.label}", "ckpt-removed", (f"job:{image.job}",), ImagesRemoved()
        )

    def _postpone_removal(self, image: Image, error_text: str) -> None:
        """Try the removal again after longer and longer pauses. Each reason is logged once."""
        pause = REMOVAL_BACKOFF.longer(self._failed_removals.get(image.job, _FailedRemoval()).pause)
        self._failed_removals[image.job] = _FailedRemoval(
            pause=pause, until=self._site.now() + pause
        )
        if self._reports.is_news(image.job, error_text):
            log.warning(
                "the images of a job cannot be removed, it is retried job=%s error=%s",
                image.label,
                error_text,
            )

    def _is_over(self, number: int, jobs: Mapping[int, SlurmJob]) -> bool:
        job = jobs.get(number)
        if job is None:
            # Not by the head's clock: a step of an hour would remove all images at once.
            clock = self._site.monotonic()
            timeout_s = LOST_STATE_TIMEOUT_S if may_be_lost(number, jobs) else MISSING_JOB_TIMEOUT_S
            return clock - self._missing_since.setdefault(number, clock) > timeout_s
        self._missing_since.pop(number)
        live_states = job.states & {"RUNNING", "PENDING", "COMPLETING", "STOPPED", "SUSPENDED"}
        return bool(job.states & ENDED) and not live_states


def _obstacle_to_saving(choice: MethodChoice | None) -> SaveRefusal | None:
    """Why a job cannot be saved now. ``choice`` is None if the job does not run."""
    if choice is None:
        return JobNotRunning()
    if choice.move_only:
        return choice.refused or choice.why_move_only
    if choice.method == "none":
        return choice.refused or NoMethodSet()
    return None
