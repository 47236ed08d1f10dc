"""The rounds of one cloud, by its list and the clock or for a request of slurmctld: see
(``snapshot``), decide (``policies.repair``), act in bulk (``apply``); and what a person is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

from msgspec.structs import replace

from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.adoption import account_for_gone
from slurm_elastic.controller.apply import apply
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.doubted_lists import keep_doubt, lasting_doubt
from slurm_elastic.controller.launch import assign_addresses
from slurm_elastic.controller.snapshot import CloudReader, offers_of, see, see_request, with_offers
from slurm_elastic.controller.tick_reading import TickReading
from slurm_elastic.model.slurm import NOWHERE, Request
from slurm_elastic.policies.actions import DoubtList, Drop
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
    """One cloud's rounds. All that is kept from one to the next is since when each finding has
    stood, and which doubt was told last.
    """

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._standing: Mapping[tuple[str, str], float] = {}
        self._doubts = ReportOnce[str]()
        self._knows_offers = False
        self.reader = CloudReader(site, cloud)
        self.served = float("-inf")
        """When a request of the cloud was last served (monotonic s)."""
        self.is_over = False
        """Whether one round is over, however it went."""

    def run(self, reading: TickReading | None = None) -> None:
        """One round, by Slurm's nodes of this tick's ``reading``. SlurmError passes through:
        without Slurm's view nothing is decided.
        """
        try:
            self._run(reading or TickReading(self._site))
        finally:
            self.is_over = True

    def serve(self, request: Request, again: bool) -> bool:
        """Act on a request's nodes of the cloud, at once; whether some of them wait for their turn
        to boot: serve it ``again`` for these. Raises whatever fails.
        """
        site = self._site
        try:
            snapshot = see_request(site, self.reader.terms, request)
            # Those were told of, or are those that had their turn before.
            due = [a for a in requested(snapshot) if not (again and isinstance(a, Drop))]
            if snapshot.terms.looks_names_up and not again:
                self._hide_names(request.nodes, snapshot)
            return apply(site, self._cloud, due, snapshot)
        finally:
            # Also after a failure: a machine may be there of which an older reading knows nothing.
            self.served = site.monotonic()

    def _hide_names(self, nodes: Sequence[str], snapshot: ClusterSnapshot) -> None:
        """Give nodes that Slurm has just powered up an address instead of their name. No
        machine serves these nodes yet, so no node registers before the change.
        """
        view, served = snapshot.nodes, self._site.served()
        named = [n for n in nodes if n in view and view[n].address == n and n not in served]
        booting = [n for n in named if phase(view[n]) is Phase.POWERING_UP]
        assign_addresses(self._site, dict.fromkeys(booting, NOWHERE))

    def _run(self, reading: TickReading) -> None:
        site, cloud, reader = self._site, self._cloud, self.reader
        snapshot = reader.read(partial(reading.nodes, self.served))
        if snapshot.listed is not None and site.unadopted:
            account_for_gone(site, cloud, snapshot.listed)
        view, patience = cloud_view(snapshot), snapshot.terms.patience
        if site.monotonic() < site.repairs_allowed_from:
            # Slurm has forgotten what it gave out last, and is about to ask for it again.
            patience = replace(patience, grace=inf)
        due = due_repairs(view, patience, self._standing, site.monotonic())
        self._standing = due.standing
        if due.waiting:
            log.error("deletions capped cloud=%s waiting=%d", cloud, due.waiting)
        self._report([a for a in due.ready if isinstance(a, DoubtList)], snapshot)
        repairs = [a for a in due.ready if not isinstance(a, DoubtList)]
        for action in repairs:
            log.info("repair %s subject=%s reason=%s", action.kind, action.subject, action.reason)
        if repairs:
            apply(site, cloud, repairs, snapshot, reader.doubts)
            snapshot = see(site, reader.terms, snapshot.nodes, snapshot.listed)
        if books := decide(with_offers(site, snapshot), BOOKS):
            apply(site, cloud, books, snapshot)
        if snapshot.listed is not None and not self._knows_offers:
            self._learn_offers()

    def _learn_offers(self) -> None:
        """Ask what a cloud is asked once (zones, types, an image's platform) before a first launch
        has to wait for the answers.
        """
        self._knows_offers = True
        for pool in self._site.pools.values():
            if pool.cloud == self._cloud:
                offers_of(self._site, pool)

    def _report(self, doubts: Sequence[DoubtList], snapshot: ClusterSnapshot) -> None:
        """How Slurm and the cloud answered; what the cloud's list cannot be right about is for a
        person to look at.
        """
        site, cloud, reader = self._site, self._cloud, self.reader
        health = Health(name=cloud, checked=site.now(), error=reader.trouble, code=reader.code)
        if snapshot.listed is not None:
            doubt = self._doubt_of_list(doubts, snapshot)
            code = "unlisted" if doubt else None
            health = Health(name=cloud, checked=site.now(), error=doubt, code=code)
        site.ledger.health.report(health, Health(name="slurm", checked=site.now()))

    def _doubt_of_list(self, doubts: Sequence[DoubtList], snapshot: ClusterSnapshot) -> str | None:
        site, cloud, patience = self._site, self._cloud, snapshot.terms.patience
        problem = doubts[0].reason if doubts else lasting_doubt(site, snapshot)
        doubt = f"{cloud}: {problem}" if problem else None
        is_news = self._doubts.is_news(cloud, doubt)
        if doubts and is_news:
            log.error("list cannot be true, nothing ends by it %s", doubt)
        if doubts:
            stood = site.monotonic() - self._standing[doubts[0].kind, doubts[0].subject]
            if is_lasting(stood, snapshot.slurmd_timeout):
                keep_doubt(site, snapshot, assess_inventory(cloud_view(snapshot), patience))
        return doubt
