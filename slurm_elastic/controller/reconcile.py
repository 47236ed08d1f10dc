"""One round of repair of one cloud: read three views, decide
(policies.reconcile_rules), act in bulk.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from slurm_elastic.audit_trail import list_subject
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.controller.apply import CORRELATION, apply
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import all_nodes, see, terms_of, with_offers
from slurm_elastic.controller.usage_record import record_drains
from slurm_elastic.errors import AuthError, ProviderError
from slurm_elastic.ledger import Health
from slurm_elastic.model import DOUBT, Exclusion, Instance
from slurm_elastic.model_ledger import generation_time
from slurm_elastic.policies.actions import (
    Action,
    DoubtList,
)
from slurm_elastic.policies.cluster import BOOKS, ClusterSnapshot, Rule, cloud_view, decide
from slurm_elastic.policies.leaked_instances import CODE, stray, unanswered, unending
from slurm_elastic.policies.reconcile_rules import (
    InventoryReport,
    assess_inventory,
    debounce,
    is_lasting,
    limit_disruption,
)
from slurm_elastic.policies.sound import sound
from slurm_elastic.providers.base.tags import price_of

log = logging.getLogger(__name__)


Standing = Mapping[tuple[str, str], float]


class Round:
    """One cloud's repair rounds; keeps only since when each finding has stood."""

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._standing: Standing = {}
        self._terms = terms_of(site, cloud)
        self._doubt: str | None = None
        self.trouble = ""
        """Why the cloud could not be read the last time; empty where it could, or was not yet."""
        self._believed = Believed(site, cloud)
        self.is_over = False
        """Whether one round is over, however it went."""

    def run(self) -> None:
        """One round. SlurmError passes through: without Slurm's view nothing is decided."""
        try:
            self._run()
        finally:
            self.is_over = True

    def _run(self) -> None:
        site, nodes, began = self._site, all_nodes(self._site), self._site.now()
        listed = self._read_cloud()
        if listed is not None:
            self._take_in(listed, began)
        snapshot = see(site, self._terms, nodes, listed)
        ready = self._ready(snapshot)
        if listed is not None:
            self._report([a for a in ready if isinstance(a, DoubtList)], snapshot)
        repairs = [a for a in ready if not isinstance(a, DoubtList)]
        for action in repairs:
            log.info("repair %s subject=%s reason=%s", action.kind, action.subject, action.reason)
        if repairs:
            apply(site, self._cloud, repairs, snapshot, self._believed.doubts)
            snapshot = see(site, self._terms, nodes, listed)
        apply(site, self._cloud, decide(with_offers(site, snapshot), BOOKS), snapshot)
        record_drains(site, self._cloud, nodes)

    def _take_in(self, listed: Sequence[Instance], began: float) -> None:
        """What a list tells may be gone by the next one: where the file fails, memory keeps it."""
        ledger = self._site.ledger
        try:
            ledger.observe(self._cloud, listed, began, self._site.pool_of)
        except sqlite3.Error as error:
            ledger.give_up(error)
            ledger.observe(self._cloud, listed, began, self._site.pool_of)

    def _ready(self, snapshot: ClusterSnapshot) -> Sequence[Action]:
        """The repairs that have stood for long enough, and not too many at once."""
        clock, grace = self._site.monotonic(), self._terms.patience.grace
        found = decide(snapshot, (Rule.REPAIR,))
        ready, self._standing = debounce(found, self._standing, clock, grace)
        ready, waiting = limit_disruption(ready, len(snapshot.mine))
        if waiting:
            log.error("deletions capped cloud=%s waiting=%d", self._cloud, waiting)
        return ready

    @property
    def unusable(self) -> Mapping[str, str]:
        """Machines of the last list that no ledger can keep and nothing can end, with why."""
        return self._believed.unusable

    def _read_cloud(self) -> tuple[Instance, ...] | None:
        """The cloud's machines; None where it cannot be read, whatever it raises."""
        site = self._site
        try:
            seen = self._believed.take(site.providers[self._cloud].instances())
        except ProviderError as error:
            problem, code = str(error), "auth" if isinstance(error, AuthError) else "unreadable"
            log.warning("cloud cannot be read cloud=%s error=%s", self._cloud, error)
        except Exception as error:
            problem, code = f"{self._cloud}: {type(error).__name__}: {error}", "unreadable"
            log.exception("cloud cannot be read cloud=%s", self._cloud)
        else:
            self.trouble = ""
            return seen
        self.trouble = problem
        health = Health(name=self._cloud, checked=site.now(), error=problem, code=code)
        site.ledger.report_health(health)
        return None

    def _report(self, doubts: Sequence[DoubtList], snapshot: ClusterSnapshot) -> None:
        """The cloud was read; what its list cannot be right about is for a person to look at."""
        site, cloud = self._site, self._cloud
        lasting = None if doubts else lasting_doubt(site, cloud, snapshot.listed or ())
        problem = doubts[0].reason if doubts else lasting
        doubt = f"{cloud}: {problem}" if problem else None
        if doubts and doubt != self._doubt:
            log.error("list cannot be true, nothing ends by it %s", doubt)
        self._doubt = doubt
        if doubts:
            stood = site.monotonic() - self._standing[doubts[0].kind, doubts[0].subject]
            if is_lasting(stood, site.slurm.slurmd_timeout()):
                keep_doubt(
                    site, cloud, assess_inventory(cloud_view(snapshot), self._terms.patience)
                )
        code = "unlisted" if doubt else None
        site.ledger.report_health(
            Health(name=cloud, checked=site.now(), error=doubt, code=code),
            Health(name="slurm", checked=site.now()),
        )


