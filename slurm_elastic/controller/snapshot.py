"""Reads the state that a round decides on: Slurm's nodes, the ledger, a cloud's list and offers.

The order of the readings must be kept: Slurm first, then the cloud's list, then the ledger. Each
reading is then at least as new as the one before it: a node that Slurm shows as up has its machine
in the list, and a listed machine that we launched has its row in the ledger.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError, SlurmError, bounded
from slurm_elastic.config.machine_prices import configured_price
from slurm_elastic.controller.context import Site
from slurm_elastic.model.cluster import Instance, InstanceState, Offer, Pool
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, Exclusion
from slurm_elastic.model.memory import UNREADABLE, Machine, code_of
from slurm_elastic.model.protocols import NO_NODE, list_tidily
from slurm_elastic.model.slurm import Request, SlurmNode
from slurm_elastic.policies.actions import OnMachine
from slurm_elastic.policies.growth.stopped import NO_RECIPES, Recipes
from slurm_elastic.policies.launch.exclusions import sickly
from slurm_elastic.policies.repair.cloud_view import Thresholds
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, Terms
from slurm_elastic.policies.repair.hold_rules import due_holds
from slurm_elastic.policies.repair.list_plausibility import sanitize_listing

log = logging.getLogger(__name__)

CORRELATION = "reconcile"
"""The correlation under which the decisions of periodic rounds are recorded."""

DAY_S = 86400.0
PROOF_AGE_S = 600.0
"""A machine in service for this many seconds proves that machines of its pool work. SuspendTime
counts if that is shorter, because an idle machine does not live longer.
"""


def read_all_nodes(site: Site) -> Mapping[str, SlurmNode]:
    """Read all of Slurm's nodes. SlurmError if Slurm does not answer or shows no node."""
    view = site.slurm.nodes()
    # Every cluster has nodes, so an empty answer is an error. If we believed it, no machine would
    # have a node, and the repairs would end all of them.
    if not view:
        raise SlurmError(("sinfo",), 0, NO_NODE)
    return view


def list_live_machines(site: Site, cloud: str) -> list[Machine]:
    """Return the live machines of one cloud according to the ledger."""
    return [m for m in site.ledger.machines.live() if m.instance.cloud == cloud]


def find_machines_to_act_on(site: Site, cloud: str, actions: Sequence[OnMachine]) -> list[Machine]:
    """Return the still live machines of these actions."""
    # Read again: another worker may have ended some of them after the round read the ledger.
    ids = {a.machine for a in actions}
    return [m for m in list_live_machines(site, cloud) if m.instance.id in ids]


def list_capacity_holds(site: Site) -> list[Exclusion]:
    """Return the holds of nodes for which no offer was left."""
    return [row for row in site.ledger.exclusions.holds() if row.kind == CAPACITY]


def build_terms(site: Site, cloud: str) -> Terms:
    """Return the part of the configuration that the rounds of a cloud need."""
    config, settings = site.config, site.clouds[cloud]
    timings = config.timings
    idle = config.suspend_time(settings)
    return Terms(
        cloud=cloud,
        clouds=frozenset(site.providers),
        pools=site.pools,
        pool_of=site.pool_of,
        resume_timeout=timings.resume_timeout,
        resume_timeouts={name: config.resume_timeout(c) for name, c in site.clouds.items()},
        suspend_timeout=config.suspend_timeout(settings),
        thresholds=Thresholds(grace_s=timings.orphan_timeout),
        # Not shorter than the period of the rounds: a round must have seen the machine in service.
        proven_after_s=min(PROOF_AGE_S, max(idle, timings.reconcile_interval)),
        drain_terms=config.slurm.drain_terms,
        tells_addresses=settings.node_address == "provider",
        looks_names_up=site.looks_names_up,
        is_first_cloud=cloud == next(iter(site.providers)),
        offer_order=config.ranking,
    )


