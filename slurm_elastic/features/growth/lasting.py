"""Finds waiting jobs that may run longer than any machine stays which growth could start now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.oversized import lasting_scope
from slurm_elastic.model.causes.growth import OutlastsMachines
from slurm_elastic.model.causes.misfits import ReservationEnds
from slurm_elastic.model.cluster import Market, NodeRequest, Offer, Pool
from slurm_elastic.policies.growth.scaling import holds_back
from slurm_elastic.policies.launch.lasting import early_end
from slurm_elastic.providers.base.offers import paid_offer, reserved_offers, typed_offer


class LastingMachines:
    """``too_long``: by job the cause for which growth counts it in no pool. Filled by
    ``without_short``.
    """

    def __init__(self, site: Site, now: float) -> None:
        self._site, self._now = site, now
        self.too_long: dict[int, OutlastsMachines] = {}
        self._clouds = {
            name
            for name, cloud in site.clouds.items()
            if any(h.machines_end_at is not None and h.is_active(now) for h in cloud.held)
        }
        self._known: dict[tuple[object, ...], ReservationEnds | None] = {}

    def without_short(
        self, job: int, nodes: int, limit_s: float, pools: Sequence[Pool]
    ) -> Sequence[Pool]:
        """Return the pools without those whose machines end before the job may end."""
        clouds = {pool.cloud for pool in pools} & self._clouds
        # Most sites have no such reservation. Their looks must not cost more.
        if not clouds:
            return pools
        ends = {name: self._end(name, nodes, limit_s, pools) for name in clouds}
        short = {
            pool.name
            for cloud, end in ends.items()
            for pool in self._short(cloud, end, limit_s, pools)
        }
        lasting = [pool for pool in pools if pool.name not in short]
        if not lasting:
            end = next(end for end in ends.values() if end is not None)
            self.too_long[job] = OutlastsMachines(
                pools=tuple(pool.name for pool in pools),
                reservation=end.reservation,
                ends_at=end.ends_at,
                limit_s=limit_s,
            )
        return lasting

    def _short(
        self, cloud: str, end: ReservationEnds | None, limit_s: float, pools: Sequence[Pool]
    ) -> Sequence[Pool]:
        """Return the pools of the cloud that must not serve the job. ``end``: of ``_end``."""
        of_cloud = [pool for pool in pools if pool.cloud == cloud]
        if end is not None:
            return of_cloud
        # A pool without a single machine that lasts would get a node of a job that other pools of
        # the cloud can serve. That launch is refused, and the pool is held for a while.
        short = [pool for pool in of_cloud if self._end(cloud, 1, limit_s, [pool]) is not None]
        # If no pool is left, the job is too large for the cloud, too. Its launch reports that.
        return short if len(short) < len(of_cloud) else ()

    def _end(
        self, cloud: str, nodes: int, limit_s: float, pools: Sequence[Pool]
    ) -> ReservationEnds | None:
        site = self._site
        of_cloud = [pool for pool in pools if pool.cloud == cloud]
        # If Slurm itself starts nodes, a job that can be saved may get a machine that ends early.
        if not all(holds_back(site.rules[pool.name].growth) for pool in of_cloud):
            return None
        key = cloud, nodes, limit_s, *(pool.name for pool in of_cloud)
        # Thousands of jobs may wait, and most of them ask for the same few limits.
        if key not in self._known:
            settings = site.clouds[cloud]
            asked = [
                (NodeRequest(id="", pool=pool, nodes=pool.nodes), tuple(_offers(settings, pool)))
                for pool in of_cloud
            ]
            scope = lasting_scope(site, site.config.resume_timeout(settings))
            self._known[key] = early_end(asked, nodes, limit_s, scope, self._now, may_wait=False)
        return self._known[key]


def _offers(settings: CloudSettings, pool: Pool) -> Iterator[Offer]:
    """Yield the offers by the configuration, so that no look of growth waits for a cloud: all
    reservations, and a machine of each type on each other market.
    """
    reserved_zones = (held.zone for held in settings.held if held.zone)
    zones = pool.zones or tuple(dict.fromkeys((*settings.known_zones, *reserved_zones)))
    yield from reserved_offers(settings, pool, zones)
    place, types = (settings.name, settings.location), settings.shapes
    # One zone is enough for the other markets, because no time ends their machines.
    for name in pool.instance_types or types:
        for market in pool.markets:
            if market is not Market.RESERVED and name in types:
                published = typed_offer(place, name, types[name], zones[0], market)
                yield paid_offer(published, settings, pool)
