"""Reports after each move where the job's next run began and what work it must repeat: to its user
in the job's own output, to others as a decision.

We write the lines by ``scontrol notify``. slurmstepd adds them to the batch script's standard error
after it has truncated the file. This needs nothing on the node, and only the head knows the cause.
A launcher before each script would have to ask the head, and would change $0 of every job. A
TaskProlog would run for each task on all nodes of the cluster, including the site's own nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from slurm_elastic.ckptman.unannounced_ends import SUBJECT, detail_of
from slurm_elastic.model.causes.checkpoints import OutputNotWritten
from slurm_elastic.model.causes.moves import LostJobRuns
from slurm_elastic.model.causes.run_starts import RunStart, StartUnconfirmed
from slurm_elastic.model.causes.threats import MachineLostUnannounced, RunEndedUnannounced
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

MIN_REPORTED_LOSS_S = 60.0
"""Fewer seconds of lost work are not reported to the user: each save and move costs some."""
_LEAST_URGENT = (float("inf"), 0.0)


def start_of(move: Migration, run: StartedRun) -> RunStart:
    """Return where the run began, how much work it repeats, and why not from the newest save."""
    return RunStart(
        number=None if run.image is None else run.image.number,
        repeats_s=lost_seconds(move) if is_costly(move) else 0.0,
        doubt=run.doubt,
    )


def is_costly(move: Migration) -> bool:
    """Whether the next run repeats much work."""
    return lost_seconds(move) >= MIN_REPORTED_LOSS_S


def notify_user(site: CheckpointSite, move: Migration, where: str, run: StartedRun) -> None:
    """Have two lines written to the job's own output, which Slurm may have truncated for the new
    run. If that is not possible, ``explain`` says so.
    """
    began_at, start = moment(move.began), start_of(move, run)
    # Without a report of its launcher the job may have started over all the same.
    is_unconfirmed = isinstance(run.doubt, StartUnconfirmed)
    verb = "should continue" if is_unconfirmed else "continues"
    if move.was_renewed and run.image is not None:
        lines = (
            f"slurm-elastic: this job was saved at {began_at}, as {move.reason}",
            f"slurm-elastic: it {verb} from {start.source} on {where}, with its full time limit"
            + (f": {run.doubt}" if is_unconfirmed else ""),
        )
    else:
        next_step = "starts over" if run.image is None else f"{verb} from {start.source}"
        details = start.consequences
        if run.image is None and move.image is None and run.doubt is None:
            details = f": nothing had been saved{details}"
        lines = (
            f"slurm-elastic: this job was requeued at {began_at}: {move.reason}",
            f"slurm-elastic: it {next_step} on {where}{details}",
        )
    write = partial(_write, site, move.run, lines)
    # Refused if the lines of an earlier move of this job are not written yet.
    if not site.output_writers.submit(move.run.job, _LEAST_URGENT, write):
        write()


def _write(site: CheckpointSite, run: JobRun, lines: Sequence[str]) -> None:
    try:
        write_to_job_output(site, run.job, *lines)
    except SlurmError as error:
        cause = OutputNotWritten(error=str(error))
        site.recorder.record_run(run, "ckpt-not-told", cause, level=logging.WARNING)


class _LastWork(Struct, frozen=True):
    """A run, and when (Unix time) it was last seen at work."""

    run: JobRun
    method: str
    at: float


class UnannouncedEnds:
    """Runs that ended without a move of ours, for example with a lost machine. Their users also
    learn where the next run began. In memory only: ends while the service is away are not reported.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._last_work_by_job: dict[int, _LastWork] = {}
        self._lost_runs: dict[int, Migration] = {}

    def report(self, snapshot: Snapshot, crew: KeyedExecutor) -> None:
        """Find runs that ended, and report them once their next run is at work. ``snapshot.jobs``
        must be from this tick.
        """
        # Slurm forgets ended jobs after MinJobAge. Without this both tables would grow for ever.
        for jobs_by_number in (self._last_work_by_job, self._lost_runs):
            for number in jobs_by_number.keys() - snapshot.jobs.keys():
                jobs_by_number.pop(number)
        for number, choice in snapshot.choices.items():
            job = snapshot.jobs[number]
            if not job.batch:  # Slurm requeues no other jobs
                continue
            # A suspended job has not worked since its suspension.
            last_work_at = job.suspended or snapshot.now
            last_work = _LastWork(run_of(job, choice), choice.method, last_work_at)
            self._detect_lost_run(job, last_work, snapshot)
            if number in self._lost_runs:
                work = partial(self._report_loss, self._lost_runs[number], job)
                crew.submit(number, _LEAST_URGENT, work)

    def _detect_lost_run(self, job: SlurmJob, last_work: _LastWork, snapshot: Snapshot) -> None:
        earlier_work = self._last_work_by_job.get(job.id)
        self._last_work_by_job[job.id] = last_work
        # Only a higher restart count is a new run: Slurm or a person has requeued the job.
        if earlier_work is None or earlier_work.run.attempt >= last_work.run.attempt:
            return
        lost_nodes = self._lost_nodes(earlier_work, snapshot)
        # If the machines are still there, a person has requeued the job. Its user knows.
        if not lost_nodes and earlier_work.method not in TRANSPARENT_METHODS:
            return
        moves = self._site.state.migrations_of(job.id)
        # Ends that our own moves caused are reported with the move.
        if all(move.run.attempt < earlier_work.run.attempt for move in moves):
            self._lost_runs[job.id] = self._as_move(earlier_work, lost_nodes)

    def _lost_nodes(self, last_work: _LastWork, snapshot: Snapshot) -> list[str]:
        """The nodes of our pools whose machine is gone since the run was last at work."""
        machines = ((node, snapshot.machine_of.get(node)) for node in last_work.run.nodes)
        # A machine that was launched after the run was at work has taken the node over.
        return [
            node
            for node, machine in machines
            if node in self._site.pool_of
            and (machine is None or machine.instance.launched > last_work.at)
        ]

    def _as_move(self, last_work: _LastWork, lost_nodes: Sequence[str]) -> Migration:
        """The end of that run in the form of a move. It is no move of the state: nothing remains to
        be done, and its image must not decide where the next run continues.
        """
        image = next(iter(self._site.state.images(last_work.run.job)), None)
        lost = MachineLostUnannounced(nodes=tuple(lost_nodes))
        return Migration(
            run=last_work.run, method=last_work.method, threatened=tuple(lost_nodes),
            reason=lost if lost_nodes else RunEndedUnannounced(),
            step=MigrationStep.REQUEUED, began=last_work.at, changed=last_work.at,
            cause=ThreatCause.RECLAIM,
            image=image, reached={str(MigrationStep.REQUEUED): last_work.at},
        )  # fmt: skip

    def _report_loss(self, lost: Migration, job: SlurmJob) -> None:
        run = read_started_run(self._site, lost, job)
        if run is None:
            return  # its launcher has not reported yet, the next tick asks again
        self._lost_runs.pop(job.id, None)
        where = ",".join(job.nodes)
        # The newest image may have been unusable. The image that the run began from counts.
        move = replace(lost, image=run.image)
        end = (
            MachineLostUnannounced(nodes=lost.threatened)
            if lost.threatened
            else RunEndedUnannounced()
        )
        cause = LostJobRuns(cause=end, nodes=tuple(job.nodes), start=start_of(move, run))
        is_reported = run.doubt is not None or is_costly(move)
        level = logging.WARNING if is_reported else logging.INFO
        self._record(move, cause, level)
        lost_image = run.image is None and lost.image is not None
        if is_reported or lost_image or lost.threatened:
            notify_user(self._site, move, where, run)

    def _record(self, move: Migration, cause: LostJobRuns, level: int) -> None:
        """Record the end as a decision, for ``explain``; if a machine was lost, also for ``ckpt
        list`` and mail.
        """
        record = self._site.recorder.record_run
        if not move.threatened:
            record(move.run, "ckpt-back", cause, level=level)
            return
        over = replace(move, step=MigrationStep.BACK, changed=self._site.now(), note=cause)
        detail = detail_of(over)
        record(move.run, "ckpt-back", cause, nodes=(SUBJECT,), level=level, detail=detail)
