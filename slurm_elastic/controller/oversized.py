"""Removes jobs from a cloud's partition that need more nodes than the limits ever allow together,
or that may run past the end of a reservation without which the cloud has too few machines.

Waiting does not help such a job: slurmctld would give it nodes again after each hold, for ever, and
others would never get them. So it loses the partition of that cloud. If it has no other partition,
it is held like a job that its user has held (``scontrol uhold``), and the person who raises the
limit or shortens the job releases it.

A job that has to wait for a reservation which begins later gets that begin as its own begin time.
The exception is a job with other partitions, because a begin time holds in all partitions. Until
the reservation begins, slurmctld may give such a job nodes of the cloud again every few minutes,
and the job is requeued each time. It is reported once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.budget import apply_known_directives
from slurm_elastic.controller.context import KeptOutJob, Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import (
    NeverHere,
    NeverInTime,
    NeverTogether,
    NotYetInTime,
)
from slurm_elastic.model.causes.requeues import MachinesLost
from slurm_elastic.model.cluster import Limits, NodeRequest, Offer
from slurm_elastic.model.job_holds import MACHINES_LOST, NEVER
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.lasting import Asked, early_end, next_begin, sum_ceilings
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.launch.verdict import could_run
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

Bound = TypeVar("Bound", int | None, float | None)

REQUEUE_TIMEOUT_S = 300.0
"""Seconds in which a requeued job must be pending again."""


def keep_job_out(
    site: Site, job: int, cloud: str, cause: NeverHere | NotYetInTime, correlation: str
) -> None:
    """Remember that a job which is being requeued must not return to that cloud, or not yet."""
    partition = site.clouds[cloud].partition_name
    deadline = site.monotonic() + REQUEUE_TIMEOUT_S
    site.oversized[job] = KeptOutJob(partition, cause, correlation, deadline)


def move_or_hold_jobs(site: Site) -> None:
    """Move or hold the remembered jobs that are pending now. SlurmError ends the pass."""
    waiting = site.oversized.snapshot()
    queue = {job.id: job for job in site.slurm.jobs()} if waiting else {}
    for number, barred in waiting.items():
        job = queue.get(number)
        if job is not None and "PENDING" in job.states and "COMPLETING" not in job.states:
            _move_or_hold(site, job, barred)
        elif job is not None and site.monotonic() < barred.deadline:
            continue
        site.oversized.pop(number)
    if waiting:
        site.set_aside.keep(queue.keys())


def find_too_large(
    site: Site, cloud: str, jobs: Iterable[int], nodes: Mapping[int, Sequence[str]]
) -> dict[int, NeverTogether]:
    """Return the jobs that the cloud can never serve with all their nodes, and the cause."""
    count_by_job = {
        job: len(nodes[job])
        for job in jobs
        if len(nodes[job]) > 1 and not _is_served_in_part(site, nodes[job])
    }
    if not count_by_job:
        return {}
    upper_bound = _count_obtainable(site, cloud)
    if upper_bound is None:
        return {}
    max_nodes, bound = upper_bound
    return {
        job: NeverTogether(cloud=cloud, wanted=count, max_nodes=max_nodes, bound=bound)
        for job, count in count_by_job.items()
        # If the cloud has no room at all, the job is not too large. The cloud's nodes are held.
        if 0 < max_nodes < count
    }


def find_too_long(
    site: Site,
    cloud: str,
    jobs: Iterable[int],
    nodes: Mapping[int, Sequence[str]],
    needs_s: Mapping[int, float],
) -> dict[int, NeverInTime | NotYetInTime]:
    """Return the jobs for which the cloud has too few machines that stay long enough, only because
    a reservation ends: for good, or until another reservation begins. ``needs_s``: for how long (s)
    the machines of each job must stay; jobs with an unknown need are not judged.
    """
    needs = {job: needs_s[job] for job in jobs if needs_s.get(job)}
    offers_by_pool = _read_offers(site, cloud) if needs else None
    if offers_by_pool is None:
        return {}
    scope = lasting_scope(site, site.config.resume_timeout(site.clouds[cloud]))
    late: dict[int, NeverInTime | NotYetInTime] = {}
    for job in (job for job in site.slurm.jobs() if job.id in needs):
        nodes_of_job = set(nodes[job.id])
        # slurmctld may give the job nodes of all these pools. Its own nodes prove that it fits
        # their pools, also if we cannot judge what it asks for.
        pools = [
            (request, offers)
            for request, offers in offers_by_pool
            if could_run(job, request.pool) or not nodes_of_job.isdisjoint(request.nodes)
        ]
        count = 1 if _is_served_in_part(site, nodes[job.id]) else len(nodes[job.id])
        need_s, now = needs[job.id], site.now()
        begins_at = None
        end = early_end(pools, count, need_s, scope, now, may_wait=True)
        if end is None and (begins_at := next_begin(pools, need_s, scope, now)) is not None:
            end = early_end(pools, count, need_s, scope, now, may_wait=False)
        if end is not None and begins_at is None:
            late[job.id] = NeverInTime(cloud=cloud, end=end)
        elif end is not None and begins_at is not None:
            late[job.id] = NotYetInTime(cloud=cloud, end=end, begins_at=begins_at)
    return late


def _is_served_in_part(site: Site, nodes: Iterable[str]) -> bool:
    """Whether one of these nodes is in a pool that serves nodes one by one (``partial_jobs``)."""
    return any(site.pool_of[n].partial_jobs for n in nodes if n in site.pool_of)


def _count_obtainable(site: Site, cloud: str) -> tuple[int, AnyCause | None] | None:
    """Return how many nodes of the cloud could ever be up together, and the bound that limits them.
    None if a pool's offers cannot be read.
    """
    pools = _read_offers(site, cloud)
    return None if pools is None else sum_ceilings(pools, lasting_scope(site))


def _read_offers(site: Site, cloud: str) -> Asked | None:
    """Return the offers of each pool of the cloud; None if a pool's offers cannot be read."""
    pools: list[tuple[NodeRequest, Sequence[Offer]]] = []
    for pool in site.pools_of_cloud(cloud):
        try:
            offers = site.providers[cloud].offers(pool)
        except Exception as error:  # noqa: BLE001 - a provider may raise errors of its SDK
            log.info("largest possible size not known pool=%s error=%r", pool.name, error)
            # Without the offers of each pool we do not know the sum.
            return None
        if not offers:
            return None
        pools.append((NodeRequest(id="", pool=pool, nodes=pool.nodes), offers))
    return pools


