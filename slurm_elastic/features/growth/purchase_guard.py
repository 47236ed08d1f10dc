"""Watches the machines that growth policies started. Jobs that did not use them although they could
have are not counted for growth for a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.controller.context import Site
from slurm_elastic.features.growth.lasting import LastingMachines
from slurm_elastic.features.growth.pool_nodes import Observation, PoolNodes
from slurm_elastic.features.growth.waiting_jobs import pending
from slurm_elastic.model.causes.purchases import NeverUsed
from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.growth.scaling import PendingJob
from slurm_elastic.policies.growth.unused_purchases import (
    MOST_JOBS,
    NodeUse,
    WatchedJob,
    is_long_idle,
    not_counted,
    suffice,
    to_count_again,
    unhelped,
    watched,
    watched_job,
)
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_busy,
    is_down,
    is_drained,
    phase,
)

log = logging.getLogger(__name__)

CORRELATION = "policy"


class PurchaseGuard:
    """Call ``look`` before the policies decide, and ``bought`` when they start machines."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def look(self, view: Observation) -> frozenset[int]:
        """Update the watched purchases. Return the jobs that growth policies must not count."""
        memory = self._site.ledger.growth_guard
        purchases, rows = memory.purchases(), memory.rows()
        if not (purchases or rows):
            return frozenset()
        waiting = {job.id: job for job in view.jobs if "PENDING" in job.states}
        for purchase in purchases:
            self._watch(purchase, view, waiting, {row.job: row for row in rows})
        rows = memory.rows()
        # Count jobs again that ask for something else now, and forget jobs that are gone.
        outdated = to_count_again(rows, self._watched(waiting, (row.job for row in rows), view))
        if outdated:
            memory.count_again(outdated)
        return not_counted(memory.rows(), self._site.now())

    def bought(self, nodes: Sequence[str], queue: Sequence[PendingJob], view: Observation) -> None:
        """Watch these nodes, which are started for the first jobs of ``queue``."""
        first_jobs = {job.id for job in queue[:MOST_JOBS]}
        jobs = {
            job.id: self._watched_job(job, view).asks
            for job in view.jobs
            if "PENDING" in job.states and job.id in first_jobs
        }
        if nodes and jobs:
            now, started = self._site.now(), frozenset(nodes)
            row = Purchase(first_node=nodes[0], at=now, open=started, jobs=jobs)
            self._site.ledger.growth_guard.watch([row])

    def _watch(
        self,
        purchase: Purchase,
        view: Observation,
        waiting: Mapping[int, SlurmJob],
        before: Mapping[int, UnhelpedJob],
    ) -> None:
        use = {node: _use(node, purchase, view) for node in purchase.open}
        after = watched(purchase, use, view.at)
        memory = self._site.ledger.growth_guard
        if after.open:
            if after != purchase:
                memory.watch([after])
            return
        jobs = self._watched(waiting, after.jobs, view) if after.unused else {}
        rows = unhelped(
            after, jobs, lambda unused: self._sufficed_jobs(unused, view), before, self._site.now()
        )
        memory.judge(after, rows)
        if rows:
            self._report(after, rows)

    def _report(self, purchase: Purchase, rows: Sequence[UnhelpedJob]) -> None:
        cause = NeverUsed(nodes=tuple(sorted(purchase.unused)))
        jobs = tuple(f"job:{row.job}" for row in rows)
        self._site.record(CORRELATION, "unhelped", (*jobs, *cause.nodes), cause)
        log.warning("jobs=%s nodes=%s reason=%s", ",".join(jobs), compress(cause.nodes), cause)

    def _sufficed_jobs(self, purchase: Purchase, view: Observation) -> frozenset[int]:
        """The jobs for which the unused machines and other long-idle ones would have sufficed."""
        site = self._site
        pools = [PoolNodes(site, view, pool) for pool in site.pools.values()]
        idle = {
            row.node
            for pool_nodes in pools
            for row in pool_nodes.idle
            if is_long_idle(row.since, view.at)
        }
        unused = purchase.unused | idle
        rows: dict[int, bool] = {}
        lasting = LastingMachines(site, view.at)
        for row in pending(site, view, pools, frozenset(), lasting):
            rows[row.id] = rows.get(row.id, True) and _suffice(row, unused, pools)
        return frozenset(job for job, suffices in rows.items() if suffices)

    def _watched(
        self, waiting: Mapping[int, SlurmJob], numbers: Iterable[int], view: Observation
    ) -> dict[int, WatchedJob]:
        return {n: self._watched_job(waiting[n], view) for n in numbers if n in waiting}

    def _watched_job(self, job: SlurmJob, view: Observation) -> WatchedJob:
        return watched_job(self._with_excluded(job, view), view.facts.max_times)

    def _with_excluded(self, job: SlurmJob, view: Observation) -> SlurmJob:
        """The job with the nodes that it excludes. Slurm 22.05's list of jobs lacks them."""
        excluded = view.facts.excluded.get(job.id)
        return replace(job, excluded=excluded) if excluded else job


def _use(name: str, purchase: Purchase, view: Observation) -> NodeUse:
    node = view.nodes.get(name)
    if node is None:
        return NodeUse.OFF
    if is_down(node):
        return NodeUse.TAKEN
    node_phase = phase(node)
    if node_phase is Phase.POWERING_UP:
        return NodeUse.BOOTING
    if node_phase is not Phase.UP:
        return NodeUse.OFF
    if is_busy(node):
        return NodeUse.BUSY
    # A notice of its cloud, an operator or a health check. Our release only returns a machine that
    # no job has used, so it leaves the proof as it is.
    if is_drained(node) and not has_mark(node, HOLD_MARK):
        return NodeUse.TAKEN
    # Do not use the node's boot time: it is from the machine's clock, which may differ from ours.
    since = max(node.last_busy, purchase.came_up.get(name, view.at))
    return NodeUse.LONG_IDLE if is_long_idle(since, view.at) else NodeUse.IDLE


def _suffice(row: PendingJob, unused: Iterable[str], pools: Sequence[PoolNodes]) -> bool:
    """Whether one cloud had enough of these nodes for the job."""
    usable = set(unused) - set(expand(row.avoids) if row.avoids else ())
    count: dict[str, int] = {}
    for pool_nodes in pools:
        if pool_nodes.pool.name in row.pools:
            usable_count = len(usable.intersection(pool_nodes.pool.nodes))
            count[pool_nodes.pool.cloud] = count.get(pool_nodes.pool.cloud, 0) + usable_count
    return suffice(row.nodes, count.values())
