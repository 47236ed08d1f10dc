"""The work that a job does again where it does not go on from a save of just before: its user reads
that in the job's own output, and others in the journal.
"""

from __future__ import annotations

import logging
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.local_time import moment
from slurm_elastic.ckptman.decide import TRANSPARENT_METHODS, run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.origins import StartedRun, read_started_run
from slurm_elastic.ckptman.recorder import lost_seconds
from slurm_elastic.ckptman.site import CheckpointSite, write_to_job_output
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.threat import Cause
from slurm_elastic.state.ckptstate.facts import Migration, Step

MIN_REPORTED_LOSS_S = 60.0
"""Seconds of work that nobody need be told of: a save and a move cost some of them in any case."""
_LEAST_URGENT = (float("inf"), 0.0)
_UNANNOUNCED = "its run ended without a notice"


def describe_start(move: Migration, run: StartedRun) -> str:
    """The run's beginning, for a person: what work that cost, and why it is not the newest save."""
    cost = f", {_describe_loss(move)}" if is_costly(move) else ""
    return f"{run.source}{cost}{f': {run.why}' if run.why else ''}"


def is_costly(move: Migration) -> bool:
    """Whether its next run does much again."""
    return lost_seconds(move) >= MIN_REPORTED_LOSS_S


def _describe_loss(move: Migration) -> str:
    minutes = round(lost_seconds(move) / 60)
    return f"{minutes} minute{'s' if minutes > 1 else ''} of its work must be done again"


def notify_user(site: CheckpointSite, move: Migration, where: str, run: StartedRun) -> None:
    """Two lines in the job's own output, which Slurm may have begun anew."""
    at = moment(move.began)
    if move.renewed and run.image is not None:
        lines = (
            f"slurm-elastic: this job was saved at {at}, as {move.reason}",
            f"slurm-elastic: it goes on from {run.source} on {where}, with its full time limit",
        )
    else:
        then = "begins anew" if run.image is None else f"goes on from {run.source}"
        begins = describe_start(move, run).removeprefix(run.source)
        lines = (
            f"slurm-elastic: this job was requeued at {at}: {move.reason}",
            f"slurm-elastic: it {then} on {where}{begins}",
        )
    try:
        write_to_job_output(site, move.run.job, *lines)
    except SlurmError as error:
        site.recorder.record_run(move.run, "ckpt-not-told", str(error), level=logging.WARNING)


class _LastWork(Struct, frozen=True):
    """A run, and when it was last seen at work."""

    run: JobRun
    method: str
    at: float


class UnannouncedEnds:
    """Runs that ended without a move of ours, as with a node that was lost: what the next one goes
    on from is told, too. In memory: what ends while the service is away is not told.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._worked: dict[int, _LastWork] = {}
        self._lost: dict[int, Migration] = {}

    def report(self, seen: Snapshot, crew: KeyedExecutor) -> None:
        """One look, by a list of jobs of this moment."""
        for known in (self._worked, self._lost):
            for number in known.keys() - seen.jobs.keys():
                known.pop(number)
        for number, choice in seen.choices.items():
            if choice.method not in TRANSPARENT_METHODS:
                continue
            job = seen.jobs[number]
            # A suspended job has done no work since.
            at = job.suspended or seen.now
            self._compare(job, _LastWork(run_of(job, choice), choice.method, at))
            if number in self._lost:
                work = partial(self._tell, self._lost[number], job)
                crew.submit(number, _LEAST_URGENT, work)

    def _compare(self, job: SlurmJob, now: _LastWork) -> None:
        before = self._worked.get(job.id)
        self._worked[job.id] = now
        if before is None or before.run.attempt >= now.run.attempt:
            return
        moves = self._site.state.migrations_of(job.id)
        # The end of a run that a move of ours has ended is told with that.
        if all(move.run.attempt < before.run.attempt for move in moves):
            self._lost[job.id] = self._as_move(before)

    def _as_move(self, before: _LastWork) -> Migration:
        """That run's end as a move, which is kept nowhere: nobody has to carry it on."""
        image = next(iter(self._site.state.images(before.run.job)), None)
        return Migration(
            run=before.run, method=before.method, threatened=(), reason=_UNANNOUNCED,
            step=Step.REQUEUED, began=before.at, changed=before.at, cause=Cause.RECLAIM,
            image=image, reached={str(Step.REQUEUED): before.at},
        )  # fmt: skip

    def _tell(self, lost: Migration, job: SlurmJob) -> None:
        run = read_started_run(self._site, lost, job)
        if run is None:
            return
        self._lost.pop(job.id, None)
        where = ",".join(job.nodes)
        done = replace(lost, image=run.image)
        text = f"{_UNANNOUNCED}; it runs on {where}, from {describe_start(done, run)}"
        told = bool(run.why) or is_costly(done)
        level = logging.WARNING if told else logging.INFO
        self._site.recorder.record_run(lost.run, "ckpt-back", text, level=level)
        if told or (run.image is None and lost.image is not None):
            notify_user(self._site, done, where, run)
