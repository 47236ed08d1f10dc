"""Requeues jobs whose node cannot use their image, to other nodes.

The launcher holds such a job for hours and reports it as unfit. Another node may have the
processor, the program or the file that its image needs. If we did not requeue the job, it would
continue from an older image, or start over. A node whose root part is missing, or refuses the job,
reports nothing. A restarted run that has images and no report is therefore requeued, too.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman.decide import run_of
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.origins import STAYING, may_report
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.causes.checkpoints import ImageUnusableThere
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate.facts import AvoidedNodes

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
"""Seconds between two looks at a run's report."""
LOOK_FOR_S = 6 * 3600.0
"""Seconds after the start of a run in which its image may turn out to be unusable there. A silent
run counts so only after the time to read its image (``origins.may_report``): images of up to
320 GiB are read in this time. The launcher waits as long (``slurm/hooks/launcher.py``).
"""
AVOID_FOR_S = 3600.0
"""Seconds after which a job no longer avoids a node: the cause may have been the shared directory,
or the machine may have been mended.
"""
MAX_REQUEUES = 3
"""Requeues of a job with the same newest image for want of a fit node. After them it starts over.
The launcher's own count also starts at each new image.
"""
_AT_WORK = frozenset({"RUNNING", "SUSPENDED", "STOPPED"})
NO_REPORT = "its launcher has not reported there (is the root part installed?)"
_NO_HURRY = (float("inf"), 0.0)


class _Requeues(NamedTuple):
    """How often a job was requeued while the image of this number was its newest."""

    image: int
    requeues: int


