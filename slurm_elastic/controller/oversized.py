"""Jobs whose nodes the limits never allow together: told so, and taken from the cloud's partition.

Waiting does not help: slurmctld would give such a job nodes again after each hold, for ever. It
loses the partition of that cloud; one that has no other is held as its user may hold it
(``scontrol uhold``), and whoever raises the limit releases it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Barred, Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import NeverTogether
from slurm_elastic.model.cluster import NodeRequest
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.ranking import Scope, ceiling
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


PATIENCE = 300.0
"""Seconds in which a requeued job is looked for in the queue."""


def bar(site: Site, job: int, cloud: str, why: NeverTogether, correlation: str) -> None:
    """The job is being requeued, and is not to come back to that cloud."""
    partition = site.clouds[cloud].partition_name
    deadline = site.monotonic() + PATIENCE
    site.oversized[job] = Barred(partition, why, correlation, deadline)


def keep_out(site: Site) -> None:
    """Change those that are pending by now. The first SlurmError ends the pass."""
    waiting = site.oversized.snapshot()
    queue = {job.id: job for job in site.slurm.jobs()} if waiting else {}
    for number, barred in waiting.items():
        job = queue.get(number)
        if job is not None and "PENDING" in job.states and "COMPLETING" not in job.states:
            _keep_out(site, job, barred)
        elif job is not None and site.monotonic() < barred.deadline:
            continue
        site.oversized.pop(number)


def too_large(
    site: Site, cloud: str, jobs: Iterable[int], nodes: Mapping[int, Sequence[str]]
) -> dict[int, NeverTogether]:
    """The jobs that no launch can ever serve whole in that cloud, with what is in the way of it."""
    wanted = {
        job: len(nodes[job])
        for job in jobs
        if len(nodes[job]) > 1 and not _is_served_in_part(site, nodes[job])
    }
    if not wanted:
        return {}
    found = _most(site, cloud)
    if found is None:
        return {}
    most, bound = found
    return {
        job: NeverTogether(cloud=cloud, wanted=count, most=most, bound=bound)
        for job, count in wanted.items()
        # Where not even a smaller job has room, it is the cloud itself that is to be held.
        if 0 < most < count
    }


def _is_served_in_part(site: Site, nodes: Iterable[str]) -> bool:
    """Whether a pool of these may; a node may be of no pool of the configuration any more."""
    return any(site.pool_of[n].partial_jobs for n in nodes if n in site.pool_of)


def _most(site: Site, cloud: str) -> tuple[int, AnyCause | None] | None:
    """How many nodes of that cloud could ever be up together, and the bound that says so."""
    total = 0
    why: AnyCause | None = None
    config = site.config  # a limit that an operator has changed for a while says nothing of never
    limits = {one.name: one.limits for one in config.clouds}
    lasting = Scope(limits=config.limits, cloud_limits=limits)
    for pool in site.pools_of_cloud(cloud):
        try:
            offers = site.providers[cloud].offers(pool)
        except Exception as error:  # noqa: BLE001 - whatever a cloud raises, nothing is known then
            log.info("not asked how much there is pool=%s error=%r", pool.name, error)
            # Where one pool does not tell what it has, nothing is known of all of them.
            return None
        if not offers:
            return None
        request = NodeRequest(id="", pool=pool, nodes=pool.nodes)
        room, bound = ceiling(request, offers, lasting)
        total, why = total + room, why or bound
    return total, why


def _keep_out(site: Site, job: SlurmJob, barred: Barred) -> None:
    try:
        then = _move(site, job, barred.partition) or _hold(site, job)
    except SlurmError as error:
        if error.unanswered:
            raise
        log.warning("job not changed job=%s error=%s", job.label, error)
        return
    log.warning("never fits job=%s reason=%s", job.label, barred.why)
    site.record(barred.correlation, "never", (job_subject(job.id),), replace(barred.why, then=then))


def _move(site: Site, job: SlurmJob, partition: str) -> str:
    """Leave it its other partitions, and say so; empty where there are none, or Slurm does not have
    it there (their limits, with EnforcePartLimits).
    """
    rest = tuple(p for p in job.partitions if p != partition)
    if not rest:
        return ""
    soon = 0.0 if job.is_requeue_hold(site.now()) else None
    try:
        site.slurm.change_pending([job.id], partitions=rest, begin_in=soon)
    except SlurmError as error:
        if error.unanswered:
            raise
        log.info("not moved job=%s partitions=%s error=%s", job.label, ",".join(rest), error)
        return ""
    return f"it may start in {', '.join(rest)}"


def _hold(site: Site, job: SlurmJob) -> str:
    """Hold it and say so."""
    # Slurm would make an administrator's hold one that its user may end.
    if not job.is_held:
        site.slurm.hold(job.id)
    return f"it is held; once that is changed: scontrol release {job.label}"
