"""Saves of jobs that go on afterwards, by policy or as somebody asks for one, and the end of images
that nobody needs any more.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman import suspended, verdicts
from slurm_elastic.ckptman.decide import SAVE, JobFacts, JobPlan, is_transparent, run_of
from slurm_elastic.ckptman.executor import KeyedExecutor, WorkKind
from slurm_elastic.ckptman.job_settings import MethodChoice
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot, choose_method, is_working
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.policies.checkpoint.unsavable import TRIES, clearer, obstacle
from slurm_elastic.slurm.client import requeue_setting
from slurm_elastic.state.ckptstate.orders import SaveOrder

log = logging.getLogger(__name__)

MIN_RETRY_AFTER_S = 30.0
"""Seconds after a save that failed before the next one is tried; longer for a slow one."""
UNSAVABLE_RETRY_AFTER_S = 600.0
"""The same for a job that cannot be saved: each try stops it for a moment."""
PROBE_EVERY_S = 60.0
"""Seconds between two looks whether a job can be saved still."""
MIN_SAVE_TIMEOUT_S = 60.0
REMOVAL_BACKOFF = Backoff(30.0, 3600.0)
"""Seconds until images that could not be removed are tried again."""
MISSING_JOB_TIMEOUT_S = 300.0
"""Seconds that a job must be missing from Slurm's lists before its images go."""
EMPTY_LIST_TIMEOUT_S = 3600.0
"""The same while Slurm lists no job. A slurmctld that lost its state lists no job at all, and a
person may restore that state.
"""
NO_HURRY = (float("inf"), 0.0)
"""The order of what has no hurry at all."""


class _FailedRemoval(Struct, frozen=True):
    """Images that could not be removed, and when the next try is due."""

    pause: float = 0.0
    until: float = 0.0