# The door that a cloud's machines come in by: what makes no sense stays outside, and is told once
# (policies.sound).


def listed_price(cloud: CloudSettings, instance_type: str) -> float:
    """The price of a machine by the configuration ($/h)."""
    if cloud.flat_price is not None:
        return cloud.flat_price
    return price_of(None, instance_type, cloud.shapes)


class Believed:
    """One cloud's. ``unusable`` are the machines of its last list that cannot be kept, with why."""

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._told: Mapping[str, str] = {}
        self.unusable: Mapping[str, str] = {}
        self.doubts: Mapping[str, str] = {}

    def take(self, listed: Iterable[Instance]) -> tuple[Instance, ...]:
        """The machines of a complete list, as they may be kept."""
        settings = self._site.config.cloud(self._cloud)
        found = sound(
            listed, lambda one: listed_price(settings, one.instance_type), self._site.now()
        )
        for id_, why in found.doubts.items():
            if self._told.get(id_) != why:
                log.warning(
                    "tags not believed, put them right or end the machine cloud=%s id=%s reason=%s",
                    self._cloud, id_, why,
                )  # fmt: skip
        self._told = self.doubts = found.doubts
        self.unusable = found.unusable
        return found.machines


# A list that was wrong for long stays told of until it shows some of what it lacked, or a person
# clears it.
#
# That a doubt goes away proves nothing: one gap in slurmctld's pings, and rows end by a list that
# is still wrong; what runs then is paid and in no row. So it is kept, as an exclusion.


SAMPLE = 100
"""Machines, and nodes, that are remembered of what a list lacks."""
NODE = "node:"
"""Before the name of a node among them."""


def keep_doubt(site: Site, cloud: str, listing: InventoryReport) -> None:
    """The doubt about this list has stood for long: it lasts from now on."""
    if _doubt_of(site, cloud) is not None:
        return
    lacked, nodes = sorted(listing.lacked)[:SAMPLE], sorted(listing.unserved)[:SAMPLE]
    about = (*lacked, *(f"{NODE}{name}" for name in nodes))
    site.ledger.exclude(
        Exclusion(kind=DOUBT, scope=cloud, until=inf, cause=listing.doubt, since=site.now(),
                  about=about)
    )  # fmt: skip
    detail: dict[str, object] = {"machines": lacked, "nodes": nodes}
    site.record(CORRELATION, "list-doubted", (list_subject(cloud),), listing.doubt, detail)


def _doubt_of(site: Site, cloud: str) -> Exclusion | None:
    """The doubt about a cloud's list that neither the list nor a person has ended."""
    rows = site.ledger.exclusions()
    return next((one for one in rows if (one.kind, one.scope) == (DOUBT, cloud)), None)


def lasting_doubt(site: Site, cloud: str, seen: Sequence[Instance]) -> str | None:
    """The doubt that still stands though nothing speaks against this list any more."""
    doubt = _doubt_of(site, cloud)
    if doubt is None:
        return None
    back = _shown_again(doubt, seen)
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
    none (``unusable``: by cloud and such an id, why) cannot be asked for; so somebody must be told.
    """

    def __init__(
        self, site: Site, unusable: Callable[[], Mapping[tuple[str, str], str]] = dict
    ) -> None:
        self._site = site
        self._unusable = unusable
        self._told: Mapping[tuple[str, str], str] | None = None

    def report(self) -> None:
        """Tell what has changed since the last time."""
        found = {**_found(self._site), **self._unusable()}
        if found == self._told:
            return
        for (cloud, id_), why in found.items():
            if (cloud, id_) not in (self._told or {}):
                log.error(
                    "machine is paid but not served cloud=%s id=%s reason=%s", cloud, id_, why
                )
        self._told = found
        self._site.ledger.report_health(_health_of(found, self._site.now()))


def _found(site: Site) -> dict[tuple[str, str], str]:
    """By cloud and machine (or generation of a launch that may have made some), why."""
    now, clouds = site.now(), site.providers
    machines = {
        (m.instance.cloud, m.instance.id): why
        for m in site.ledger.machines()
        if (why := stray(m.instance, clouds, site.pool_of) or unending(m.suspending, now))
    }
    launches = {
        (row.cloud, row.generation): why
        for row in site.ledger.open_launches()
        if (why := unanswered(row.cloud, len(row.nodes), clouds))
    }
    return machines | launches


def _health_of(strays: Mapping[tuple[str, str], str], now: float) -> Health:
    """The sentence of ``status`` about machines that are paid and serve nobody."""
    if not strays:
        return Health(name=NAME, checked=now)
    some = "; ".join(f"{id_}: {why}" for (_, id_), why in list(strays.items())[:TOLD])
    more = f"; and {len(strays) - TOLD} more" if len(strays) > TOLD else ""
    error = f"{len(strays)} serve nobody: {some}{more}"
    return Health(name=NAME, checked=now, error=error, code=CODE)
