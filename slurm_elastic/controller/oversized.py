"""Removes jobs from a cloud's partition that need more nodes than the limits ever allow together,
or that may run past the end of a reservation without which the cloud has too few machines.

Waiting does not help such a job: slurmctld would give it nodes again after each hold, for ever, and
others would never get them. So it loses the partition of that cloud. If it has no other partition,
it is held like a job that its user has held (``scontrol uhold``), and the person who raises the
limit or shortens the job releases it.

A job that has to wait for a reservation which begins later gets that begin as its own begin time.
So does a job that must stay off spot machines (``policies.launch.spot_use``) while no other machine
is available: its begin time is when the cloud is asked again. A begin time holds in all partitions,
so a job with other partitions loses that of the cloud until then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TypeVar

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.controller.changed_jobs import Evaluate, JobChange, change_jobs
from slurm_elastic.controller.context import KeptOutJob, Site
from slurm_elastic.controller.launching.budget import apply_known_directives
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import (
    NeverHere,
    NeverInTime,
    NeverTogether,
    NotYetHere,
    NotYetInTime,
    NotYetOnDemand,
)
from slurm_elastic.model.causes.requeues import MachinesLost
from slurm_elastic.model.causes.stops import CloudMayServe
from slurm_elastic.model.changed_jobs import ChangedJob, Delayed, Held, Misfit, Wish
from slurm_elastic.model.cluster import Limits, NodeRequest, Offer
from slurm_elastic.model.job_holds import MACHINES_LOST, NEVER
from slurm_elastic.model.slurm import REQUEUE_HOLD, SlurmJob
from slurm_elastic.policies.launch.changed_jobs import is_waiting, request_of
from slurm_elastic.policies.launch.lasting import Asked, early_end, next_begin, sum_ceilings
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.launch.verdict import could_run
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

Bound = TypeVar("Bound", int | None, float | None)

CORRELATION = "limits"
REQUEUE_TIMEOUT_S = 300.0
"""Seconds in which a requeued job must be pending again."""
_CHANCE_S = 60.0
"""Seconds in which slurmctld's scheduler looks at each waiting job."""


def keep_job_out(
    site: Site, job: int, cloud: str, cause: NeverHere | NotYetHere, correlation: str,
    nodes: Sequence[str] = (), need_s: float = 0.0,
) -> None:  # fmt: skip
    """Remember that a job which is being requeued must not return to that cloud, or not yet.
    ``nodes``, ``need_s``: the nodes that it wanted, and for how long.
    """
    deadline = site.monotonic() + REQUEUE_TIMEOUT_S
    site.oversized[job] = KeptOutJob(
        cloud=cloud, cause=cause, correlation=correlation, deadline=deadline, nodes=tuple(nodes),
        need_s=need_s,
    )  # fmt: skip


