"""Reads what a pass decides on, once: Slurm's nodes, the ledger, a cloud's list and offers."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, ProviderError, SlurmError, bounded
from slurm_elastic.controller.context import Site
from slurm_elastic.model.cluster import Instance, Offer, Pool
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, Exclusion
from slurm_elastic.model.memory import REFUSED, UNREADABLE, Machine
from slurm_elastic.model.protocols import NO_NODE
from slurm_elastic.model.slurm import Request, SlurmNode
from slurm_elastic.policies.actions import OnMachine
from slurm_elastic.policies.growth.stopped import NO_RECIPES, Recipes
from slurm_elastic.policies.launch.exclusions import sickly
from slurm_elastic.policies.repair.cloud_view import Thresholds
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, Terms
from slurm_elastic.policies.repair.hold_rules import due_holds
from slurm_elastic.policies.repair.list_plausibility import sound
from slurm_elastic.providers.base.tags import price_of

log = logging.getLogger(__name__)

CORRELATION = "reconcile"
"""Under which decisions of rounds are kept."""

DAY = 86400.0
SOUND = 600.0
"""Seconds in service after which a machine is a proof that Slurm takes its pool's as they are;
SuspendTime, where that is shorter: for as long stays a machine that has had its job.
"""


def all_nodes(site: Site) -> Mapping[str, SlurmNode]:
    """Every node by Slurm. No cluster has none: that answer says nothing about any machine."""
    view = site.slurm.nodes()
    if not view:
        raise SlurmError(("sinfo",), 0, NO_NODE)
    return view


def machines_of(site: Site, cloud: str) -> list[Machine]:
    """The live machines of one cloud, by the ledger."""
    return [m for m in site.ledger.machines.live() if m.instance.cloud == cloud]


def machines_to_act_on(site: Site, cloud: str, some: Sequence[OnMachine]) -> list[Machine]:
    """The live machines of these actions. Another worker may have ended some of them after the
    round read the ledger.
    """
    ids = {a.machine for a in some}
    return [m for m in machines_of(site, cloud) if m.instance.id in ids]


def capacity_holds(site: Site) -> list[Exclusion]:
    """Holds of nodes for which no offer was left."""
    return [row for row in site.ledger.exclusions.holds() if row.kind == CAPACITY]


def terms_of(site: Site, cloud: str) -> Terms:
    """The part of the configuration that passes over a cloud go by."""
    config, settings = site.config, site.clouds[cloud]
    timings = config.timings
    idle = config.suspend_time(settings)
    return Terms(
        cloud=cloud,
        clouds=frozenset(site.providers),
        pools=site.pools,
        pool_of=site.pool_of,
        resume_timeout=timings.resume_timeout,
        suspend_timeout=config.suspend_timeout(settings),
        patience=Thresholds(grace=timings.grace),
        served=min(SOUND, max(idle, timings.reconcile)),  # a round has looked at it
        drain_terms=config.slurm.drain_terms,
        tells_addresses=settings.node_address == "provider",
        looks_names_up=site.looks_names_up,
        first=cloud == next(iter(site.providers)),
        keys=config.ranking,
    )


class CloudReader:
    """The eyes of one cloud's rounds. ``trouble`` and ``code``: why the cloud could not be read the
    last time; None where it could, or was not yet. For its last list ``doubts`` says, by machine,
    what of its tags is not believed, ``unusable`` what cannot be kept and nothing can end, with why
    (``policies.repair.list_plausibility``).
    """

    def __init__(self, site: Site, cloud: str) -> None:
        self._site, self._cloud = site, cloud
        self._settings = site.clouds[cloud]
        self.terms = terms_of(site, cloud)
        self.trouble: str | None = None
        self.code: str | None = None
        self.doubts: Mapping[str, str] = {}
        self.unusable: Mapping[str, str] = {}

    def read(self, nodes: Callable[[], Mapping[str, SlurmNode]]) -> ClusterSnapshot:
        """Slurm's ``nodes`` first, then the cloud's list, which the ledger takes in. SlurmError
        passes; without a list there is none in the snapshot.
        """
        view = nodes()
        listed = self._take_in_list()
        return see(self._site, self.terms, view, listed)

    def _take_in_list(self) -> tuple[Instance, ...] | None:
        """The cloud's list, which the ledger has taken in as of the time before the cloud was
        asked: the list may lack a machine that was launched after that time.
        """
        began = self._site.now()
        listed = self._list()
        if listed is not None:
            self._take_in(listed, began)
        return listed

    def _take_in(self, listed: Sequence[Instance], began: float) -> None:
        """Have the ledger take the list in."""
        ledger = self._site.ledger
        try:
            ledger.machines.observe(self._cloud, listed, began, self._site.pool_of)
        except sqlite3.Error as error:
            # Facts of a list may be gone by the next one: where the file fails, memory keeps them.
            ledger.give_up(error)
            ledger.machines.observe(self._cloud, listed, began, self._site.pool_of)

    def _list(self) -> tuple[Instance, ...] | None:
        """The cloud's machines as they may be kept; None where it cannot be read, whatever it
        raises.
        """
        cloud = self._cloud
        try:
            found = sound(
                self._site.providers[cloud].instances(), self.listed_price, self._site.now()
            )
        except ProviderError as error:
            self._unreadable(str(error), REFUSED if isinstance(error, AuthError) else UNREADABLE)
            log.warning("cloud cannot be read cloud=%s error=%s", cloud, error)
            return None
        except Exception as error:
            self._unreadable(bounded(f"{cloud}: {type(error).__name__}: {error}"), UNREADABLE)
            log.exception("cloud cannot be read cloud=%s", cloud)
            return None
        for id_, why in found.doubts.items():
            if self.doubts.get(id_) != why:
                log.warning(
                    "tags not believed, put them right or end the machine cloud=%s id=%s reason=%s",
                    cloud, id_, why,
                )  # fmt: skip
        self.trouble = self.code = None
        self._site.unreadable.pop(cloud)
        self.doubts, self.unusable = found.doubts, found.unusable
        machines = found.machines
        for keep in self._site.extensions.complete_listed:
            machines = keep(cloud, machines)
        return machines

    def _unreadable(self, trouble: str, code: str) -> None:
        self.trouble, self.code = trouble, code
        self._site.unreadable[self._cloud] = trouble

    def listed_price(self, one: Instance) -> float:
        """The price of a machine by the configuration ($/h)."""
        if self._settings.flat_price is not None:
            return self._settings.flat_price
        return price_of(None, one.instance_type, self._settings.shapes)


def see(
    site: Site,
    terms: Terms,
    nodes: Mapping[str, SlurmNode],
    listed: tuple[Instance, ...] | None = None,
) -> ClusterSnapshot:
    """The snapshot of a pass over a cloud; ``nodes`` are Slurm's, ``listed`` the cloud's."""
    ledger, now = site.ledger, site.now()
    state = ledger.state()
    missing = {
        m.instance.generation
        for m in state.machines
        if m.misses > 0 and m.instance.cloud == terms.cloud
    }
    sick = any(one.kind == BREAKER and sickly(one) for one in state.exclusions)
    return ClusterSnapshot(
        now=now,
        terms=terms,
        nodes=nodes,
        machines=state.machines,
        launches=state.launches,
        exclusions=state.exclusions,
        listed=listed,
        read_whole=terms.cloud in state.read_whole,
        writable=state.writable,
        slurmd_timeout=site.slurm.slurmd_timeout(),
        answered=ledger.launches.finished(missing) if missing else {},
        recent=ledger.machines.live(ended_since=now - DAY) if sick else (),
        drains=state.drains,
        stopped=state.stopped,
        directives=state.directives,
        recipes=_recipes_of(site, terms.cloud, state.stopped),
    )


def _recipes_of(site: Site, cloud: str, stopped: Collection[Machine]) -> Recipes:
    if not stopped:
        return NO_RECIPES
    for find_recipes in site.extensions.find_recipes:
        return find_recipes(cloud, stopped)
    return NO_RECIPES


def see_request(site: Site, terms: Terms, request: Request) -> ClusterSnapshot:
    """The snapshot for a request: Slurm's nodes first, then the ledger. SlurmError passes."""
    nodes = site.slurm.nodes(request.nodes)
    state = site.ledger.state()
    return ClusterSnapshot(
        now=site.now(),
        terms=terms,
        nodes=nodes,
        machines=state.machines,
        launches=state.launches,
        exclusions=state.exclusions,
        read_whole=terms.cloud in state.read_whole,
        writable=state.writable,
        request=request,
    )


def with_offers(site: Site, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The same with the offers of pools whose held nodes are to be looked at."""
    if all(one.kind != CAPACITY for one in snapshot.exclusions):
        return snapshot
    pools = [site.pools[name] for name in due_holds(snapshot)]
    if not pools:
        return snapshot
    return replace(
        snapshot,
        offers={pool.name: offers_of(site, pool) for pool in pools if snapshot.read_whole},
        scopes={pool.name: site.scope(pool) for pool in pools},
    )


def offers_of(site: Site, pool: Pool) -> Sequence[Offer]:
    """What its cloud sells for a pool; nothing where that cannot be read, whatever it raises."""
    try:
        return site.providers[pool.cloud].offers(pool)
    except Exception as error:  # noqa: BLE001 - a held pool's nodes stay held then
        log.warning("offers cannot be read pool=%s error=%r", pool.name, error)
        return ()