class SavesInPlace:
    """Which jobs not to ask again yet. In memory: a crash loses no more than that.

    The loop and the crew's threads share what is remembered of jobs. One piece of work at a time is
    done for a job (``KeyedExecutor``), so a value that is read and then written is still the same.
    """

    def __init__(self, site: CheckpointSite, orders: Orders) -> None:
        self._site, self.orders = site, orders
        self._not_before: SharedDict[int, float] = SharedDict()
        self._doubted: SharedDict[int, float] = SharedDict()
        self._expected: SharedDict[int, float] = SharedDict()
        self._failures: SharedDict[int, tuple[int, int, str]] = SharedDict()
        self._missing: SharedDict[int, float] = SharedDict()
        self._staying: SharedDict[int, _FailedRemoval] = SharedDict()
        self._to_lift: SharedDict[int, JobRun] = SharedDict()
        self._reports = ReportOnce[int]()

    def save_due(self, plans: Iterable[JobPlan], crew: KeyedExecutor) -> None:
        """Have jobs saved that go on afterwards, but for those whose last save has just failed."""
        for plan in plans:
            run = plan.facts.run
            due = max(self._not_before.get(run.job, 0.0), suspended.resumable_at(self._site, run))
            if self._site.now() < due:
                continue
            for situation in plan.facts.situations:
                self._expected[run.job] = situation.dump
            crew.submit(run.job, plan.order, partial(self._due, plan), kind=WorkKind.PERIODIC)

    def probe(self, seen: Snapshot, moving: frozenset[int], crew: KeyedExecutor) -> None:
        """See once a minute whether a job can be saved still: where no policy saves it before a
        notice, nobody would know until then that it cannot.
        """
        for number, choice in seen.choices.items():
            due = max(
                self._doubted.get(number, 0.0) + PROBE_EVERY_S, self._not_before.get(number, 0.0)
            )
            if number in moving or self._site.now() < due or not is_transparent(choice):
                continue
            if seen.jobs[number].is_suspended:  # so is its launcher, which says nothing new
                continue
            facts = JobFacts(run=run_of(seen.jobs[number], choice), choice=choice, situations=())
            plan = JobPlan(
                kind=SAVE, facts=facts, saves=True, reason="it is seen whether it can be"
            )
            if crew.submit(number, NO_HURRY, partial(self._try, plan), kind=WorkKind.PERIODIC):
                self._doubted[number] = self._site.now()

    def _try(self, plan: JobPlan) -> None:
        """A save, where its launcher says that it could not be made, and not for something that
        passes by itself, or where the last ones could not: it fails in the words for the user.
        """
        run = plan.facts.run
        hindered = self._site.checkpointers[plan.facts.choice.method].hindered(run)
        if run.job in self._site.state.unsavable() or (hindered and obstacle(hindered)):
            self._save(plan)

    def save_ordered(
        self, orders: Iterable[ReceivedOrder], seen: Snapshot, crew: KeyedExecutor
    ) -> None:
        """Have the jobs saved that are asked for; one that something is under way for, after that,
        and one that is not known before Slurm has answered, when it does.
        """
        for asked in orders:
            if not isinstance(asked.order, SaveOrder) or crew.is_busy(asked.order.job):
                continue
            number = asked.order.job
            job = seen.jobs.get(number)
            if job is None and not seen.answered:
                continue
            saved = job is not None and (is_working(job) or job.is_suspended_by_person)
            choice = choose_method(self._site, job) if job and saved else None
            why = _obstacle_to_saving(choice)
            if job is None or choice is None or why:
                self._site.recorder.record("ckpt-now", "ckpt-refused", (f"job:{number}",), why)
                self.orders.mark_done(asked)
                continue
            facts = JobFacts(run=run_of(job, choice), choice=choice, situations=())
            if suspended.resumable_at(self._site, facts.run):
                continue
            plan = JobPlan(kind=SAVE, facts=facts, saves=True, reason="an operator asked for it")
            self._expected[number] = seen.saves.get(number, seen.expected)
            self.orders.mark_begun(asked)
            crew.submit(
                number, (0.0, 0.0), partial(self._asked, asked, plan), kind=WorkKind.PERIODIC,
                on_cancelled=partial(self._refuse_cancelled, asked),
            )  # fmt: skip

    def _refuse_cancelled(self, asked: ReceivedOrder) -> None:
        number = asked.order.job if isinstance(asked.order, SaveOrder) else 0
        why = "it is on its way to other nodes, and saved for that"
        self._site.recorder.record("ckpt-now", "ckpt-refused", (f"job:{number}",), why)
        self.orders.mark_done(asked)

    def _asked(self, asked: ReceivedOrder, plan: JobPlan) -> None:
        try:
            self._save(plan)
        finally:
            self.orders.mark_done(asked)

    def _due(self, plan: JobPlan) -> None:
        late = self._late_image(plan)
        if late is None:
            self._save(plan)
        else:
            self._saved(plan, late)

    def _late_image(self, plan: JobPlan) -> Image | None:
        """The image of this run's last save, where that ended after nobody waited for it any more.
        It is whole all the same, and what it took tells how long the next one is to be waited for:
        a job of many GiB would else stand still for one save after the other, and none would count.
        """
        site, run = self._site, plan.facts.run
        if self._failures.get(run.job, (None, 0))[0] != run.attempt:
            return None
        method = site.checkpointers[plan.facts.choice.method]
        known = max((image.number for image in site.state.images(run.job)), default=0)
        try:
            newest = next(iter(method.images(run)), None)
            if newest is None or newest.attempt != run.attempt or newest.number <= known:
                return None
            method.verify(newest)
        except Exception as error:  # noqa: BLE001 - a shared directory may fail in many ways
            log.info("no late image job=%s error=%s", run.label, error)
            return None
        # The node's clock may be ahead of ours.
        return replace(newest, taken=min(newest.taken, site.now()))

    def _save(self, plan: JobPlan) -> None:
        site, run = self._site, plan.facts.run
        method = site.checkpointers[plan.facts.choice.method]
        dump = self._expected.get(run.job, MIN_SAVE_TIMEOUT_S)
        until = site.now() + max(3 * dump, MIN_SAVE_TIMEOUT_S)
        try:
            with suspended.resumed_for_save(site, run):
                image = method.checkpoint(run, deadline=until, stop=False)
            taken = site.now()  # by our clock, as notices and intervals are: the node's may differ
            method.verify(image)
        except (CheckpointError, SlurmError) as error:
            self._failed(plan, str(error), dump)
        except Exception as error:
            log.exception("method fails job=%s", run.label)
            self._failed(plan, f"{type(error).__name__}: {error}", dump)
        else:
            self._saved(plan, replace(image, taken=taken))

    def _saved(self, plan: JobPlan, image: Image) -> None:
        site, run = self._site, plan.facts.run
        site.state.add_image(image)
        site.recorder.count_save(image)
        text = f"{plan.reason}: save {image.number}, {image.size} bytes in {image.seconds:.1f} s"
        self._site.recorder.record_run(run, "ckpt-saved", text)
        self._failures.pop(run.job)
        verdicts.withdraw_verdict(site, run)
        self._lift_no_requeue(run)

    def _failed(self, plan: JobPlan, why: str, dump: float) -> None:
        site, run, choice = self._site, plan.facts.run, plan.facts.choice
        site.recorder.count("ckpt_saves_total", method=choice.method, outcome="failed")
        site.recorder.record_run(run, "ckpt-failed", why)
        attempt, failures, before = self._failures.get(run.job, (run.attempt, 0, ""))
        if attempt != run.attempt:
            failures, before = 0, ""
        failures, why = failures + 1, clearer(before, why)
        self._failures[run.job] = run.attempt, failures, why
        hopeless = failures >= TRIES and verdicts.judge_run(site, run, choice, why)
        self._not_before[run.job] = site.now() + max(
            UNSAVABLE_RETRY_AFTER_S if hopeless else MIN_RETRY_AFTER_S, dump
        )

    def _lift_no_requeue(self, run: JobRun) -> None:
        """From its first image on a ``--no-requeue`` job goes on instead of beginning anew; without
        this, Slurm would end it with its node.
        """
        job = self._site.jobs.last.get(run.job)
        if job is None:
            return
        if run.job in self._lifted_for_now():
            self._to_lift[run.job] = run
            return
        if job.requeue:
            return
        try:
            requeue_setting.lift_for_good(self._site.slurm, run.job)
        except SlurmError as error:
            self._site.recorder.record_run(run, "ckpt-no-requeue", str(error))
        else:
            self._site.recorder.record_run(
                run, "ckpt-requeue-lifted", "--no-requeue is lifted: there is an image"
            )

    def _lifted_for_now(self) -> frozenset[int]:
        """The jobs that may be requeued only until they run. The service that lifted
        ``--no-requeue`` puts it back.
        """
        try:
            return frozenset(job for job, _ in self._site.ledger.requeues.lifted())
        except sqlite3.Error:
            return frozenset()

    def lift_requeue_after_others(self) -> None:
        """Lift ``--no-requeue`` again where another service has put it back since the job's first
        save.
        """
        waiting = self._to_lift.snapshot()
        due = waiting.keys() - self._lifted_for_now() if waiting else ()
        if not due:
            return
        try:
            # A list from before it was put back would show a job that may be requeued.
            jobs = self._site.jobs.read(refresh=True)
        except SlurmError:
            return  # the next look asks again
        for run in [self._to_lift.pop(number) for number in due]:
            if run is not None and run.job in jobs and jobs[run.job].restarts == run.attempt:
                self._lift_no_requeue(run)

    def forget(self, seen: Snapshot, crew: KeyedExecutor) -> None:
        """Forget jobs that Slurm no longer has. Most of them never had an image, so no end of an
        image is waited for. Of a job with images we keep since when it is missing, and why its
        images stay.
        """
        kept = seen.jobs.keys() | seen.images.keys() | seen.unsavable.keys()
        memories: tuple[SharedDict[int, Any], ...] = (
            self._not_before, self._doubted, self._expected, self._failures, self._missing,
            self._staying, self._to_lift,
        )  # fmt: skip
        for memory in memories:
            for number in memory.snapshot().keys() - kept:
                if not crew.is_busy(number):  # its save may still write here
                    memory.pop(number)
        self._reports.forget_unless(lambda number: number in kept or crew.is_busy(number))

    def remove_images(self, seen: Snapshot, moving: frozenset[int], crew: KeyedExecutor) -> None:
        """Have the images of jobs removed that have ended, or that Slurm has not known for a while.
        That may take long, as where a node is asked that is gone.
        """
        now = self._site.now()
        for number in seen.unsavable:
            if number not in moving and self._is_over(number, seen.jobs, now):
                verdicts.forget(self._site, number)
        for number, (image, *_) in seen.images.items():
            if number in moving or not self._is_over(number, seen.jobs, now):
                continue
            if now >= self._staying.get(image.job, _FailedRemoval()).until:
                crew.submit(
                    image.job, NO_HURRY, partial(self._remove, image), kind=WorkKind.REMOVAL
                )

    def _remove(self, image: Image) -> None:
        """Unless the job was requeued by somebody in the meantime."""
        site = self._site
        try:
            if not self._is_over(image.job, site.jobs.read(), site.now()):
                return
            method = site.checkpointers.get(image.method)
            if method is None:
                self._stay(image, f"checkpoint method {image.method!r} cannot be used now")
                return
            method.remove(image.job)
        except (CheckpointError, OSError, SlurmError) as error:
            self._stay(image, str(error))
            return
        site.state.forget_images_of(image.job)
        site.recorder.record(
            f"ckpt-{image.label}", "ckpt-removed", (f"job:{image.job}",),
            "the job has ended, its images are removed",
        )  # fmt: skip

    def _stay(self, image: Image, why: str) -> None:
        """Told once, though it is tried again, ever later: nobody can remove them at the moment."""
        pause = REMOVAL_BACKOFF.longer(self._staying.get(image.job, _FailedRemoval()).pause)
        self._staying[image.job] = _FailedRemoval(pause=pause, until=self._site.now() + pause)
        if self._reports.is_news(image.job, why):
            log.warning("images stay job=%s error=%s", image.label, why)

    def _is_over(self, number: int, jobs: Mapping[int, SlurmJob], now: float) -> bool:
        job = jobs.get(number)
        if job is None:
            patience_s = MISSING_JOB_TIMEOUT_S if jobs else EMPTY_LIST_TIMEOUT_S
            return now - self._missing.setdefault(number, now) > patience_s
        self._missing.pop(number)
        alive = job.states & {"RUNNING", "PENDING", "COMPLETING", "STOPPED", "SUSPENDED"}
        return bool(job.states & ENDED) and not alive


def _obstacle_to_saving(choice: MethodChoice | None) -> str:
    """Why a job is not saved now, if so; None: it is not at work."""
    if choice is None:
        return "it does not run"
    if choice.move_only:
        return choice.refused or "it ends when it saves itself: that is only done to move it"
    if choice.method == "none":
        return choice.refused or "no checkpoint method is set for it"
    return ""
