"""Requeues jobs whose node cannot use their image, to other nodes.

The launcher holds such a job for ten minutes and reports it as unfit. Another node may have the
processor, the program or the file that its image needs. If we did not requeue the job, it would
continue from an older image, or start over.
"""

from __future__ import annotations

import logging
from functools import partial

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.origins import STAYING
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.causes.checkpoints import ImageUnusableThere
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
"""Seconds between two looks at a run's report."""
LOOK_FOR_S = 3600.0
"""Seconds after the start of a run in which its image may turn out to be unusable there."""
_AT_WORK = frozenset({"RUNNING", "SUSPENDED"})
_NO_HURRY = (float("inf"), 0.0)


class UnfitNodes:
    """The requeues. The nodes that a job shall avoid are in memory only: after a crash its launcher
    reports it again, if Slurm has chosen the same node.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._looked_at: SharedDict[int, float] = SharedDict()
        self._avoided: SharedDict[int, tuple[int, tuple[str, ...]]] = SharedDict()

    def requeue(self, snapshot: Snapshot, crew: KeyedExecutor) -> None:
        """Submit the looks at restarted runs, and the next steps of jobs that were requeued."""
        for memory in (self._looked_at, self._avoided):
            memory.keep(snapshot.jobs.keys())
        for number, choice in snapshot.choices.items():
            job, now = snapshot.jobs[number], self._site.now()
            is_restarted = job.restarts > 0 and now - job.start < LOOK_FOR_S
            is_moving = (number, job.restarts) in snapshot.migrations
            is_due = now - self._looked_at.get(number, float("-inf")) >= LOOK_EVERY_S
            if choice.method in STAYING and is_restarted and is_due and not is_moving:
                self._looked_at[number] = now
                look = partial(self._requeue_if_unfit, run_of(job, choice), choice.method)
                crew.submit(number, _NO_HURRY, look)
        for number, (attempt, nodes) in self._avoided.snapshot().items():
            job = snapshot.jobs[number]
            if job.restarts > attempt and "PENDING" in job.states:
                crew.submit(number, _NO_HURRY, partial(self._avoid, job, nodes))

    def _requeue_if_unfit(self, run: JobRun, method: str) -> None:
        site = self._site
        origin = site.checkpointers[method].origin(run)
        if origin is None or not origin.is_unfit:
            return
        try:
            # The look at a shared directory may take minutes. Slurm would also requeue a job that
            # has ended during the look, or its next run.
            job = site.jobs.read_new(run.job)
            if job is None or job.key != run.key or not job.states & _AT_WORK:
                return
            site.slurm.requeue(run.job)
        except SlurmError as error:
            log.warning("a job that its node cannot continue is not requeued, it is retried"
                        " job=%s error=%s", run.label, error)  # fmt: skip
            return
        self._avoided[run.job] = run.attempt, run.nodes
        cause = ImageUnusableThere(nodes=run.nodes, error=origin.why)
        site.recorder.record_run(run, "ckpt-requeued", cause, level=logging.WARNING)

    def _avoid(self, job: SlurmJob, nodes: tuple[str, ...]) -> None:
        """Exclude the nodes from the pending job. Slurm refuses that for a running one."""
        slurm = self._site.slurm
        try:
            excluded = {*slurm.excluded_nodes(job.id), *nodes}
            if not excluded.isdisjoint(job.required):
                slurm.any_nodes(job.id)
            slurm.exclude_nodes(job.id, tuple(sorted(excluded)))
            if job.is_requeue_hold(self._site.now()):
                slurm.start_now(job.id)
        except SlurmError as error:
            log.warning("the nodes of a job cannot be excluded, it is retried job=%s error=%s",
                        job.label, error)  # fmt: skip
            return
        self._avoided.pop(job.id)
