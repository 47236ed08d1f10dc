"""The rounds of one cloud. Each reads the present state (``snapshot``), decides
(``policies.repair``), acts in bulk (``apply``) and reports the cloud's health.

A periodic round compares the cloud's list with Slurm and the ledger. A request of slurmctld starts
a shorter round for the requested nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from math import inf

from msgspec.structs import replace

from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.adoption import record_ended_unadopted
from slurm_elastic.controller.apply import apply
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.doubted_lists import keep_doubt, review_lasting_doubt
from slurm_elastic.controller.ending import find_unfinished
from slurm_elastic.controller.launching.boots import record_ended_by_others
from slurm_elastic.controller.launching.launch import assign_addresses
from slurm_elastic.controller.other_heads import look_for_other_head
from slurm_elastic.controller.oversized import end_verdicts
from slurm_elastic.controller.snapshot import (
    CORRELATION,
    CloudReader,
    add_offers,
    read_offers,
    take_request_snapshot,
    take_snapshot,
)
from slurm_elastic.controller.tick_reading import TickReading
from slurm_elastic.model.protocols import Reporting
from slurm_elastic.model.slurm import NOWHERE, Request
from slurm_elastic.policies.actions import Action, DoubtList, Drop
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.nodes.pings import is_lasting
from slurm_elastic.policies.repair.cluster import cloud_view, decide
from slurm_elastic.policies.repair.cluster_snapshot import BOOKS, ClusterSnapshot
from slurm_elastic.policies.repair.inventory import assess_inventory
from slurm_elastic.policies.repair.repair_pace import due_repairs
from slurm_elastic.policies.repair.request_rules import requested
from slurm_elastic.state.ledger import Health

log = logging.getLogger(__name__)


class Round:
    """The rounds of one cloud. Between rounds we keep only two things about the cloud: when each
    finding was first seen, and the last doubt we logged.
    """

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._first_seen_at: Mapping[tuple[str, str], float] = {}
        self._doubts = ReportOnce[str]()
        self._knows_offers = False
        self.reader = CloudReader(site, cloud)
        self.last_served_at = float("-inf")
        """When a request of the cloud was last served (monotonic s)."""
        self.is_over = False
        """Whether the first round is over, with success or with an error."""

    def run(self, reading: TickReading | None = None) -> None:
        """Do one periodic round with Slurm's nodes from this tick's ``reading``.

        SlurmError: Slurm did not answer. Without Slurm's nodes the round decides nothing.
        """
        try:
            self._run(reading or TickReading(self._site))
        finally:
            self.is_over = True

    def serve(self, request: Request, is_retry: bool) -> bool:
        """Act on the nodes of a request that belong to this cloud. Returns whether some of them
        wait for their turn to boot; then the caller serves the request again, as a retry.

        Raises every error, so that the request stays in the spool.
        """
        site = self._site
        try:
            snapshot = take_request_snapshot(site, self.reader.terms, request)
            # On a retry skip Drop actions: they were recorded at the first try.
            decided = [a for a in requested(snapshot) if not (is_retry and isinstance(a, Drop))]
            if snapshot.terms.looks_names_up and not is_retry:
                self._hide_names(request.nodes, snapshot)
            return apply(site, self._cloud, decided, snapshot)
        finally:
            # Also after a failure: the request may have started a machine. A periodic round with an
            # older reading of Slurm would find no reason for that machine and end it.
            self.last_served_at = site.monotonic()

    def _hide_names(self, nodes: Sequence[str], snapshot: ClusterSnapshot) -> None:
        """Give nodes that Slurm has just powered up an address instead of their name, so that
        slurmctld does not look up the name.
        """
        # Only nodes without a machine: a machine that registered just now has set its address.
        view, served = snapshot.nodes, self._site.served_nodes()
        named = [n for n in nodes if n in view and view[n].address == n and n not in served]
        booting = [n for n in named if phase(view[n]) is Phase.POWERING_UP]
        assign_addresses(self._site, dict.fromkeys(booting, NOWHERE))

    def _run(self, reading: TickReading) -> None:
        # The order of these steps must be kept, see the comments in them.
        snapshot = self.reader.read(partial(reading.nodes, self.last_served_at))
        # Before any decision: to another head's machines this head's Slurm is no witness.
        if self._another_head_works(snapshot):
            self._report_health((), snapshot)
            return
        record_ended_by_others(self._site, self._cloud, self.reader.ended_ids, CORRELATION)
        self._record_ended_unadopted(snapshot)
        repairs = self._decide_repairs(snapshot)
        self._report_health([a for a in repairs if isinstance(a, DoubtList)], snapshot)
        snapshot = self._repair([a for a in repairs if not isinstance(a, DoubtList)], snapshot)
        self._keep_books(snapshot)
        end_verdicts(self._site, self._cloud)
        self._learn_offers_once(snapshot)

    def _another_head_works(self, snapshot: ClusterSnapshot) -> bool:
        if snapshot.listed is not None:
            look_for_other_head(self._site, self._cloud, snapshot.listed)
        return self._site.ledger.owner.other_head() is not None

    def _record_ended_unadopted(self, snapshot: ClusterSnapshot) -> None:
        """Record the machines that ended before the ledger could adopt them."""
        if snapshot.listed is not None and self._site.unadopted:
            record_ended_unadopted(self._site, self._cloud, snapshot.listed)

    def _decide_repairs(self, snapshot: ClusterSnapshot) -> Sequence[Action]:
        """Return the repairs whose finding has stood for long enough."""
        site = self._site
        view, patience = cloud_view(snapshot), snapshot.terms.thresholds
        if site.monotonic() < site.repairs_allowed_from:
            # After a takeover slurmctld may have lost its last allocations and is about to request
            # the same nodes again. A machine that looks unneeded now must live until then.
            patience = replace(patience, grace_s=inf)
        repairs = due_repairs(
            view, patience, self._first_seen_at, site.monotonic(), self._unfinished
        )
        self._first_seen_at = repairs.found_since
        if repairs.deferred_count:
            log.error("deletions capped cloud=%s waiting=%d", self._cloud, repairs.deferred_count)
        return repairs.ready

    def _unfinished(self, ids: Sequence[str]) -> Collection[str]:
        """Return the given machines with which a feature has not finished."""
        live = self._site.ledger.machines.live() if ids else ()
        machines = [m for m in live if m.instance.cloud == self._cloud and m.instance.id in ids]
        return {machine.instance.id for machine in find_unfinished(self._site, machines)}

    def _repair(self, repairs: Sequence[Action], snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Carry out the repairs. Returns the snapshot after them."""
        for action in repairs:
            log.info("repair %s subject=%s reason=%s", action.kind, action.subject, action.reason)
        if not repairs:
            return snapshot
        site, reader = self._site, self.reader
        apply(site, self._cloud, repairs, snapshot, reader.doubts)
        # The ledger has changed, so read it again. Slurm's nodes and the list are still the old
        # ones: reading them a second time would double the load on slurmctld and the cloud.
        return take_snapshot(site, reader.terms, snapshot.nodes, snapshot.listed)

    def _keep_books(self, snapshot: ClusterSnapshot) -> None:
        """Update the ledger's records and holds. After the repairs, because a machine that was
        adopted or ended a moment ago counts in these decisions.
        """
        if books := decide(add_offers(self._site, snapshot), BOOKS):
            apply(self._site, self._cloud, books, snapshot)

    def _learn_offers_once(self, snapshot: ClusterSnapshot) -> None:
        """Fetch the facts that a cloud is asked for only once (zones, types, an image's platform),
        so that the first launch does not wait for them.
        """
        # Last in the round: these calls are slow, and the repairs must not wait for them.
        if snapshot.listed is None or self._knows_offers:
            return
        self._knows_offers = True
        for pool in self._site.pools.values():
            if pool.cloud == self._cloud:
                read_offers(self._site, pool)

    def _report_health(self, doubts: Sequence[DoubtList], snapshot: ClusterSnapshot) -> None:
        """Report for ``status`` how Slurm and the cloud answered, and a doubt about the cloud's
        list, which a person must look at.
        """
        site, cloud, reader = self._site, self._cloud, self.reader
        health = Health(name=cloud, checked=site.now(), error=reader.trouble, code=reader.code)
        if snapshot.listed is not None:
            doubt = self._doubt_of_list(doubts, snapshot)
            code = "unlisted" if doubt else None
            health = Health(name=cloud, checked=site.now(), error=doubt, code=code)
        site.ledger.health.report(
            health, Health(name="slurm", checked=site.now()), *self._trouble_of_provider()
        )

    def _trouble_of_provider(self) -> Iterator[Health]:
        """Yield the health of the cloud's hosts, as its provider found them."""
        provider = self._site.providers[self._cloud]
        if isinstance(provider, Reporting):
            trouble, now = provider.trouble or None, self._site.now()
            code = "hosts" if trouble else None
            yield Health(name=f"hosts of {self._cloud}", checked=now, error=trouble, code=code)

    def _doubt_of_list(self, doubts: Sequence[DoubtList], snapshot: ClusterSnapshot) -> str | None:
        """Return the doubt about this round's list, or else the kept doubt of an earlier list, as a
        sentence. If this round's doubt has stood for long, keep it in the ledger.
        """
        site, cloud, patience = self._site, self._cloud, snapshot.terms.thresholds
        problem = str(doubts[0].cause) if doubts else review_lasting_doubt(site, snapshot)
        doubt = f"{cloud}: {problem}" if problem else None
        is_news = self._doubts.is_news(cloud, doubt)
        if doubts and is_news:
            log.error("the cloud's list is not believed, no machine ends because of it: %s", doubt)
        if doubts:
            stood = site.monotonic() - self._first_seen_at[doubts[0].kind, doubts[0].subject]
            if is_lasting(stood, snapshot.slurmd_timeout):
                keep_doubt(site, snapshot, assess_inventory(cloud_view(snapshot), patience))
        return doubt
