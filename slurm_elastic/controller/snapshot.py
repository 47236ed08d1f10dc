"""Reads what a pass decides on, once: Slurm's nodes, the ledger, a cloud's list and offers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.errors import SlurmError
from slurm_elastic.model import BREAKER, CAPACITY, Exclusion, Instance, Offer, Pool
from slurm_elastic.model_ledger import Machine
from slurm_elastic.model_slurm import SlurmNode
from slurm_elastic.policies.cluster import ClusterSnapshot, Terms, due_holds
from slurm_elastic.policies.exclusions import sickly
from slurm_elastic.policies.reconcile_rules import Thresholds
from slurm_elastic.protocols import NO_NODE

log = logging.getLogger(__name__)

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
    return [m for m in site.ledger.machines() if m.instance.cloud == cloud]


def capacity_holds(site: Site) -> list[Exclusion]:
    """Holds of nodes for which no offer was left."""
    return [row for row in site.ledger.holds() if row.kind == CAPACITY]


def terms_of(site: Site, cloud: str) -> Terms:
    """The part of the configuration that passes over a cloud go by."""
    config, settings = site.config, site.config.cloud(cloud)
    timings = config.timings
    idle = config.suspend_time(settings)
    return Terms(
        cloud=cloud,
        clouds=frozenset(site.providers),
        pools=site.pools,
        pool_of=site.pool_of,
        resume_timeout=timings.resume_timeout,
        patience=Thresholds(grace=timings.grace, misses=timings.misses),
        served=min(SOUND, max(idle, timings.reconcile)),  # a round has looked at it
        slurm_user=config.slurm.user,
        tells_addresses=settings.node_address == "provider",
        first=cloud == next(iter(site.providers)),
        keys=config.ranking,
    )


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
        writable=not ledger.end_only,
        slurmd_timeout=site.slurm.slurmd_timeout(),
        answered=ledger.finished(missing) if missing else {},
        recent=ledger.machines(ended_since=now - DAY) if sick else (),
    )


def with_offers(site: Site, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The same with the offers of pools whose held nodes are to be looked at."""
    pools = [site.pools[name] for name in due_holds(snapshot)]
    if not pools:
        return snapshot
    return replace(
        snapshot,
        offers={pool.name: _offers(site, pool) for pool in pools if snapshot.read_whole},
        scopes={pool.name: site.scope(pool) for pool in pools},
    )


def _offers(site: Site, pool: Pool) -> Sequence[Offer]:
    try:
        return site.providers[pool.cloud].offers(pool)
    except Exception as error:  # noqa: BLE001 - whatever a cloud raises, its nodes stay held
        log.warning("held pool cannot be looked at pool=%s error=%r", pool.name, error)
        return ()
