"""Measures for growth policies how many machines limits and clouds leave to multi-node jobs.

Each such job needs all its machines. A look without such a job asks no cloud, because the purchase
of a single machine meets the same bounds a moment later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.controller.context import Site
from slurm_elastic.features.growth.observe import PoolGroup
from slurm_elastic.features.growth.pool_nodes import Observation
from slurm_elastic.model.cluster import NodeRequest, Offer, Pool
from slurm_elastic.policies.growth.dealing import needs_several_machines
from slurm_elastic.policies.growth.purchase_rooms import (
    PurchaseRoom,
    purchase_room,
    shared_rooms,
)
from slurm_elastic.policies.growth.scaling import GroupSnapshot, PoolSnapshot, SharedRoom
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase

log = logging.getLogger(__name__)

OFFERS_TIMEOUT_S = 5.0
"""Seconds in which a cloud must tell its offers. Afterwards its purchases alone meet the bounds."""


def with_purchase_rooms(
    site: Site, view: Observation, groups: Sequence[PoolGroup], calls: InTime
) -> list[PoolGroup]:
    """Return the groups with no more room than may be bought now. ``calls`` bounds how long a cloud
    is waited for.
    """
    asking = [group for group in groups if needs_several_machines(group.now)]
    names = [pool.name for group in asking for pool in group.now.pools if pool.stop is None]
    if not names:
        return [*groups]
    startable = {name: nodes for group in groups for name, nodes in group.startable.items()}
    served = site.served_nodes()
    rooms = {
        name: room
        for name in names
        if (room := _room(site, view, site.pools[name], startable[name], served, calls)) is not None
    }
    shared = (*shared_rooms(rooms), *_turns(site, view))
    return [replace(group, now=_bounded(group.now, rooms, shared)) for group in groups]


def _room(
    site: Site,
    view: Observation,
    pool: Pool,
    startable: Sequence[str],
    served: set[str],
    calls: InTime,
) -> PurchaseRoom | None:
    """Return the room of a pool; None if its cloud does not tell its offers."""
    offers = _offers(site, pool, calls)
    if offers is None:
        return None
    # These nodes get a machine first.
    unlaunched = [name for name in _booting(view, pool) if name not in served]
    request = NodeRequest(id="", pool=pool, nodes=(*unlaunched, *startable))
    keys = site.config.ranking
    return purchase_room(
        request, offers, site.scope(pool), site.now(), keys, unlaunched=len(unlaunched)
    )


def _offers(site: Site, pool: Pool, calls: InTime) -> Sequence[Offer] | None:
    provider = site.providers[pool.cloud]
    try:
        return calls.call(pool.cloud, lambda: provider.offers(pool), OFFERS_TIMEOUT_S)
    # A provider may raise errors of its SDK. Growth goes on, and the purchase reports the error.
    except Exception as error:  # noqa: BLE001
        log.info("growth without offers pool=%s error=%s", pool.name, error)
        return None


def _booting(view: Observation, pool: Pool) -> list[str]:
    return [
        name
        for name in pool.nodes
        if name in view.nodes
        and not is_down(view.nodes[name])
        and phase(view.nodes[name]) is Phase.POWERING_UP
    ]


def _turns(site: Site, view: Observation) -> list[SharedRoom]:
    """Return how many more machines may boot now in the clouds that bound it."""
    rooms = []
    for name, cloud in site.clouds.items():
        if cloud.max_booting is not None:
            pools = site.pools_of_cloud(name)
            booting = sum(len(_booting(view, pool)) for pool in pools)
            costs = {pool.name: 1.0 for pool in pools}
            rooms.append(SharedRoom(cloud.max_booting - booting, costs, is_turn=True))
    return rooms


def _bounded(
    now: GroupSnapshot, rooms: dict[str, PurchaseRoom], shared: Sequence[SharedRoom]
) -> GroupSnapshot:
    names = {pool.name for pool in now.pools}
    of_group = tuple(room for room in shared if not names.isdisjoint(room.costs))
    pools = tuple(
        _within(pool, rooms[pool.name]) if pool.name in rooms else pool for pool in now.pools
    )
    return replace(now, pools=pools, shared_rooms=of_group)


def _within(pool: PoolSnapshot, room: PurchaseRoom) -> PoolSnapshot:
    total = pool.room if pool.total_room is None else pool.total_room
    if total <= room.room:
        return pool
    return replace(
        pool,
        room=min(pool.room, room.room),
        total_room=None if pool.total_room is None else room.room,
        bound=room.bound,
    )
