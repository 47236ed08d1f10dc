"""Keeps the order of the clouds up to date with their prices and stock.

Each look asks all clouds for their offers and publishes the terms of all pools, by which the submit
filter orders the partitions of a new job. Then it changes the order of jobs that still wait, if
another cloud has become much better for them. A site with one public cloud has no such look.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ProviderError, SlurmError, bounded
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config.pool_rules import traffic_terms
from slurm_elastic.controller.changed_jobs import reorder, with_own_partitions
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.controller.snapshot import read_all_nodes
from slurm_elastic.features.growth.waiting_jobs import in_order
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.refusals import CloudSilent
from slurm_elastic.model.cluster import NodeRequest, Offer, Pool
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.order_note import noted_order, with_order
from slurm_elastic.policies.launch.pool_order import PoolTerms, terms_of
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.launch.reorder import Reorder, growth_order, may_be_ours, reorders
from slurm_elastic.policies.launch.waiting import is_counted
from slurm_elastic.policies.nodes.node_state import is_answering, is_busy, is_drained
from slurm_elastic.slurm.hooks import order_file
from slurm_elastic.slurm.hooks.submit_filter import ranked_pools
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

CORRELATION = "cloud-order"
PERIOD_S = 30.0
PAUSE_PER_DURATION = 20.0
"""After a look the task pauses this many times as long as it took (see ``rest_after``)."""


def join(site: Site) -> Extensions | None:
    """Join if prices can change the order of two clouds."""
    clouds = [site.clouds[name] for name in {pool.cloud for pool in site.pools.values()}]
    # If the location counts first, clouds of different locations never change their order.
    leads = site.config.ranking[0] == "location"
    rivals = Counter(str(cloud.location) if leads else "" for cloud in clouds)
    if max(rivals.values(), default=0) < 2:
        return None
    return Extensions(parts=[("cloud order", lambda worker: CloudOrder(site, worker))])


class CloudOrder(Part):
    """``task``: the periodic task that the daemon runs."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self.task = SiteTask(
            site, worker, self.look, "cloud order", period=PERIOD_S, pace=PAUSE_PER_DURATION
        )
        self._growth: tuple[str, ...] = ()
        self._orders: dict[int, tuple[str, ...]] = {}
        self._refused: dict[int, tuple[str, ...]] = {}
        self._silent = ReportOnce[str]()
        self._unwritten = ReportOnce[str]()

    def look(self) -> None:
        """Publish the terms of all pools, then change the order of waiting jobs."""
        site = self._site
        table = self._read_terms()
        self._publish(table)
        self._growth = growth_order(table, self._growth, site.config.ranking)
        site.cloud_places.update({name: place for place, name in enumerate(self._growth)})
        self._reorder(table)

    def _read_terms(self) -> list[PoolTerms]:
        """Return the terms of all pools, in the order of the submit filter."""
        site, nodes = self._site, read_all_nodes(self._site)
        served, table = site.served_nodes(), []
        for pool in ranked_pools(site.config, site.pools.values()):
            offers, silence = self._ask(pool)
            scope = site.scope(pool)
            table.append(pool_terms(site, pool, offers, scope, served, nodes, silence))
        return table

    def _publish(self, table: Sequence[PoolTerms]) -> None:
        """Write the file for the submit filter, which ignores it once it is old."""
        site = self._site
        text = order_file.text_of(table, site.config.ranking, site.now())
        path = site.config.state / order_file.FILE
        try:
            writing.replace(path, text.encode())
        except OSError as error:
            # Waiting jobs are still ordered; new jobs get the order of the configuration.
            if self._unwritten.is_news(str(path), str(error)):
                log.warning("order not published file=%s error=%s", path, error)
        else:
            self._unwritten.clear(str(path))

    def _ask(self, pool: Pool) -> tuple[Sequence[Offer], AnyCause | None]:
        """Return the cloud's offers for the pool. If the cloud gave no answer, return no offers,
        and the reason.
        """
        provider = self._site.providers[pool.cloud]
        try:
            offers = provider.offers(pool)
        except ProviderError as error:
            error_text = str(error)
        # A provider may raise errors of its SDK. The other clouds still get their place.
        except Exception as error:  # noqa: BLE001
            error_text = bounded(f"{provider.name}: {type(error).__name__}: {error}")
        else:
            self._silent.clear(pool.name)
            return offers, None
        if self._silent.is_news(pool.name, error_text):
            log.warning("no offers pool=%s error=%s", pool.name, error_text)
        return (), CloudSilent(cloud=provider.name, error=error_text)

    def _reorder(self, table: Sequence[PoolTerms]) -> None:
        """Change the partition lists of waiting jobs for which another order is much better."""
        site = self._site
        queue = with_own_partitions(site, site.slurm.jobs())
        jobs = [job for job in in_order(queue) if self._may_change(job)]
        if not jobs:
            self._orders.clear()
            return
        named = [site.config.who_of(cloud).partitions for cloud in site.config.clouds]
        site_partitions = {site.slurm.default_partition(), *chain.from_iterable(named)}
        ours = {terms.partition for terms in table}
        jobs = [job for job in jobs if may_be_ours(job, site_partitions, ours)]
        self._learn(jobs)
        accounts_of = {
            cloud.name: site.config.who_of(cloud).no_requeue_on_spot for cloud in site.config.clouds
        }
        changes = reorders(jobs, self._orders, table, site.pools, site.config.ranking, accounts_of)
        by_list: dict[tuple[str, ...], list[Reorder]] = {}
        for change in changes:
            # The site's own job_submit may refuse a change, and would refuse it again.
            if self._refused.get(change.job) != change.partitions:
                by_list.setdefault(change.partitions, []).append(change)
        for partitions, same_list_changes in by_list.items():
            self._change(jobs, partitions, same_list_changes)

    def _learn(self, jobs: Sequence[SlurmJob]) -> None:
        """Read the orders of new jobs, and forget jobs that no longer wait."""
        known = {job.id: self._orders[job.id] for job in jobs if job.id in self._orders}
        if len(known) < len(jobs):
            comments = self._site.slurm.admin_comments()
            known = {j.id: noted_order(comments.get(j.id, "")) for j in jobs} | known
        self._orders = known
        self._refused = {job: lists for job, lists in self._refused.items() if job in known}

    def _may_change(self, job: SlurmJob) -> bool:
        """Whether the job waits for machines and is not about to start."""
        site = self._site
        is_waiting = "PENDING" in job.states and "COMPLETING" not in job.states
        return is_waiting and len(job.partitions) > 2 and is_counted(job, site.now())

    def _change(
        self, jobs: Sequence[SlurmJob], partitions: tuple[str, ...], changes: Sequence[Reorder]
    ) -> None:
        site, cause_of = self._site, {change.job: change.cause for change in changes}
        changed_jobs = [job for job in jobs if job.id in cause_of]
        ids, refused = reorder(site, changed_jobs, partitions)
        self._refused |= dict.fromkeys(refused, partitions)
        self._orders |= dict.fromkeys(ids, partitions[1:])
        if not ids:
            return
        for job in ids:
            site.record(CORRELATION, "reordered", (job_subject(job),), cause_of[job])
        log.info("order changed jobs=%s partitions=%s", ids, ",".join(partitions))
        self._note(ids, partitions[1:])

    def _note(self, jobs: Sequence[int], order: tuple[str, ...]) -> None:
        """Note the order in force on the jobs, for the next slurm-elasticd."""
        slurm = self._site.slurm
        comments = slurm.admin_comments(jobs)
        for job in jobs:
            comment = comments.get(job, "")
            # A comment without our note has changed since. It must not be replaced.
            if not noted_order(comment):
                continue
            try:
                slurm.set_admin_comment(job, with_order(comment, order))
            except SlurmError as error:
                if error.unanswered:
                    raise
                log.info("order not noted job=%d error=%s", job, error)  # it may have ended


def pool_terms(
    site: Site,
    pool: Pool,
    offers: Sequence[Offer],
    scope: Scope,
    served: Collection[str],
    nodes: Mapping[str, SlurmNode],
    silence: AnyCause | None,
) -> PoolTerms:
    """Return the terms on which the pool would serve a job now.

    ``served``: nodes that have a machine. ``nodes``: as Slurm shows them. ``silence``: why the
    cloud gave no offers.
    """
    free = tuple(name for name in pool.nodes if name not in served)
    return terms_of(
        NodeRequest(id=CORRELATION, pool=pool, nodes=free or pool.nodes),
        site.clouds[pool.cloud].partition_name,
        offers,
        scope,
        site.now(),
        site.config.ranking,
        boot_s=site.rules[pool.name].boot,
        lease_s=site.rules[pool.name].lease,
        has_idle=any(_takes_jobs(nodes[name]) for name in pool.nodes if name in nodes),
        unavailable=silence,
        traffic=traffic_terms(site.clouds[pool.cloud]),
    )


def _takes_jobs(node: SlurmNode) -> bool:
    """Whether a machine of the node waits for jobs."""
    return is_answering(node) and not is_busy(node) and not is_drained(node)