class UnfitNodes:
    """The requeues. A node that a job is yet to avoid is in memory only: after a crash its launcher
    reports it again, if Slurm has chosen the same node. A node that it avoids is recorded, because
    the exclusion must end with its cause: a node's next machine may be able to use the image.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._looked_at: SharedDict[int, float] = SharedDict()
        self._requeues: SharedDict[int, _Requeues] = SharedDict()
        self._avoided: SharedDict[int, tuple[int, Mapping[str, str]]] = SharedDict()
        # Monotonic s. A restart of ckptman sets the times back.
        self._avoided_since: SharedDict[int, float] = SharedDict()

    def requeue(self, snapshot: Snapshot, crew: KeyedExecutor) -> None:
        """Submit the looks at restarted runs, and the next steps of jobs that were requeued."""
        for memory in (self._looked_at, self._requeues, self._avoided, self._avoided_since):
            memory.keep(snapshot.jobs.keys())
        for number, choice in snapshot.choices.items():
            job, now = snapshot.jobs[number], self._site.now()
            is_restarted = job.restarts > 0 and now - job.start < LOOK_FOR_S
            is_moving = (number, job.restarts) in snapshot.migrations
            is_due = now - self._looked_at.get(number, float("-inf")) >= LOOK_EVERY_S
            if choice.method in STAYING and is_restarted and is_due and not is_moving:
                self._looked_at[number] = now
                machines = _machine_ids(snapshot, job.nodes)
                look = partial(self._requeue_if_unfit, run_of(job, choice), choice.method, machines)
                crew.submit(number, _NO_HURRY, look)
        for number, (attempt, unfit) in self._avoided.snapshot().items():
            job = snapshot.jobs[number]
            if job.restarts > attempt and _is_waiting(job):
                crew.submit(number, _NO_HURRY, partial(self._avoid, job, unfit))
        if not snapshot.blind:  # an old list of machines proves no change
            self._end_exclusions(snapshot, crew)

    def _end_exclusions(self, snapshot: Snapshot, crew: KeyedExecutor) -> None:
        """Submit shorter lists of excluded nodes for pending jobs, and forget ended jobs."""
        now = self._site.monotonic()
        for number, avoided in self._site.state.avoided_nodes().items():
            job = snapshot.jobs.get(number)
            if job is None:
                self._site.state.forget_avoided(number)
                continue
            since = self._avoided_since.setdefault(number, now)
            # Slurm refuses to change the list of a running job. A new node may be on its way into
            # the list.
            if not _is_waiting(job) or self._avoided.get(number) is not None:
                continue
            present = _machine_ids(snapshot, avoided.nodes)
            ended = {node for node, machine in avoided.nodes.items() if present[node] != machine}
            if now - since > AVOID_FOR_S:
                ended = set(avoided.nodes)
            if ended:
                crew.submit(number, _NO_HURRY, partial(self._readmit, job, avoided, ended))

    def _requeue_if_unfit(self, run: JobRun, method: str, machines: Mapping[str, str]) -> None:
        site, reason = self._site, self._reason_against_nodes(run, method)
        if reason is None:
            return
        try:
            done = self._requeues_so_far(run, method)
            if done.requeues >= MAX_REQUEUES:
                return
            # The look at a shared directory may take minutes. Slurm would also requeue a job that
            # has ended during the look, or its next run.
            job = site.jobs.read_new(run.job)
            if job is None or job.key != run.key or not job.states & _AT_WORK:
                return
            site.slurm.requeue(run.job)
        except (SlurmError, CheckpointError) as error:
            log.warning("a job that its node cannot continue is not requeued, it is retried"
                        " job=%s error=%s", run.label, error)  # fmt: skip
            return
        self._avoided[run.job] = run.attempt, machines
        self._requeues[run.job] = _Requeues(done.image, done.requeues + 1)
        cause = ImageUnusableThere(nodes=run.nodes, error=reason)
        site.recorder.record_run(run, "ckpt-requeued", cause, level=logging.WARNING)

    def _requeues_so_far(self, run: JobRun, method: str) -> _Requeues:
        """The requeues since the job's newest image. Only a new image shows that a node could
        continue the job: on some processors a restored program dies after seconds.
        """
        images = self._site.checkpointers[method].images(run)
        newest = max((image.number for image in images), default=0)
        done = self._requeues.get(run.job, _Requeues(newest, 0))
        return done if newest <= done.image else _Requeues(newest, 0)

    def _reason_against_nodes(self, run: JobRun, method: str) -> str | None:
        """Return why the nodes of the run cannot continue the job; None if they can, or may be
        about to.
        """
        site, checkpointer = self._site, self._site.checkpointers[method]
        origin = checkpointer.origin(run)
        if origin is not None:
            return origin.why if origin.is_unfit else None
        try:
            image = next(iter(checkpointer.images(run)), None)
            if image is None or may_report(site, image, run.started):
                return None
            # Last, and an error proves nothing: while the directory cannot be read, no run has an
            # origin.
            return NO_REPORT if checkpointer.is_silent(run) else None
        except CheckpointError as error:
            log.info("reports of launchers are unknown job=%s error=%s", run.label, error)
            return None

    def _avoid(self, job: SlurmJob, machines: Mapping[str, str]) -> None:
        """Exclude the nodes from the pending job. Slurm refuses that for a running one."""
        site = self._site
        try:
            excluded = set(site.slurm.excluded_nodes(job.id))
            earlier = site.state.avoided_nodes().get(job.id)
            avoided = {} if earlier is None else dict(earlier.nodes)
            # The nodes that its user excludes stay excluded.
            avoided |= {n: m for n, m in machines.items() if n not in excluded or n in avoided}
            if self._has_nodes(job, excluded | avoided.keys()):
                self._avoided_since[job.id] = site.monotonic()
                self._exclude(job, avoided, excluded | avoided.keys())
            else:
                # It would wait for ever. The launcher lets it start over after enough tries.
                self._exclude(job, {}, excluded - avoided.keys())
            if job.is_requeue_hold(site.now()):
                site.slurm.start_now(job.id)
        except (SlurmError, sqlite3.Error) as error:
            log.warning("the nodes of a job cannot be excluded, it is retried job=%s error=%s",
                        job.label, error)  # fmt: skip
            return
        self._avoided.pop(job.id)

    def _readmit(self, job: SlurmJob, avoided: AvoidedNodes, ended: Collection[str]) -> None:
        """Take nodes out of the job's list that we have put there."""
        if not self._site.refused_exclusions.may_ask(job.id, self._site.monotonic()):
            return
        left = {node: machine for node, machine in avoided.nodes.items() if node not in ended}
        try:
            excluded = set(self._site.slurm.excluded_nodes(job.id))
            self._exclude(job, left, excluded.difference(ended))
        except (SlurmError, sqlite3.Error) as error:
            if self._site.refused_exclusions.put_off(job.id, str(error), self._site.monotonic()):
                log.warning("nodes of a job stay excluded, it is retried job=%s error=%s",
                            job.label, error)  # fmt: skip
            return
        self._site.refused_exclusions.clear(job.id)
        log.info("a job no longer avoids nodes job=%s nodes=%s", job.label, ",".join(sorted(ended)))

    def _exclude(self, job: SlurmJob, avoided: dict[str, str], excluded: Collection[str]) -> None:
        """Set the job's list of excluded nodes; ``avoided``: our part of the list."""
        site = self._site
        if avoided:
            # Before the change: afterwards only this record says which nodes are ours.
            site.state.put_avoided(AvoidedNodes(job=job.id, nodes=avoided))
        if not avoided.keys().isdisjoint(job.required):
            site.slurm.any_nodes(job.id)
        site.slurm.exclude_nodes(job.id, tuple(sorted(excluded)))
        if not avoided:
            site.state.forget_avoided(job.id)
            self._avoided_since.pop(job.id)

    def _has_nodes(self, job: SlurmJob, excluded: Collection[str]) -> bool:
        """Whether the job's partitions have enough other nodes."""
        nodes = self._site.slurm.nodes().values()
        names = {node.name for node in nodes if not set(node.partitions).isdisjoint(job.partitions)}
        return not names or len(names.difference(excluded)) >= job.node_count


def _is_waiting(job: SlurmJob) -> bool:
    return "PENDING" in job.states and "COMPLETING" not in job.states


def _machine_ids(snapshot: Snapshot, nodes: Collection[str]) -> dict[str, str]:
    machines = {node: snapshot.machine_of.get(node) for node in nodes}
    return {node: machine.instance.id if machine else "" for node, machine in machines.items()}
