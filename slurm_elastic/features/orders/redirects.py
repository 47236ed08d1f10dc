"""Sends the waiting jobs of a migration to the other cloud, and gives them their own partitions
back when the order is over.

The ledger has a record of each job that was sent (``controller.changed_jobs``), so a restarted
daemon gives them back as well. A job that runs in the other cloud when the order ends gets its
partitions back if it is requeued.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.changed_jobs import Evaluate, JobChange, change_jobs
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes.departures import (
    JobsRedirected,
    PartitionRefused,
    PartitionsRestored,
)
from slurm_elastic.model.changed_jobs import ChangedJob, Redirected, Wish
from slurm_elastic.model.directive import OPERATORS, Departure, Directive, describe
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.redirects import Route, is_redirectable, routes, with_redirects
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)

SENT, BACK = "redirected", "partitions-restored"
LOOK_EVERY_S = 30.0
"""Seconds between two looks at redirected jobs while no order has ended: only a job that was
requeued after the end of its order may need a change.
"""


class Redirects:
    """Keeps in memory only which refusals were recorded."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._refused = ReportOnce[tuple[int, int]]()
        self._in_force: frozenset[int] | None = None
        self._next_look = float("-inf")

    @property
    def is_done(self) -> bool:
        """Whether no job can need its partitions back."""
        return not self._site.ledger.changed_jobs.has_wish(Redirected)

    def look(self, directives: Sequence[Directive]) -> None:
        """Give the waiting jobs of emptied nodes the partition of the target cloud. Give the jobs
        of other orders their own partitions back. ``directives``: the orders in force.
        """
        site = self._site
        orders = {d.number: d for d in directives}
        routes_of = {d.number: list(self._routes(d.word)) for d in directives}
        in_force = frozenset(orders)
        has_ended = self._in_force is None or not self._in_force <= in_force
        self._in_force = in_force
        is_due = has_ended or site.monotonic() >= self._next_look
        if not any(routes_of.values()) and not (is_due and not self.is_done):
            return
        self._next_look = site.monotonic() + LOOK_EVERY_S
        all_routes = [route for found in routes_of.values() for route in found]
        queue = site.slurm.jobs() if all_routes else ()
        self._refused.forget_unless(lambda key: key[1] in {job.id for job in queue})
        candidates = {
            job.id for job in queue if any(is_redirectable(job, route) for route in all_routes)
        }

        def say(job: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
            return with_redirects(job, record, routes_of, lambda w: evaluate(w).partitions)

        change_jobs(
            site, say, candidates=candidates, report=lambda changes: self._report(changes, orders)
        )

    def _routes(self, word: object) -> Iterator[Route]:
        site = self._site
        partitions = {name: cloud.partition_name for name, cloud in site.clouds.items()}
        # The configuration may have the cloud no more.
        if not isinstance(word, Departure) or word.to not in partitions:
            return iter(())
        accounts = site.config.who_of(site.clouds[word.to]).no_requeue_on_spot
        return routes(
            frozenset(word.nodes), word.to, tuple(site.pools.values()), partitions, accounts
        )

    def _report(self, changes: Sequence[JobChange], orders: dict[int, Directive]) -> None:
        sent: dict[tuple[int, JobsRedirected], list[int]] = {}
        back: dict[tuple[int, PartitionsRestored], list[int]] = {}
        for change in changes:
            gained, lost = _redirects(change.gained()), _redirects(change.lost())
            ended = [wish for wish in lost if wish.number not in orders]
            if change.error is not None:
                self._report_refusal(change, gained)
            elif gained and change.is_changed:
                number = gained[-1].number
                cause = JobsRedirected(
                    partitions=change.values.partitions,
                    earlier=change.job.partitions,
                    number=number,
                    order_text=describe(orders[number], self._site.now()),
                )
                sent.setdefault((number, cause), []).append(change.job.id)
            elif ended and change.is_changed:
                number = ended[-1].number
                restored = PartitionsRestored(partitions=change.values.partitions, number=number)
                back.setdefault((number, restored), []).append(change.job.id)
        for (_, cause), jobs in sent.items():
            self._site.record(OPERATORS, SENT, [job_subject(job) for job in jobs], cause)
        for (_, restored), jobs in back.items():
            self._site.record(OPERATORS, BACK, [job_subject(job) for job in jobs], restored)
            log.info("partitions restored jobs=%s reason=%s", jobs, restored)

    def _report_refusal(self, change: JobChange, orders: Sequence[Redirected]) -> None:
        for order in orders:
            if self._refused.is_news((order.number, change.job.id)):
                cause = PartitionRefused(partition=order.target, error=str(change.error))
                self._site.record(OPERATORS, "not-redirected", [job_subject(change.job.id)], cause)
                log.info("not redirected job=%s reason=%s", change.job.label, cause)


def _redirects(wishes: Sequence[Wish]) -> list[Redirected]:
    return [wish for wish in wishes if isinstance(wish, Redirected)]