class CloudReader:
    """Reads the state for the rounds of one cloud.

    ``trouble`` and ``code``: why the last reading of the cloud failed; None after a success and
    before the first reading. ``doubts``: by machine of the last list, the tags that we do not
    believe. ``unusable``: by id, why a listed machine can neither be kept in the ledger nor ended
    (``policies.repair.list_plausibility``). ``ended_ids``: the machines that the last list shows as
    ended and that we wanted until then.
    """

    def __init__(self, site: Site, cloud: str) -> None:
        self._site, self._cloud = site, cloud
        self._settings = site.clouds[cloud]
        self.terms = build_terms(site, cloud)
        self.trouble: str | None = None
        self.code: str | None = None
        self.doubts: Mapping[str, str] = {}
        self.unusable: Mapping[str, str] = {}
        self.ended_ids: frozenset[str] = frozenset()

    def read(self, nodes: Callable[[], Mapping[str, SlurmNode]]) -> ClusterSnapshot:
        """Read Slurm's ``nodes``, then the cloud's list, and have the ledger take the list in.

        SlurmError: Slurm did not answer. If the cloud cannot be read, the snapshot has no list.
        """
        # Slurm before the cloud. In the other order a node that came up between the readings would
        # seem to have no machine.
        view = nodes()
        listed = self._take_in_list()
        return take_snapshot(self._site, self.terms, view, listed)

    def _take_in_list(self) -> tuple[Instance, ...] | None:
        """Read the cloud's list into the ledger. None if the cloud cannot be read."""
        # The list counts as of the time before the call, because it may lack a machine that was
        # launched while the cloud answered.
        began, since = self._site.now(), self._site.monotonic()
        listed = self._list()
        if listed is not None:
            self._take_in(listed, began, self._site.monotonic() - since)
        return listed

    def _take_in(self, listed: Sequence[Instance], began: float, took_s: float) -> None:
        """Store the cloud's list, whose reading took ``took_s``, in the ledger."""
        ledger = self._site.ledger
        ended = {i.id for i in listed if i.state is InstanceState.TERMINATED}
        live = list_live_machines(self._site, self._cloud) if ended else ()
        self.ended_ids = frozenset(m.instance.id for m in live if m.is_wanted) & ended
        try:
            ledger.machines.observe(self._cloud, listed, began, self._site.pool_of, took_s=took_s)
        except sqlite3.Error as error:
            # The next list may lack what this one shows (a machine that ended). If the ledger's
            # file fails, switch to memory and keep the facts there.
            ledger.give_up(error)
            ledger.machines.observe(self._cloud, listed, began, self._site.pool_of, took_s=took_s)

    def _list(self) -> tuple[Instance, ...] | None:
        """Return the cloud's machines as the ledger may keep them; None if the cloud cannot be
        read.
        """
        cloud = self._cloud
        try:
            sanitized = sanitize_listing(self._read_machines(), self.listed_price, self._site.now())
        except ProviderError as error:
            self._unreadable(str(error), code_of(error))
            log.warning("cloud cannot be read cloud=%s error=%s", cloud, error)
            return None
        # A provider may raise errors of its SDK. They must not end the round: Slurm's side of the
        # repairs works without a list.
        except Exception as error:
            self._unreadable(bounded(f"{cloud}: {type(error).__name__}: {error}"), UNREADABLE)
            log.exception("cloud cannot be read cloud=%s", cloud)
            return None
        for id_, doubt in sanitized.doubts.items():
            if self.doubts.get(id_) != doubt:
                log.warning(
                    "tags not believed, put them right or end the machine cloud=%s id=%s reason=%s",
                    cloud, id_, doubt,
                )  # fmt: skip
        self.trouble = self.code = None
        self._site.unreadable.pop(cloud)
        self.doubts, self.unusable = sanitized.doubts, sanitized.unusable
        machines = sanitized.machines
        for keep in self._site.extensions.complete_listed:
            machines = keep(cloud, machines)
        return machines

    def _read_machines(self) -> Sequence[Instance]:
        provider = self._site.providers[self._cloud]
        # The housekeeping ends machines and cuts the power of hosts, according to records that a
        # copy of the head has of the time before it was copied.
        if self._site.ledger.owner.other_head() is not None:
            return provider.instances()
        return list_tidily(provider)

    def _unreadable(self, trouble: str, code: str) -> None:
        self.trouble, self.code = trouble, code
        self._site.unreadable[self._cloud] = trouble

    def listed_price(self, instance: Instance) -> float:
        """The price of a machine according to the configuration ($/h)."""
        site, pool = self._site, self._site.pool_of.get(instance.node)
        # If its node is unknown, the most that the disks of any pool cost: a budget must not count
        # too little.
        pools = site.pools_of_cloud(self._cloud) if pool is None else [pool]
        machine = max((p.machine for p in pools), key=lambda m: m.disk_price, default=None)
        return configured_price(self._settings, machine, instance.instance_type, instance.market)


def take_snapshot(
    site: Site,
    terms: Terms,
    nodes: Mapping[str, SlurmNode],
    listed: tuple[Instance, ...] | None = None,
) -> ClusterSnapshot:
    """Return the snapshot for a periodic round, with Slurm's ``nodes`` and the ``listed`` machines
    of the cloud (None: the cloud could not be read). SlurmError passes.
    """
    ledger, now = site.ledger, site.now()
    state = ledger.state()
    missing = {
        m.instance.generation
        for m in state.machines
        if m.missed_listings > 0 and m.instance.cloud == terms.cloud
    }
    sick = any(row.kind == BREAKER and sickly(row) for row in state.exclusions)
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
        answered=ledger.launches.finish_times(missing) if missing else {},
        recent=ledger.machines.live(ended_since=now - DAY_S) if sick else (),
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


def take_request_snapshot(site: Site, terms: Terms, request: Request) -> ClusterSnapshot:
    """Return the snapshot for a request, without a list of the cloud. SlurmError passes."""
    # Slurm first, as in a periodic round: the ledger must not be older than Slurm's nodes.
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


def add_offers(site: Site, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot with the offers of the pools whose held nodes are due for a review."""
    # Most rounds have no such pool. They must not ask a cloud for offers.
    if all(row.kind != CAPACITY for row in snapshot.exclusions):
        return snapshot
    pools = [site.pools[name] for name in due_holds(snapshot)]
    if not pools:
        return snapshot
    return replace(
        snapshot,
        offers={pool.name: read_offers(site, pool) for pool in pools if snapshot.read_whole},
        scopes={pool.name: site.scope(pool) for pool in pools},
    )


def read_offers(site: Site, pool: Pool) -> Sequence[Offer]:
    """Return the offers of the pool's cloud; none if they cannot be read."""
    try:
        return site.providers[pool.cloud].offers(pool)
    except Exception as error:  # noqa: BLE001 - a held pool's nodes stay held then
        log.warning("offers cannot be read pool=%s error=%r", pool.name, error)
        return ()
