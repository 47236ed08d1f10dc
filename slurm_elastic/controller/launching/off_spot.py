"""Finds the jobs that must stay off spot machines, and the nodes that get none
(``policies.launch.spot_use``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Jobs
from slurm_elastic.model.causes.refusals import NoSpot, NotRequeued
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.exclusions import no_spot
from slurm_elastic.policies.launch.spot_use import bears_loss, may_buy_other, never_on_spot


def find_no_spot(site: Site, nodes: Sequence[str], jobs: Jobs) -> dict[str, NoSpot]:
    """Return by node why no spot machine is bought for it, of nodes whose pool buys other machines,
    too. If a pool has only spot machines, its jobs get them, because their users have named it.

    May read Slurm's queue. SlurmError if Slurm does not answer; the request is then tried again.
    """
    cause_of: dict[str, NoSpot] = {}
    open_nodes: dict[str, set[str]] = {}
    for node in nodes:
        pool = site.pool_of[node]
        if may_buy_other(pool) and node in pool.spot_nodes:
            open_nodes.setdefault(pool.cloud, set()).add(node)
        elif cause := never_on_spot(pool, node):
            cause_of[node] = cause
    for cloud, of_cloud in open_nodes.items():
        waiting = [job for job, job_nodes in jobs.items() if not of_cloud.isdisjoint(job_nodes)]
        for job in find_jobs_off_spot(site, cloud, waiting):
            cause_of |= dict.fromkeys(of_cloud.intersection(jobs[job]), NotRequeued())
    return cause_of


def find_jobs_off_spot(site: Site, cloud: str, jobs: Collection[int]) -> set[int]:
    """Return the ``jobs`` that must not lose a machine of the cloud. Reads Slurm's queue if there
    are jobs. SlurmError if Slurm does not answer.
    """
    if not jobs:
        return set()
    listed = [job for job in site.slurm.jobs() if job.id in jobs]
    return {job.id for job in without_loss(site, cloud, listed)}


def find_off_spot(site: Site, cloud: str, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Return the ``jobs`` for which no spot machine of the cloud is bought: the jobs that must not
    lose their machine, and the jobs with a rule against spot machines (``NO_SPOT``).
    """
    jobs = list(jobs)
    rules, now = site.ledger.exclusions.all(), site.now()
    off_spot = {job.id for job in without_loss(site, cloud, jobs)}
    return [job for job in jobs if job.id in off_spot or no_spot((job.id,), rules, now) is not None]


def without_loss(site: Site, cloud: str, jobs: Iterable[SlurmJob]) -> Iterator[SlurmJob]:
    """Yield the ``jobs`` that must not lose a machine of the cloud."""
    # We let such a job be requeued until it has started for the first time (giving_back.py).
    lifted = {number for number, _ in site.ledger.requeues.lifted()}
    accounts = site.config.who_of(site.clouds[cloud]).no_requeue_on_spot
    for job in jobs:
        if not bears_loss(replace(job, requeue=job.requeue and job.id not in lifted), accounts):
            yield job