def lasting_scope(site: Site, boot_s: float = 0.0) -> Scope:
    """Return the looser of each configured limit and the limit that operators have set for a time.
    A lowered limit does not make a job impossible, and a raised one may let the job run.
    """
    config, now = site.config, site.now()
    changed = apply_known_directives(config, site.ledger.directives.all(), now)
    return Scope(
        limits=_loosen(config.limits, changed.limits),
        cloud_limits={
            cloud.name: _loosen(cloud.limits, changed_cloud.limits)
            for cloud, changed_cloud in zip(config.clouds, changed.clouds, strict=True)
        },
        pool_nodes={
            pool.name: _larger(pool.max_nodes, changed_pool.max_nodes)
            for pool, changed_pool in zip(config.pools, changed.pools, strict=True)
        },
        boot_s=boot_s,
    )


def _loosen(limits: Limits, changed: Limits) -> Limits:
    return Limits(
        nodes=_larger(limits.nodes, changed.nodes),
        spot=_larger(limits.spot, changed.spot),
        on_demand=_larger(limits.on_demand, changed.on_demand),
        dollars_per_hour=_larger(limits.dollars_per_hour, changed.dollars_per_hour),
    )


def _larger(limit: Bound, changed: Bound) -> Bound:
    """Return the larger of two limits; None means unlimited, so it is the larger."""
    return None if limit is None or changed is None else max(limit, changed)


def _move_or_hold(site: Site, job: SlurmJob, barred: KeptOutJob) -> None:
    cause = barred.cause
    try:
        if isinstance(cause, NotYetInTime):
            outcome = _delay(site, job, barred.partition, cause)
        elif isinstance(cause, MachinesLost):
            outcome = _hold(site, job, cause)
        else:
            outcome = _move(site, job, barred.partition) or _hold(site, job, cause)
    except SlurmError as error:
        if error.unanswered:
            raise
        log.warning("job not changed job=%s error=%s", job.label, error)
        return
    decided_cause = replace(cause, consequence=outcome)
    # A job with other partitions comes back every few minutes.
    if isinstance(decided_cause, NotYetInTime) and len(job.partitions) > 1:
        if site.set_aside.get(job.id) == decided_cause:
            return
        site.set_aside[job.id] = decided_cause
    kind, can = _kind_and_words(cause)
    log.warning("job %s job=%s reason=%s", can, job.label, cause)
    site.record(barred.correlation, kind, (job_subject(job.id),), decided_cause)


def _kind_and_words(cause: NeverHere | NotYetInTime | MachinesLost) -> tuple[str, str]:
    """Return the kind of the decision, and what it means for the job."""
    match cause:
        case NotYetInTime():
            return "set-aside", "cannot start here yet"
        case MachinesLost():
            return MACHINES_LOST, "is held"
        case _:
            return NEVER, "can never start here"


def _delay(site: Site, job: SlurmJob, partition: str, cause: NotYetInTime) -> str:
    """Set the begin of the reservation as the job's begin time. Returns a sentence for its user."""
    other_partitions = ", ".join(p for p in job.partitions if p != partition)
    # A begin time holds in all partitions, and the job may start in the others before.
    if other_partitions:
        return f"until then the job may start in {other_partitions}"
    site.slurm.change_pending([job.id], begin_in=cause.begins_at - site.now())
    start = f"scontrol update jobid={job.shell_label} timelimit=MINUTES starttime=now"
    return f"the job begins then; to start a shorter job earlier, do: {start}"


def _move(site: Site, job: SlurmJob, partition: str) -> str:
    """Leave the job its other partitions. Returns a sentence about that for its user; "" if it has
    no other partition, or Slurm refuses because of their limits (EnforcePartLimits).
    """
    other_partitions = tuple(p for p in job.partitions if p != partition)
    if not other_partitions:
        return ""
    soon = 0.0 if job.is_requeue_hold(site.now()) else None
    try:
        site.slurm.change_pending([job.id], partitions=other_partitions, begin_in=soon)
    except SlurmError as error:
        if error.unanswered:
            raise
        log.info(
            "job not moved job=%s partitions=%s error=%s",
            job.label,
            ",".join(other_partitions),
            error,
        )
        return ""
    return f"the job may start in {', '.join(other_partitions)}"


def _hold(site: Site, job: SlurmJob, cause: NeverHere | MachinesLost) -> str:
    """Hold the job. Returns a sentence about that for its user."""
    # Leave a held job alone: Slurm would turn an administrator's hold into a user's hold, which the
    # user may release.
    if not job.is_held:
        site.slurm.hold(job.id)
    release = f"scontrol release {job.shell_label}"
    if isinstance(cause, NeverInTime):
        shorten = f"scontrol update jobid={job.shell_label} timelimit=MINUTES"
        return f"the job is held; do: {shorten} && {release}"
    if isinstance(cause, MachinesLost):
        return f"the job is held; after a look at its output: {release}"
    return f"the job is held; once that is changed: {release}"
