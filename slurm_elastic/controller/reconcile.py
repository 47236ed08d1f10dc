"""One round of repair of one cloud: see (``snapshot``), decide (``policies.cluster``), act in bulk
(``apply``); and what a person is told of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from slurm_elastic.audit_trail import list_subject
from slurm_elastic.controller.apply import CORRELATION, account_for_gone, apply
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import CloudReader, see, with_offers
from slurm_elastic.ledger import Health, LedgerState
from slurm_elastic.model import DOUBT, Exclusion, Instance
from slurm_elastic.model_ledger import generation_time
from slurm_elastic.policies.actions import DoubtList
from slurm_elastic.policies.cluster import (
    BOOKS,
    ClusterSnapshot,
    cloud_view,
    decide,
    decide_repairs,
)
from slurm_elastic.policies.leaked_instances import CODE, leaked
from slurm_elastic.policies.reconcile_rules import InventoryReport, assess_inventory, is_lasting

log = logging.getLogger(__name__)


class Round:
    """One cloud's repair rounds; keeps only since when each finding has stood."""

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._standing: Mapping[tuple[str, str], float] = {}
        self._doubt: str | None = None
        self.reader = CloudReader(site, cloud)
        self.is_over = False
        """Whether one round is over, however it went."""

    def run(self) -> None:
        """One round. SlurmError passes through: without Slurm's view nothing is decided."""
        try:
            self._run()
        finally:
            self.is_over = True

    def _run(self) -> None:
        site, cloud, reader = self._site, self._cloud, self.reader
        snapshot = reader.read()
        if snapshot.listed is not None:
            account_for_gone(site, cloud, snapshot.listed)
        due = decide_repairs(snapshot, self._standing, site.monotonic())
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
        site.ledger.report_health(health, Health(name="slurm", checked=site.now()))

    def _doubt_of_list(self, doubts: Sequence[DoubtList], snapshot: ClusterSnapshot) -> str | None:
        site, cloud, patience = self._site, self._cloud, snapshot.terms.patience
        problem = doubts[0].reason if doubts else lasting_doubt(site, snapshot)
        doubt = f"{cloud}: {problem}" if problem else None
        if doubts and doubt != self._doubt:
            log.error("list cannot be true, nothing ends by it %s", doubt)
        self._doubt = doubt
        if doubts:
            stood = site.monotonic() - self._standing[doubts[0].kind, doubts[0].subject]
            if is_lasting(stood, snapshot.slurmd_timeout):
                keep_doubt(site, snapshot, assess_inventory(cloud_view(snapshot), patience))
        return doubt


# A list that was wrong for long stays told of until it shows some of what it lacked, or a person
# clears it.
#
# That a doubt goes away proves nothing: one gap in slurmctld's pings, and rows end by a list that
# is still wrong; what runs then is paid and in no row. So it is kept, as an exclusion.


SAMPLE = 100
"""Machines, and nodes, that are remembered of what a list lacks."""
NODE = "node:"
"""Before the name of a node among them."""


def keep_doubt(site: Site, snapshot: ClusterSnapshot, listing: InventoryReport) -> None:
    """The doubt about this list has stood for long: it lasts from now on."""
    cloud = snapshot.terms.cloud
    if _doubt_of(snapshot) is not None:
        return
    lacked, nodes = sorted(listing.lacked)[:SAMPLE], sorted(listing.unserved)[:SAMPLE]
    about = (*lacked, *(f"{NODE}{name}" for name in nodes))
    site.ledger.exclude(
        Exclusion(kind=DOUBT, scope=cloud, until=inf, cause=listing.doubt, since=site.now(),
                  about=about)
    )  # fmt: skip
    detail: dict[str, object] = {"machines": lacked, "nodes": nodes}
    site.record(CORRELATION, "list-doubted", (list_subject(cloud),), listing.doubt, detail)


def _doubt_of(snapshot: ClusterSnapshot) -> Exclusion | None:
    """The doubt about a cloud's list that neither the list nor a person has ended."""
    rows, cloud = snapshot.exclusions, snapshot.terms.cloud
    return next((one for one in rows if (one.kind, one.scope) == (DOUBT, cloud)), None)


def lasting_doubt(site: Site, snapshot: ClusterSnapshot) -> str | None:
    """The doubt that still stands though nothing speaks against this list any more."""
    doubt, cloud = _doubt_of(snapshot), snapshot.terms.cloud
    if doubt is None:
        return None
    back = _shown_again(doubt, snapshot.listed or ())
    if back is None:
        return f"{doubt.cause} It has shown none of them since; `clear {cloud}` if they are gone"
    log.info("list is right again cloud=%s id=%s", cloud, back)
    site.ledger.readmit(DOUBT, cloud)
    why = f"the list has {back} again"
    site.record(CORRELATION, "list-right-again", (list_subject(cloud),), why)
    return None


def _shown_again(doubt: Exclusion, seen: Sequence[Instance]) -> str | None:
    lacked = frozenset(doubt.about)
    for one in seen:
        was_there = generation_time(one.generation) < doubt.since
        if one.id in lacked or (f"{NODE}{one.node}" in lacked and was_there):
            return one.id
    return None


# Telling of machines that are paid and serve nobody, in the log and in ``status``.


NAME = "paid machines"
"""The name under which the health of all machines is kept; no cloud's name, which has no space."""
TOLD = 5
"""So many are told one by one."""


class LeakedInstances:
    """Machines of a cloud that has left the configuration are never deleted, the others not at
    once, some clouds do not end what they are asked to, and what a cloud lists under an id that is
    none cannot be asked for; so somebody must be told.
    """

    def __init__(self, site: Site, rounds: Iterable[Round]) -> None:
        self._site = site
        self._readers = [one.reader for one in rounds]
        self._told: Mapping[tuple[str, str], str] | None = None

    def report(self, state: LedgerState) -> None:
        """Tell what has changed since the last time."""
        site = self._site
        off = [m for m in state.stopped if m.instance.cloud not in site.providers]
        found = leaked(
            (*state.machines, *off), state.launches, site.providers, site.pool_of, site.now()
        )
        for one in self._readers:
            found |= {(one.terms.cloud, id_): why for id_, why in one.unusable.items()}
        if found == self._told:
            return
        for (cloud, id_), why in found.items():
            if (cloud, id_) not in (self._told or {}):
                log.error(
                    "machine is paid but not served cloud=%s id=%s reason=%s", cloud, id_, why
                )
        self._told = found
        site.ledger.report_health(_health_of(found, site.now()))


def _health_of(strays: Mapping[tuple[str, str], str], now: float) -> Health:
    """The sentence of ``status`` about machines that are paid and serve nobody."""
    if not strays:
        return Health(name=NAME, checked=now)
    some = "; ".join(f"{id_}: {why}" for (_, id_), why in list(strays.items())[:TOLD])
    more = f"; and {len(strays) - TOLD} more" if len(strays) > TOLD else ""
    error = f"{len(strays)} serve nobody: {some}{more}"
    return Health(name=NAME, checked=now, error=error, code=CODE)
