"""Jobs by what users are promised: they start when they can, what they have done stays done, and
no machine is paid for a job that cannot use it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.hostlist import expand
from slurm_elastic.model.cluster import Market
from tests.chaos.drawn_site import is_sold
from tests.controller.world import BOOT
from tests.oracle.prices import dearest_price

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

LOOKS = 240.0
"""Seconds for all rounds between a job and its machine in a calm run: slurmctld's, those of the
daemon's threads and of the policies, each half a minute at most, and the refusal of an offer.
"""


SOLD = (Market.ON_DEMAND, Market.SPOT)


class Starts:
    """Finds jobs of a calm run that could have started long ago."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._since: dict[tuple[int, int, int], float] = {}

    @property
    def bound(self) -> float:
        """Seconds from when nothing keeps a job until it runs, by the settings of the site."""
        timings, policies = self._stage.config.timings, self._stage.config.policies
        return float(LOOKS + timings.suspend_timeout + BOOT + policies.poll_interval)

    def look(self) -> Iterator[str]:
        """The jobs that could start for longer than ``bound`` and do not run."""
        stage = self._stage
        waiting = [job for job in stage.slurm.queue().values() if "RUNNING" not in job.states]
        able = [] if _is_kept(stage) else [job for job in waiting[:1] if self._could_start(job)]
        now, before = stage.sched.now, self._since
        self._since = {key: before.get(key, now) for key in map(_next_task, able)}
        for job in able:
            if (lasts := now - self._since[_next_task(job)]) > self.bound:
                states = " ".join(sorted(job.states))
                yield f"job {job.id} ({states} {job.reason}) could start for {lasts:.0f} s"

    def _could_start(self, job: Any) -> bool:
        """Whether its nodes are free, or already its own, and the limits have room for machines."""
        stage = self._stage
        if job.is_held or (not job.nodes and job.start > stage.now()):
            return False
        if not job.nodes and not stage.slurm._may_start(job):
            return False  # it waits for another job, or for other tasks of its array
        there = {machine.node for machine in stage.alive()}
        names = job.nodes or self._free_nodes(job)
        missing = sorted(names, key=lambda name: name not in there)[: job.node_count]
        if len(missing) < job.node_count:
            return False
        return self._has_room([name for name in missing if name not in there])

    def _free_nodes(self, job: Any) -> Sequence[str]:
        """The free nodes in the first of the job's partitions that has enough. Slurm gives no job
        nodes of several partitions.
        """
        slurm = self._stage.slurm
        names = [
            name for name in slurm.wish(job.id) if self._is_free(name) and name not in job.excluded
        ]
        in_partitions = (
            [name for name in names if partition in slurm.node(name).partitions]
            for partition in job.partitions
        )
        return next((free for free in in_partitions if len(free) >= job.node_count), [])

    def _is_free(self, name: str) -> bool:
        node = self._stage.slurm.node(name)
        if "DOWN" in node.states or node.states & {"ALLOCATED", "POWERING_DOWN", "POWER_DOWN"}:
            return False
        # A growth policy holds the nodes that nobody needs, and releases them for the job.
        return "DRAIN" not in node.states or node.reason.startswith("slurm-elastic:hold:")

    def _has_room(self, missing: Sequence[str]) -> bool:
        """Whether so many machines more pass no limit, at whichever offer they are bought."""
        stage = self._stage
        if not missing:
            return True
        cloud = stage.config.cloud(stage.nodes[missing[0]])
        dearest = max(dearest_price(cloud, name, market) for name in cloud.types for market in SOLD)
        machines = stage.alive()
        mine = [machine for machine in machines if machine.cloud == cloud.name]
        for limits, counted in ((stage.config.limits, machines), (cloud.limits, mine)):
            count = len(counted) + len(missing)
            dollars = sum(max(machine.price, dearest) for machine in counted)
            dollars += dearest * len(missing)
            if limits.nodes is not None and count > limits.nodes:
                return False
            if limits.dollars_per_hour is not None and dollars > limits.dollars_per_hour:
                return False
        return True


def _next_task(job: Any) -> tuple[int, int, int]:
    """The job, or the task of the array that starts next."""
    return job.id, job.restarts, job.tasks


def _is_kept(stage: Stage) -> bool:
    """Whether something on record keeps machines from being bought, for any offer or node."""
    if stage.ledger is None or stage.service is None or stage.ledger.end_only:
        return True
    select = "select count(*) from exclusions where kind != 'policy' and until > ?"
    found = sqlite3.Connection.execute(stage.ledger.store._db, select, (stage.now(),))
    return bool(found.fetchone()[0])


def sold_nodes(stage: Stage, cloud: str) -> Iterator[str]:
    """The nodes for which the cloud has a type of machine."""
    for pool in stage.config.pools:
        if pool.cloud == cloud and is_sold(stage.config, pool):
            yield from expand(pool.nodes)


def paid_for_nobody(stage: Stage, node: str, jobs: Sequence[int]) -> str:
    """Why a machine for ``node``, bought for these jobs, serves none of them; "" if it may."""
    if stage.anew_at >= 0:  # another job may have the number of a lost one that asked for it
        asked = [of for _, _, of in stage.requests]
        jobs = [job for job in jobs if any(node in of.get(job, ()) for of in asked)]
    # One call buys for several nodes, and names the jobs of them all. slurmctld also waits for the
    # node of a job that was cancelled since, and for one that an operator powers up.
    holders = [job for job in stage.slurm.queue().values() if node in job.nodes]
    if not holders and "POWERING_UP" in stage.slurm.node(node).states:
        return ""
    # A job may be cancelled after its machine was decided.
    wishes = [stage.slurm.wish(job) for job in jobs if job in stage.slurm.queue()]
    if not wishes or any(node in wish for wish in wishes):
        return ""
    return f"a machine for {node} is bought for jobs {[*jobs]}, which may use {wishes}"


def lost_progress(stage: Stage, job: Any, misses: int) -> str:
    """Why a job begins anew without a fault of its machines; "" if it does not.

    ``misses``: lists in a row without a machine after which it counts as gone.
    """
    has_save = any(images for images in stage.saver._images.values() if _is_of(images, job.id))
    if "RUNNING" not in job.states or has_save:
        return ""
    if not all(_is_sound(stage, name, misses) for name in job.nodes):
        return ""
    if stage.orders is not None and any(map(stage.orders.books.moves_jobs, job.nodes)):
        return ""  # an operator wants it to leave, and it has no save
    return f"job {job.id} on {', '.join(job.nodes)} begins anew, and its machines live"


def _is_of(images: Sequence[Any], job: int) -> bool:
    return any(image.job == job for image in images)


def _is_sound(stage: Stage, name: str, misses: int) -> bool:
    """Whether the node serves, and its machine is neither warned nor hidden by its cloud."""
    node = stage.slurm.node(name)
    if "DOWN" in node.states:
        return False
    machines = [one for one in stage.machines_of(name) if one.address == node.address]
    return any(
        one.id not in stage.accounts[one.cloud].notices
        and one.id not in stage.books.ever_unheard
        and stage.clouds[one.cloud].omitted[one.id] < misses
        for one in machines
    )