def move_or_hold_jobs(site: Site) -> None:
    """Move or hold the remembered jobs that are pending now. SlurmError ends the pass."""
    waiting = site.oversized.snapshot()
    if not waiting:
        return
    queue = {job.id: job for job in site.slurm.jobs()}
    due = {number: row for number, row in waiting.items() if _is_due(queue.get(number))}
    wishes = {number: _wish_of(site, queue[number], row) for number, row in due.items()}

    def say(job: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
        del evaluate
        wish = wishes.get(job.id)
        known = record.wishes
        return record if wish is None or wish in known else replace(record, wishes=(*known, wish))

    changes: dict[int, JobChange] = {}
    change_jobs(
        site, say, candidates=wishes.keys(),
        report=lambda found: changes.update({change.job.id: change for change in found}),
    )  # fmt: skip
    for number, barred in waiting.items():
        job = queue.get(number)
        if number in due and job is not None:
            _record(site, job, barred, wishes[number], changes.get(number))
        elif job is not None and site.monotonic() < barred.deadline:
            continue
        site.oversized.pop(number)
    site.set_aside.keep(queue.keys())


def _is_due(job: SlurmJob | None) -> bool:
    return job is not None and is_waiting(job)


def _wish_of(site: Site, job: SlurmJob, barred: KeptOutJob) -> Wish:
    """Return what must happen to the job."""
    cause, request = barred.cause, request_of(job)
    if isinstance(cause, MachinesLost):
        return Held()
    partition = site.clouds[barred.cloud].partition_name
    if isinstance(cause, NotYetHere):
        begins_at = cause.begins_at
        if {*job.partitions} != {partition}:
            # Slurm lets a requeued job wait. The job would never get a node of the others if it
            # had this partition again when that wait ends.
            begins_at = max(begins_at, site.now() + REQUEUE_HOLD + _CHANCE_S)
        return Delayed(partition=partition, begins_at=begins_at, request=request)
    return Misfit(
        cloud=barred.cloud, partition=partition, nodes=compress(barred.nodes),
        need_s=barred.need_s if barred.need_s < inf else None, request=request,
    )  # fmt: skip


def end_verdicts(site: Site, cloud: str) -> None:
    """Give jobs their partition of the cloud back, and end our holds, if the cloud may serve them
    again, because a limit was raised or another reservation began. SlurmError if Slurm does not
    answer.
    """
    rows = site.ledger.changed_jobs.all()
    misfits = {
        row.key.number: wish for row in rows for wish in row.wishes
        if isinstance(wish, Misfit) and wish.cloud == cloud
    }  # fmt: skip
    # No other part looks after these: they wait for a person or for a time.
    has_others = any(all(isinstance(w, Held | Delayed) for w in row.wishes) for row in rows)
    if not misfits and not has_others:
        return
    ended = _find_ended(site, cloud, misfits) if misfits else set()

    def say(job: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
        del evaluate
        if job.id not in ended:
            return record
        return replace(record, wishes=tuple(w for w in record.wishes if w != misfits[job.id]))

    def report(changes: Sequence[JobChange]) -> None:
        given_back = [c.job for c in changes if c.job.id in ended and c.is_changed and not c.error]
        if given_back:
            cause = CloudMayServe(cloud=cloud)
            site.record(CORRELATION, "let-back", [job_subject(j.id) for j in given_back], cause)
            log.info("jobs given back jobs=%s reason=%s", [j.label for j in given_back], cause)

    change_jobs(site, say, report=report)


def _find_ended(site: Site, cloud: str, misfits: Mapping[int, Misfit]) -> set[int]:
    """Return the jobs that the cloud may serve again. If its offers cannot be read, return none."""
    if _read_offers(site, cloud) is None:
        return set()
    nodes = {job: tuple(expand(wish.nodes)) for job, wish in misfits.items()}
    needs = {job: inf if wish.need_s is None else wish.need_s for job, wish in misfits.items()}
    too_long = find_too_long(site, cloud, nodes, nodes, needs)
    never = {job for job, cause in too_long.items() if isinstance(cause, NeverInTime)}
    return set(nodes) - never - set(find_too_large(site, cloud, nodes, nodes))


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


def _record(
    site: Site, job: SlurmJob, barred: KeptOutJob, wish: Wish, change: JobChange | None
) -> None:
    """Record and log what has happened to the job."""
    if change is not None and change.error is not None and not change.is_changed:
        return  # it was logged, and the job is tried again
    cause = barred.cause
    if isinstance(cause, NotYetHere) and isinstance(wish, Delayed):
        cause = replace(cause, begins_at=wish.begins_at)
    decided_cause = replace(cause, consequence=_consequence(site, job, barred, change))
    # A job with other partitions comes back at the end of each cool-down.
    has_others = barred.cloud and set(job.partitions) != {site.clouds[barred.cloud].partition_name}
    if isinstance(decided_cause, NotYetHere) and has_others:
        if _is_same(site.set_aside.get(job.id), decided_cause):
            return
        site.set_aside[job.id] = decided_cause
    kind, can = _kind_and_words(cause)
    log.warning("job %s job=%s reason=%s", can, job.label, cause)
    site.record(barred.correlation, kind, (job_subject(job.id),), decided_cause)


def _is_same(known: NotYetHere | None, cause: NotYetHere) -> bool:
    """Whether the cause was reported. The time of the next try is another one each time."""
    if isinstance(known, NotYetOnDemand) and isinstance(cause, NotYetOnDemand):
        return known.cloud == cause.cloud
    return known == cause


def _kind_and_words(cause: NeverHere | NotYetHere | MachinesLost) -> tuple[str, str]:
    """Return the kind of the decision, and what it means for the job."""
    match cause:
        case NotYetInTime() | NotYetOnDemand():
            return "set-aside", "cannot start here yet"
        case MachinesLost():
            return MACHINES_LOST, "is held"
        case _:
            return NEVER, "can never start here"


def _consequence(site: Site, job: SlurmJob, barred: KeptOutJob, change: JobChange | None) -> str:
    """Return a sentence for the job's user about what happens to the job."""
    cause = barred.cause
    release = f"scontrol release {job.shell_label}"
    limit = f"scontrol update jobid={job.shell_label} timelimit=MINUTES"
    if isinstance(cause, MachinesLost):
        return f"the job is held; after a look at its output: {release}"
    partition = site.clouds[barred.cloud].partition_name
    is_held = job.is_held or (change is not None and change.values.is_held)
    names = job.partitions if change is None else change.values.partitions
    others = ", ".join(name for name in names if name != partition)
    if isinstance(cause, NotYetHere):
        if others:
            return f"until then the job may start in {others}"
        if isinstance(cause, NotYetOnDemand):
            spot = f"scontrol update jobid={job.shell_label} requeue=1 starttime=now"
            return f"the job begins then; to start it on a spot machine before, do: {spot}"
        return f"the job begins then; to start a shorter job earlier, do: {limit} starttime=now"
    if others and not is_held:
        return f"the job may start in {others}"
    if isinstance(cause, NeverInTime):
        return f"the job is held; do: {limit} && {release}"
    return f"the job is held until the limit allows it; to try it before: {release}"
